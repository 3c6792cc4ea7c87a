"""A Feed server whose every misbehaviour is scripted: for what a real sidecar does not do on demand.

Real gRPC, a real socket and a real arena in tmpfs; frames come from `lanefeed._fake`, so their bytes are right unless
the script says otherwise. A slot is overwritten with 0xEE as soon as it is released.
"""

import queue
import struct
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from lanefeed._fake import Table, pack
from lanefeed_core.lanes import Lanes
from lanefeed_core.layout import HEADER_BYTES, MAGIC
from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.proto import lanefeed_pb2_grpc as rpc
from lanefeed_core.stream import StreamSpec
from lanefeed_core.wire import StreamInfo

SLOT = 1 << 16
ROWS = 40


class Script(rpc.FeedServicer):
    """One rank's feed. Attributes are the script; they may be changed while it runs."""

    def __init__(self, folder: Path, *, slots: int = 4, epochs: int = 2, frame_steps: int = 3) -> None:
        self.folder, self.slots, self.frame_steps = folder, slots, frame_steps
        spec = StreamSpec(seed=1, global_batch_size=4, lanes=2, window=8)
        self.table = Table({"x": np.arange(ROWS, dtype=np.int64), "t": [f"r{i}" for i in range(ROWS)]})
        self.lanes = Lanes(spec, np.array([ROWS]))
        self.info = StreamInfo(
            "script",
            self.table.digest,
            ROWS,
            spec,
            tuple(self.table.columns),
            self.lanes.steps_per_epoch,
            epochs,
            0,
            4,
            3,
        )
        self.attaches: list[pb.AttachRequest] = []
        self.progress: list[pb.Progress] = []
        self.commits: list[pb.RankCommit] = []
        self.last_commit: pb.Committed | None = None
        #: Called with the request before an attach or commit is answered; may abort the call.
        self.on_attach: Callable[[pb.AttachRequest, Any], None] = lambda _r, _c: None
        self.on_commit: Callable[[pb.RankCommit, Any], pb.CommitReply | None] = lambda _m, _c: None
        #: Changes a frame before it is sent (None: not sent); may put other messages into `extra`.
        self.on_frame: Callable[[pb.Frame], pb.Frame | None] = lambda frame: frame
        self.extra: queue.SimpleQueue[pb.ServerMessage | None] = queue.SimpleQueue()
        self.paused = threading.Event()
        #: Frames of a stream after which `paused` is set (-1: never): what is in hand then does not depend on timing.
        self.pause_after = -1
        self._server: Any = None
        self._ended = threading.Event()

    # ---- the process ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A new session: new arena, new socket, new token."""
        self.session = uuid.uuid4().hex
        self.token = uuid.uuid4().hex * 2
        self.path = self.folder / f"arena-{self.session}"
        size = HEADER_BYTES + self.slots * SLOT
        header = struct.pack("<8sIIQQ16s", MAGIC, 1, self.slots, SLOT, 3, bytes.fromhex(self.session))
        self.path.write_bytes(header.ljust(size, b"\0"))
        self.memory = np.memmap(self.path, dtype=np.uint8, mode="r+")
        (self.folder / "token").write_text(self.token)
        (self.folder / "feed.sock").unlink(missing_ok=True)
        self._ended = threading.Event()
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        rpc.add_FeedServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.folder / 'feed.sock'}")
        self._server.start()

    def stop(self) -> None:
        """Die."""
        self._ended.set()
        self._server.stop(0).wait(60)
        self.path.unlink(missing_ok=True)
        (self.folder / "feed.sock").unlink(missing_ok=True)

    # ---- calls ------------------------------------------------------------------------------------------------------

    def Attach(self, request: pb.AttachRequest, context: Any) -> pb.AttachReply:
        self.attaches.append(request)
        if dict(context.invocation_metadata()).get("lanefeed-token") != self.token:
            refuse(context, grpc.StatusCode.UNAUTHENTICATED, "AuthError", "the token is wrong")
        self.on_attach(request, context)
        start = request.resume_at
        if request.state_json:
            from json import loads

            cursor = loads(request.state_json)["cursor"]
            start = cursor["epoch"] * self.info.steps_per_epoch + cursor["step"]
        self._start = start
        self._held = set(request.held) if request.session == self.session else set()
        reply = pb.AttachReply(
            session=self.session,
            arena_path=str(self.path),
            arena_bytes=len(self.memory),
            slot_bytes=SLOT,
            slots=list(range(self.slots)),
            stream_json=self.info.to_json(),
            start=start,
        )
        if self.last_commit is not None:
            reply.last_commit.CopyFrom(self.last_commit)
        return reply

    def Commit(self, request: pb.CommitRequest, context: Any) -> pb.CommitReply:
        reply = self.on_commit(request.commit, context)
        if reply is None:
            self.commits.append(request.commit)
            reply = pb.CommitReply(accepted=True)
        return reply

    def Stream(self, requests: Iterator[pb.ClientMessage], context: Any) -> Iterator[pb.ServerMessage]:
        begin = next(requests).begin
        assert begin.session == self.session
        free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(self.slots):
            if slot not in self._held:
                free.put(slot)
        gone = threading.Event()
        context.add_callback(gone.set)
        threading.Thread(target=self._read, args=(requests, free, gone), daemon=True).start()
        at, sequence = self._start, 0
        while not gone.is_set() and not self._ended.is_set():
            try:
                message = self.extra.get_nowait()
                if message is None:
                    return
                yield message
                continue
            except queue.Empty:
                pass
            if self.paused.is_set():
                gone.wait(0.01)
                continue
            if at >= self.info.total_steps:
                yield pb.ServerMessage(end=True)
                while not gone.wait(0.01) and not self._ended.is_set():
                    pass
                return
            try:
                slot = free.get(timeout=0.01)
            except queue.Empty:
                continue
            frame = self._fill(slot, at, sequence)
            at, sequence = at + frame.steps, sequence + 1
            changed = self.on_frame(frame)
            if changed is not None:
                yield pb.ServerMessage(frames=[changed])
            if sequence == self.pause_after:
                self.paused.set()

    def _read(
        self, requests: Iterator[pb.ClientMessage], free: "queue.SimpleQueue[int]", gone: threading.Event
    ) -> None:
        try:
            for message in requests:
                self.progress.append(message.progress)
                for slot in message.progress.released:
                    start = HEADER_BYTES + slot * SLOT
                    self.memory[start : start + SLOT] = 0xEE
                    free.put(slot)
        except Exception:  # gRPC raises a bare Exception when the call is over
            return
        finally:
            gone.set()

    def _fill(self, slot: int, at: int, sequence: int) -> pb.Frame:
        epoch, step = divmod(at, self.info.steps_per_epoch)
        count = min(self.frame_steps, self.info.steps_per_epoch - step)
        ids = np.stack([self.lanes.batch(epoch, s)[0] for s in range(step, step + count)])
        start = HEADER_BYTES + slot * SLOT
        _, frame = pack(self.table, ids, None, lambda n: self.memory[start : start + n])
        self.memory[start : start + 24] = np.frombuffer(struct.pack("<QQQ", 2, sequence, at), np.uint8)
        frame.slot, frame.sequence, frame.first_step, frame.epoch, frame.global_samples = slot, sequence, at, epoch, 4
        return frame

    def expected(self) -> list[list[int]]:
        """Ids of every batch of the stream."""
        spe = self.info.steps_per_epoch
        return [self.lanes.batch(e, s)[0].tolist() for e in range(self.info.epochs) for s in range(spe)]


def refuse(context: Any, code: grpc.StatusCode, kind: str, text: str) -> None:
    """End a call as a sidecar does."""
    if kind:
        context.set_trailing_metadata((("lanefeed-error", kind),))
    context.abort(code, text)
