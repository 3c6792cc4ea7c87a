"""From one `start` of the stream to the next: sessions one after another, in one background thread.

Made by the client's feed. The thread reads what comes as messages (events, and frames that the board has no room for),
notices that a session is lost, and attaches again at the step after the last frame that was received. Frames on the
board pass it by: see `inbox`.
"""

import logging
import threading
from typing import TYPE_CHECKING

import grpc

from lanefeed._client.feed import End, Failed, Reporter, StopAt
from lanefeed._client.inbox import Inbox
from lanefeed._client.patience import BACKOFF
from lanefeed._client.rpc import NotReady, explain, fatal
from lanefeed._client.session import Session, to_commit
from lanefeed.errors import LanefeedError, SidecarError, by_kind
from lanefeed_core.proto import lanefeed_pb2 as pb

if TYPE_CHECKING:
    from lanefeed._client.client import GrpcFeed

__all__ = ["Life"]

log = logging.getLogger("lanefeed")


class Life:
    """From one `start` to the next, or to the end: sessions one after another, one thread."""

    def __init__(self, feed: "GrpcFeed", report: Reporter, start: int) -> None:
        """Not begun; `start`: total step of the first frame."""
        self._feed = feed
        self._report = report
        self.inbox = Inbox(feed.leases, start, self._doubt)
        self._closing = threading.Event()
        self._session: Session | None = None
        self.failed: LanefeedError | None = None
        self._thread = threading.Thread(target=self._run, name="lanefeed-client", daemon=True)

    def begin(self, session: Session) -> None:
        """Start the thread on an attached session."""
        self._session = session
        self._feed.use(session)
        self.inbox.attach(session)
        self._thread.start()

    def _run(self) -> None:
        try:
            barren = 0
            while not self._closing.is_set():
                barren = 0 if self._read_session() else barren + 1
                if not self._closing.wait(BACKOFF[min(barren, len(BACKOFF) - 1)]):
                    self._reattach()
        except LanefeedError as error:
            self._fail(error)
        except Exception as error:  # the thread's edge: a bug here must reach the trainer, not only stderr
            log.exception("the client's thread failed")
            self._fail(
                SidecarError(f"the trainer's client failed: {error!r}; this is a bug of Lanefeed, please report it")
            )

    def _fail(self, error: LanefeedError) -> None:
        self.inbox.detach()
        if self._closing.is_set():
            return
        self.failed = error
        self._feed.use(None)
        self.inbox.put(Failed(error))

    def _read_session(self) -> bool:
        """Read until the session is lost; True if a message came."""
        session, came = self._session, False
        if session is None:
            return came
        try:
            for message in session.stream(self._feed.leases, self._report):
                self._take(session, message)
                came = True
            why = "the sidecar ended the stream"
        except grpc.RpcError as error:
            final = fatal(error)
            if final is not None and not self._closing.is_set():
                raise final from None
            why = explain(error)
        except NotReady as error:
            why = str(error)
        if not self._closing.is_set():
            word = f"session {session.id[:8]} was lost ({why})"
            self._feed.note(word)
            log.warning("rank %d: %s; attaching again", self._feed.target.rank, word)
        self._feed.use(None)
        # What it left on the board stays as it is until the next attach.
        before = self.inbox.next_step
        self.inbox.detach()
        session.close(self._feed.leases)
        return came or self.inbox.next_step > before

    def _doubt(self, why: str) -> None:
        """The board cannot be believed: attach again, and have frames as messages."""
        session = self._session
        log.warning("rank %d: %s; attaching again without shared signals", self._feed.target.rank, why)
        self._feed.boards = False
        if session is not None:
            session.cancel()

    def _take(self, session: Session, message: pb.ServerMessage) -> None:
        feed = self._feed
        feed.hear("a message came")
        if message.HasField("stop_at"):
            feed.stop_at = StopAt(message.stop_at.step, message.stop_at.reason)
        if message.HasField("committed"):
            feed.last_commit = to_commit(message.committed)
        for frame in message.frames:
            self.inbox.frame(session, frame)
        if message.end:
            self.inbox.put(End())
            feed.note(f"the stream ended at step {self.inbox.next_step}")
        if message.HasField("failure"):
            failure = by_kind(message.failure.kind, message.failure.message)
            if not message.failure.retryable:
                raise failure
            raise NotReady(str(failure))

    def _reattach(self) -> None:
        step = self.inbox.next_step
        request = pb.AttachRequest(resuming=True, resume_at=step)
        session, hello = self._feed.attach(request, self._closing)
        if hello.start != step:
            session.close()
            raise SidecarError(f"the sidecar starts again at step {hello.start} and step {step} is next")
        self._session = session
        if self._closing.is_set():
            session.close()
            return
        log.info("attached again, session %s, from step %d on", session.id[:8], step)
        self._feed.use(session)
        self.inbox.attach(session)

    def end(self) -> None:
        """Stop the thread; returns within about a second."""
        self._closing.set()
        self._feed.use(None)
        if self._session is not None:
            self._session.finish(self._feed.leases)
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=2.0)
