"""One session as a rank sees it: attached over one channel, its arena mapped, one stream.

`GrpcFeed` makes one after another. A session reads messages for its thread and writes progress from gRPC's; it decides
nothing about reconnecting.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

from lanefeed._arena.board import Board
from lanefeed._arena.former import FormerArenas
from lanefeed._arena.leases import Leases
from lanefeed._arena.mapping import Arena
from lanefeed._client.feed import Commit, Hello, Reporter
from lanefeed._client.rpc import open_channel, token_metadata
from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.proto.lanefeed_pb2_grpc import FeedStub
from lanefeed_core.wire import StreamInfo

__all__ = ["IDLE_REPORT_SECONDS", "Session", "to_commit"]

#: Progress is sent at least so often.
IDLE_REPORT_SECONDS = 1.0
#: How long closing waits for the last progress to leave.
FLUSH_SECONDS = 0.5


class Session:
    """A channel to the sidecar, and after `attached` the session behind it."""

    def __init__(self, run_dir: Path, rank: int, turn: int, former: FormerArenas) -> None:
        """Open a channel for the attach number `turn`. Raises NotReady while there is no socket or token.

        `former` is told of leases of other sessions that have ended.
        """
        self._former = former
        self._metadata = token_metadata(run_dir)
        self._channel = open_channel(run_dir)
        self._stub: Any = FeedStub(self._channel)
        self._rank = rank
        self.turn = turn
        self._call: Any = None
        self._open = True
        self._finishing = False
        self.id = ""
        self.arena: Arena | None = None
        #: Where frames come from, and slots go back; None: by messages.
        self.board: Board | None = None

    def attach(self, request: pb.AttachRequest, seconds: float) -> Any:
        """A future of the AttachReply."""
        return self._stub.Attach.future(request, timeout=seconds, metadata=self._metadata)

    def attached(self, reply: pb.AttachReply, *, peek: bool) -> Hello:
        """Take the reply; map the arena, unless it was a peek."""
        self.id = reply.session
        if not peek:
            self.arena = Arena(reply.arena_path, reply.arena_bytes, reply.slot_bytes, reply.session)
            if reply.board_life:
                self.board = Board(self.arena, reply.board_offset, reply.slots, reply.board_life)
        last = to_commit(reply.last_commit) if reply.HasField("last_commit") else None
        return Hello(StreamInfo.from_json(reply.stream_json), reply.start, len(reply.slots), reply.session, last)

    def stream(self, leases: Leases, report: Reporter) -> Iterator[pb.ServerMessage]:
        """The stream's messages, until it ends or raises grpc.RpcError. Progress goes up from gRPC's own thread.

        No message comes where the session was closed meanwhile.
        """
        try:
            self._call = self._stub.Stream(self._upstream(leases, report), metadata=self._metadata)
        except ValueError:
            # gRPC's word for a channel that is closed.
            if self._open:
                raise
            return iter(())
        if not self._open:
            self._call.cancel()
        messages: Iterator[pb.ServerMessage] = self._call
        return messages

    def _upstream(self, leases: Leases, report: Reporter) -> Iterator[pb.ClientMessage]:
        yield pb.ClientMessage(begin=pb.Begin(session=self.id, rank=self._rank))
        yield pb.ClientMessage(progress=report())
        while True:
            items = []
            try:
                items.append(leases.released.get(timeout=IDLE_REPORT_SECONDS))
                while True:
                    items.append(leases.released.get_nowait())
            except Empty:
                pass
            if not self._open:
                # Another session's writer reads the queue from here on.
                for item in items:
                    leases.released.put(item)
                return
            last = self._finishing
            for item in items:
                if item is not None and item.session != self.id:
                    self._former.released(item.session, item.slot, leases)
            progress = report()
            if self.board is not None:
                self.board.say(consumed=progress.consumed)
            progress.released.extend(i.slot for i in items if i and (i.session, i.turn) == (self.id, self.turn))
            yield pb.ClientMessage(progress=progress)
            if last:
                return

    def commit(self, commit: pb.RankCommit, plan_generation: int, seconds: float) -> Any:
        """One try: a future of the CommitReply, or None where the session was closed meanwhile."""
        request = pb.CommitRequest(session=self.id, rank=self._rank, plan_generation=plan_generation, commit=commit)
        try:
            return self._stub.Commit.future(request, timeout=seconds, metadata=self._metadata)
        except ValueError:
            # gRPC's word for a channel that is closed.
            if self._open:
                raise
            return None

    def cancel(self) -> None:
        """End the stream: whoever reads it attaches again."""
        if self._call is not None:
            self._call.cancel()

    def finish(self, leases: Leases) -> None:
        """Send a last progress and half-close, let the sidecar end the stream, then close.

        Takes `FLUSH_SECONDS` at most. Cancelling at once could overtake the progress.
        """
        call = self._call
        if call is not None and self._open and call.is_active():
            self._finishing = True
            leases.released.put(None)
            end = time.monotonic() + FLUSH_SECONDS
            while call.is_active() and time.monotonic() < end:
                time.sleep(0.002)
        self.close(leases)

    def close(self, leases: Leases | None = None) -> None:
        """Cancel the stream and close the channel; with `leases` its writer is woken so that it leaves at once."""
        self._open = False
        if leases is not None:
            leases.released.put(None)
        if self._call is not None:
            self._call.cancel()
        self._channel.close()


def to_commit(message: pb.Committed) -> Commit:
    """The message's value."""
    return Commit(message.step, message.name, message.plan_generation)
