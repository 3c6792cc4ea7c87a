"""A raw gRPC trainer: attach, stream, commit, read slots. It checks nothing by itself; tests do."""

import contextlib
import json
import mmap
import os
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from lanefeed_core.ledger import Ledger
from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.proto import lanefeed_pb2_grpc as rpc
from lanefeed_core.wire import PROTOCOL_VERSION, StreamInfo

HEADER = 4096


class Client:
    """One rank."""

    def __init__(self, run_dir: Path, rank: int, world: int, generation: int = 1, token: str | None = None) -> None:
        self.rank, self.world, self.generation = rank, world, generation
        self.run_dir = run_dir
        self.token = (run_dir / "token").read_text() if token is None else token
        self.channel = grpc.insecure_channel(
            f"unix:{run_dir}/feed.sock",
            options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", 64 << 20)],
        )
        self.stub = rpc.FeedStub(self.channel)
        self.call: Any = None
        self.inbox: queue.Queue[pb.ServerMessage | grpc.RpcError | None] = queue.Queue()
        self.outbox: queue.Queue[pb.ClientMessage | None] = queue.Queue()
        self.ids: dict[int, list[int]] = {}
        self.events: list[pb.ServerMessage] = []
        #: Frames that arrived in a message of which only some were wanted.
        self.pending: list[pb.Frame] = []
        self.ledger = Ledger()
        self.start = self.consumed = 0
        self.ended = False
        self.thread: threading.Thread | None = None
        self.map: mmap.mmap | None = None

    @property
    def metadata(self) -> list[tuple[str, str]]:
        return [("lanefeed-token", self.token)] if self.token else []

    def attach(self, state: dict[str, Any] | None = None, **fields: Any) -> pb.AttachReply:
        request = pb.AttachRequest(
            **{
                "protocol": PROTOCOL_VERSION,
                "rank": self.rank,
                "world": self.world,
                "plan_generation": self.generation,
                "state_json": json.dumps(state) if state else "",
                "pid": os.getpid(),
                "version": "test",
                **fields,
            }
        )
        self.reply = self.stub.Attach(request, metadata=self.metadata, timeout=60)
        if request.peek:
            return self.reply
        self.info = StreamInfo.from_json(self.reply.stream_json)
        self.consumed = self.start = self.reply.start
        self.arena = np.zeros(0, np.uint8)
        if self.map is not None:
            self.map.close()
        fd = os.open(self.reply.arena_path, os.O_RDWR)
        try:
            self.map = mmap.mmap(fd, self.reply.arena_bytes)
        finally:
            os.close(fd)
        self.arena = np.frombuffer(self.map, np.uint8)
        return self.reply

    def stream(self) -> None:
        """Open the stream; messages arrive in `inbox`."""
        self.pending = []
        self.inbox, self.outbox = queue.Queue(), queue.Queue()
        outbox, inbox = self.outbox, self.inbox
        self.send(pb.ClientMessage(begin=pb.Begin(session=self.reply.session, rank=self.rank)))
        self.call = self.stub.Stream(iter(outbox.get, None), metadata=self.metadata)
        call = self.call

        def read() -> None:
            try:
                for message in call:
                    inbox.put(message)
                inbox.put(None)
            except grpc.RpcError as error:
                inbox.put(error)

        self.thread = threading.Thread(target=read, daemon=True)
        self.thread.start()

    def send(self, message: pb.ClientMessage) -> None:
        self.outbox.put(message)

    def progress(self, *released: int, **fields: Any) -> None:
        self.send(pb.ClientMessage(progress=pb.Progress(released=released, consumed=self.consumed, **fields)))

    def message(self, timeout: float = 60) -> pb.ServerMessage:
        """The next message; raises the stream's error, StopIteration at its end."""
        got = self.inbox.get(timeout=timeout)
        if got is None:
            raise StopIteration
        if isinstance(got, grpc.RpcError):
            raise got
        return got

    def frames(self, timeout: float = 60) -> Iterator[pb.Frame]:
        """Frames until the end; other messages go to `events`."""
        while True:
            while self.pending:
                yield self.pending.pop(0)
            message = self.message(timeout)
            self.pending += message.frames
            while self.pending:
                yield self.pending.pop(0)
            if message.end:
                self.ended = True
                return
            if not message.frames:
                self.events.append(message)
            if message.HasField("failure"):
                return

    def slot(self, slot: int) -> np.ndarray:
        at = HEADER + slot * self.reply.slot_bytes
        return self.arena[at : at + self.reply.slot_bytes]

    def words(self, slot: int) -> tuple[int, int, int]:
        """State, sequence, first step."""
        return tuple(self.slot(slot)[:24].view(np.uint64).tolist())

    def read(self, frame: pb.Frame) -> dict[str, Any]:
        """Everything in a frame, copied."""
        slot, k, r = self.slot(frame.slot), frame.steps, frame.rows
        ids = slot[frame.ids_offset :][: 8 * k * r].view(np.int64).reshape(k, r).copy()
        x = slot[frame.blocks[0].values :][: 16 * k * r].view(np.int64).reshape(k, r, 2).copy()
        text = frame.blocks[1]
        offsets = slot[text.offsets :][: 8 * k * (r + 1)].view(np.int64).reshape(k, r + 1).copy()
        raw = slot[text.values :][: text.starts[-1]].tobytes()
        texts = [
            [raw[text.starts[i] + offsets[i, j] : text.starts[i] + offsets[i, j + 1]] for j in range(r)]
            for i in range(k)
        ]
        return {"ids": ids, "x": x, "text": texts}

    def consume(self, frame: pb.Frame) -> None:
        """Read a frame, count it, release its slot."""
        data = self.read(frame)
        for k in range(frame.steps):
            self.ids[frame.first_step + k] = data["ids"][k].tolist()
            self.ledger.add(frame.epoch, frame.samples, frame.sums[k])
        self.consumed = frame.first_step + frame.steps
        self.progress(frame.slot)

    def run(self, until: int | None = None) -> None:
        """Consume frames up to a step, or to the end."""
        if until is not None and self.consumed >= until:
            return
        for frame in self.frames():
            self.consume(frame)
            if until is not None and self.consumed >= until:
                return

    def commit(self, name: str = "", **fields: Any) -> pb.CommitReply:
        """Commit what was consumed since the last commit."""
        commit = pb.RankCommit(
            rank=self.rank,
            start=self.start,
            stop=self.consumed,
            name=name,
            ledger_json=json.dumps(self.ledger.to_dict()),
        )
        request = pb.CommitRequest(
            **{
                "session": self.reply.session,
                "rank": self.rank,
                "plan_generation": self.generation,
                "commit": commit,
                **fields,
            }
        )
        reply = self.stub.Commit(request, metadata=self.metadata, timeout=60)
        if reply.accepted:
            self.start, self.ledger = self.consumed, Ledger()
        return reply

    def close(self) -> None:
        if self.call is not None:
            self.call.cancel()
        self.outbox.put(None)
        if self.thread is not None:
            self.thread.join(60)
        self.channel.close()
        self.arena = np.zeros(0, np.uint8)
        if self.map is not None:
            self.map.close()


def kind_of(error: grpc.RpcError) -> str:
    """The `lanefeed-error` in the trailing metadata."""
    return dict(error.trailing_metadata() or ()).get("lanefeed-error", "")  # type: ignore[attr-defined]


@contextlib.contextmanager
def eventually(seconds: float = 60.0, what: str = "") -> Iterator[Any]:
    """`with eventually() as check: check(lambda: ...)` waits until it is true."""

    def check(done: Any) -> None:
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, f"waited {seconds} s for {what or 'it'}"
            time.sleep(0.01)

    yield check
