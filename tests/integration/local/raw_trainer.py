"""A trainer that speaks docs/protocol.md with plain gRPC and no Lanefeed library: an independent witness.

One process a rank. Consumes, commits every RAW_EVERY steps with the ledger that the frames themselves carry, leaves
with 75 at an agreed stop, and goes on from the last commit whose state it wrote. But for an agreed stop it goes no
further than the step in OUT/limit.
"""

import json
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any

import grpc

from lanefeed_core.ledger import Ledger
from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.proto import lanefeed_pb2_grpc as rpc
from lanefeed_core.wire import PROTOCOL_VERSION, StreamInfo

OUT = Path(os.environ["RAW_OUT"])
EVERY = int(os.environ.get("RAW_EVERY", "5"))
RUN = Path(os.environ["LANEFEED_RUN_DIR"])
RANK = int(os.environ["LANEFEED_POD_INDEX"])
WORLD = int(os.environ["LANEFEED_WORLD_SIZE"])
GENERATION = int(os.environ["LANEFEED_PLAN_GENERATION"])


def told(name: str) -> float:
    """What the test says, now: seconds a step ("sleep"), and the step to wait at ("limit")."""
    return float((OUT / name).read_text())


class Rank:
    def __init__(self) -> None:
        self.ledger, self.since, self.next = Ledger(), 0, -1
        self.stop_at: int | None = None
        self.end = False
        self.step_seconds = 0.0

    def session(self) -> None:
        """One session: attach, consume until the end, the stop, or the loss of the sidecar."""
        metadata = (("lanefeed-token", (RUN / "token").read_text()),)
        with grpc.insecure_channel(f"unix:{RUN / 'feed.sock'}") as channel:
            self.stub = rpc.FeedStub(channel)
            self.metadata = metadata
            self.attach()
            up: queue.Queue[pb.ClientMessage] = queue.Queue()
            up.put(pb.ClientMessage(begin=pb.Begin(session=self.reply.session, rank=RANK)))
            stream = self.stub.Stream(iter(up.get, None), metadata=metadata)
            down: queue.Queue[pb.ServerMessage | grpc.RpcError | None] = queue.Queue()
            threading.Thread(target=self.hear, args=(stream, down), daemon=True).start()
            try:
                while (message := down.get()) is not None:
                    if isinstance(message, grpc.RpcError):
                        raise message
                    self.take(message, up)
                    if self.end or self.stopped:
                        break
                if self.stopped:
                    # It may have been at that step when it heard of it.
                    self.commit()
            finally:
                stream.cancel()
                up.put(None)  # type: ignore[arg-type]

    def hear(self, stream: Any, down: "queue.Queue[pb.ServerMessage | grpc.RpcError | None]") -> None:
        """Messages as they come: a stop is heard also while the rank waits at its limit."""
        try:
            for message in stream:
                if message.HasField("stop_at"):
                    self.stop_at = message.stop_at.step
                down.put(message)
            down.put(None)
        except grpc.RpcError as error:
            down.put(error)

    def attach(self) -> None:
        request = pb.AttachRequest(
            protocol=PROTOCOL_VERSION,
            rank=RANK,
            world=WORLD,
            plan_generation=GENERATION,
            pid=os.getpid(),
            version="raw",
        )
        if self.next >= 0:
            request.resuming, request.resume_at = True, self.next
            self.reply = self.stub.Attach(request, metadata=self.metadata, timeout=60)
        else:
            peek = self.stub.Attach(
                pb.AttachRequest(
                    protocol=PROTOCOL_VERSION, rank=RANK, world=WORLD, plan_generation=GENERATION, peek=True
                ),
                metadata=self.metadata,
                timeout=60,
            )
            step = peek.last_commit.step if peek.HasField("last_commit") else 0
            if step:
                request.state_json = (OUT / f"state-{step}.json").read_text()
            self.reply = self.stub.Attach(request, metadata=self.metadata, timeout=60)
            self.next = self.since = self.reply.start
        self.info = StreamInfo.from_json(self.reply.stream_json)

    @property
    def stopped(self) -> bool:
        return self.stop_at is not None and self.next >= self.stop_at

    def take(self, message: pb.ServerMessage, up: "queue.Queue[pb.ClientMessage]") -> None:
        if message.HasField("failure"):
            sys.exit(f"{message.failure.kind}: {message.failure.message}")
        for frame in message.frames:
            for k in range(frame.steps):
                if frame.first_step + k < self.next or self.stopped:
                    continue
                while self.next >= told("limit") and self.stop_at is None:
                    time.sleep(0.01)
                if self.stopped:
                    continue
                seconds = told("sleep")
                time.sleep(seconds)
                self.step_seconds += seconds
                self.ledger.add(frame.epoch, frame.samples, frame.sums[k])
                self.next += 1
                if self.next % EVERY == 0 or self.stopped:
                    self.commit()
                up.put(pb.ClientMessage(progress=pb.Progress(consumed=self.next, step_seconds=self.step_seconds)))
            done = pb.Progress(released=[frame.slot], consumed=self.next, step_seconds=self.step_seconds)
            up.put(pb.ClientMessage(progress=done))
        if message.end:
            self.commit()
            self.end = True

    def commit(self) -> None:
        if self.next == self.since:
            return
        cursor = divmod(self.next, self.info.steps_per_epoch)
        state = {
            "version": 1,
            "order_version": 1,
            "manifest": self.info.manifest,
            "spec": self.info.spec.to_dict(),
            "cursor": {"epoch": cursor[0], "step": cursor[1]},
            "part": None,
        }
        temporary = OUT / f".{os.getpid()}.tmp"
        temporary.write_text(json.dumps(state))
        temporary.replace(OUT / f"state-{self.next}.json")
        commit = pb.RankCommit(
            rank=RANK,
            start=self.since,
            stop=self.next,
            name=f"c{self.next}",
            ledger_json=json.dumps(self.ledger.to_dict()),
        )
        request = pb.CommitRequest(session=self.reply.session, rank=RANK, plan_generation=GENERATION, commit=commit)
        reply = self.stub.Commit(request, metadata=self.metadata, timeout=60)
        if not reply.accepted:
            sys.exit(f"commit refused: {reply.reason}")
        self.ledger, self.since = Ledger(), self.next


def main() -> None:
    rank = Rank()
    deadline = time.monotonic() + 100
    while not rank.end and not rank.stopped:
        try:
            rank.session()
        except (grpc.RpcError, OSError) as error:
            if time.monotonic() > deadline:
                sys.exit(f"no sidecar: {error}")
            time.sleep(0.1)
        else:
            deadline = time.monotonic() + 100
    sys.exit(75 if rank.stopped and not rank.end else 0)


if __name__ == "__main__":
    main()
