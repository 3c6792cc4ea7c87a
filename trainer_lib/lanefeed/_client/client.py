"""The gRPC client of one rank: attaches, reads the stream in one background thread, comes back after a lost session.

Used by `Stream` and `Loader` through the `Feed` protocol. The thread tries for ever while the loader is open: whoever
waits for something (the loader for a frame, a commit for its answer) has the deadline.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import grpc

from lanefeed._arena.former import FormerArenas
from lanefeed._arena.leases import Leases
from lanefeed._arena.mapping import Arena
from lanefeed._client.feed import Commit, End, Event, Failed, FrameCame, Hello, Reporter, StopAt
from lanefeed._client.patience import BACKOFF, WORD_SECONDS, Patience
from lanefeed._client.rpc import NotReady, explain, fatal
from lanefeed._client.session import Session, to_commit
from lanefeed._version import VERSION
from lanefeed.errors import AuthError, CommitRefused, LanefeedError, SidecarError, SidecarLost, by_kind
from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.wire import PROTOCOL_VERSION

__all__ = ["GrpcFeed", "Target"]

log = logging.getLogger("lanefeed")

#: A token is read again this often before it is believed to be wrong: a new sidecar may just be writing its own.
_AUTH_TRIES = 4


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to attach to, and as whom."""

    run_dir: Path | None
    rank: int
    world: int
    plan_generation: int
    attach_seconds: float
    #: Called before each try instead: starts or checks a sidecar on this machine and says where its run folder is;
    #: raises where there is no hope.
    ensure: Callable[[], Path] | None = None

    def folder(self) -> Path:
        """The run folder of the sidecar to attach to."""
        if self.ensure is not None:
            return self.ensure()
        if self.run_dir is None:
            raise SidecarError("there is no run folder")
        return self.run_dir


class GrpcFeed:
    """Feed over gRPC. `start` may be called again (another state): the former life ends first."""

    def __init__(self, target: Target, on_arena: Callable[[Arena], None] | None = None) -> None:
        """No I/O yet. `on_arena` is told of each arena that is mapped (a device may pin it)."""
        self._target = target
        self._on_arena = on_arena
        self._leases = Leases()
        self._former = FormerArenas()
        self._changed = threading.Condition()
        self._session: Session | None = None
        self._life: _Life | None = None
        self._report: Reporter | None = None
        self._last_session = ""
        #: Number of the attach that was tried last.
        self._turn = 0
        self._heard = time.monotonic()
        self._word = "nothing was received yet"
        self.stop_at: StopAt | None = None
        self.last_commit: Commit | None = None

    @property
    def inbox(self) -> "SimpleQueue[Event]":
        """Events of the current life."""
        if self._life is None:
            raise SidecarError("the stream was not started")
        return self._life.inbox

    def heard(self) -> tuple[float, str]:
        """When a message came last, and what is known."""
        return self._heard, self._word

    def wake(self, error: LanefeedError) -> None:
        """A failure for whoever waits on the inbox."""
        if self._life is not None:
            self._life.inbox.put(Failed(error))

    def nudge(self) -> None:
        """Wake the writer: it sends progress."""
        self._leases.released.put(None)

    # ---- attaching ---------------------------------------------------------------------------------------------

    def peek(self) -> Hello:
        """Ask for the stream and the last commit."""
        session, hello = self._attach(pb.AttachRequest(peek=True))
        session.close()
        self.last_commit = hello.last_commit
        return hello

    def start(self, state_json: str, report: Reporter) -> Hello:
        """Attach with a state and begin to read."""
        self._end_life()
        hello = self._begin(pb.AttachRequest(state_json=state_json), report)
        self.last_commit = hello.last_commit
        self._report = report
        return hello

    def seek(self, step: int) -> None:
        """Attach again as the same trainer, at `step`."""
        if self._report is None:
            raise SidecarError("the stream was not started")
        self._end_life()
        self._begin(pb.AttachRequest(resuming=True, resume_at=step), self._report)

    def _begin(self, request: pb.AttachRequest, report: Reporter) -> Hello:
        session, hello = self._attach(request)
        self._life = _Life(self, report, hello.start)
        self._life.begin(session)
        return hello

    def _attach(self, request: pb.AttachRequest, closing: threading.Event | None = None) -> tuple[Session, Hello]:
        """Attach within the deadline, or with `closing` until that is set."""
        target = self._target
        request.protocol = PROTOCOL_VERSION
        request.rank, request.world = target.rank, target.world
        request.plan_generation, request.pid, request.version = target.plan_generation, os.getpid(), VERSION
        # A life's own reconnect has no deadline of its own: whoever waits has one. Its `closing` ends it.
        patience = Patience(target, forever=closing is not None)
        closing = closing or threading.Event()
        while True:
            self._turn += 1
            if not request.peek:
                request.session = self._last_session
                del request.held[:]
                request.held.extend(self._leases.carry(self._last_session, self._turn))
            try:
                return self._try(request, patience, closing)
            except NotReady as error:
                self._word = str(error)
                self._former.look(self._leases)
                patience.pause(self._word, closing)
            except AuthError:
                if patience.tries >= _AUTH_TRIES:
                    raise
                patience.pause("the sidecar refused the token", closing)

    def _try(self, request: pb.AttachRequest, patience: Patience, closing: threading.Event) -> tuple[Session, Hello]:
        folder = self._target.folder()
        session = Session(folder, self._target.rank, self._turn, self._former)
        kept = False
        try:
            future = session.attach(request, patience.left)
            while True:
                try:
                    reply = future.result(timeout=0.5)
                    break
                except grpc.FutureTimeoutError:
                    patience.say("the sidecar has not answered the attach yet")
                    if closing.is_set():
                        raise NotReady("the loader was closed") from None
            hello = session.attached(reply, peek=request.peek)
            kept = True
            if session.arena is not None:
                self._last_session = session.id
                if self._on_arena is None:
                    self._former.follow(session.arena, reply.slots, self._leases)
                else:
                    # Frames are copied to the device at once, so a former arena goes at once too.
                    self._on_arena(session.arena)
            self._hear(f"attached to session {session.id[:8]}")
            return session, hello
        except grpc.RpcError as error:
            final = fatal(error)
            if final is not None:
                raise final from None
            raise NotReady(f"the sidecar in {folder} does not answer ({explain(error)})") from None
        except grpc.FutureCancelledError:
            raise NotReady("the attach was cancelled") from None
        finally:
            if not kept:
                session.close()

    # ---- commits -----------------------------------------------------------------------------------------------

    def commit(self, commit: pb.RankCommit, seconds: float) -> None:
        """Commit over the current session, or the next one if it is lost meanwhile: repeats change nothing."""
        end = time.monotonic() + seconds
        while True:
            session = self._wait_session(commit.stop, end, seconds)
            try:
                reply = self._commit(session, commit, end)
            except grpc.RpcError as error:
                final = fatal(error)
                with self._changed:
                    same = self._session is session
                if final is not None and same:
                    raise final from None
                self._word = f"commit of step {commit.stop}: {explain(error)}"
                time.sleep(BACKOFF[1])
                continue
            if reply is None:
                continue
            if not reply.accepted:
                raise CommitRefused(reply.reason or f"the commit of step {commit.stop} was refused")
            return

    def _commit(self, session: Session, commit: pb.RankCommit, end: float) -> pb.CommitReply | None:
        """One try, with a word every 10 seconds; None where the session was closed meanwhile."""
        future = session.commit(commit, self._target.plan_generation, max(0.1, end - time.monotonic()))
        while True:
            try:
                reply: pb.CommitReply = future.result(timeout=WORD_SECONDS)
                return reply
            except grpc.FutureCancelledError:
                return None
            except grpc.FutureTimeoutError:
                log.warning("waiting for the sidecar to take the commit of step %d: it does not answer", commit.stop)

    def _wait_session(self, step: int, end: float, seconds: float) -> Session:
        with self._changed:
            while True:
                if self._session is not None:
                    if time.monotonic() < end:
                        return self._session
                elif self._life is None or self._life.failed is not None:
                    cause = self._life.failed if self._life else None
                    raise SidecarLost(f"step {step} cannot be committed: {cause or 'the stream was not started'}")
                if time.monotonic() >= end:
                    raise SidecarLost(
                        f"the commit of step {step} was not confirmed within {seconds:g} s; {self._word}. The "
                        "checkpoint "
                        "itself is fine: a restart may load it"
                    )
                if not self._changed.wait(min(WORD_SECONDS, max(0.01, end - time.monotonic()))):
                    log.warning("waiting for the sidecar to take the commit of step %d: %s", step, self._word)

    # ---- used by the life's thread -----------------------------------------------------------------------------

    def _hear(self, word: str) -> None:
        self._heard, self._word = time.monotonic(), word

    def _use(self, session: Session | None) -> None:
        with self._changed:
            self._session = session
            self._changed.notify_all()

    # ---- the end -----------------------------------------------------------------------------------------------

    def _end_life(self) -> None:
        life, self._life = self._life, None
        if life is not None:
            life.end()

    def close(self) -> None:
        """End the life; mapped memory stays until its last view dies."""
        self._end_life()


class _Life:
    """From one `start` to the next, or to the end: sessions one after another, one thread."""

    def __init__(self, feed: GrpcFeed, report: Reporter, start: int) -> None:
        self._feed = feed
        self._report = report
        #: Total step after the last frame that was received.
        self._next = start
        self._closing = threading.Event()
        self._session: Session | None = None
        self.inbox: SimpleQueue[Event] = SimpleQueue()
        self.failed: LanefeedError | None = None
        self._thread = threading.Thread(target=self._run, name="lanefeed-client", daemon=True)

    def begin(self, session: Session) -> None:
        """Start the thread on an attached session."""
        self._session = session
        self._feed._use(session)
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
        if not self._closing.is_set():
            self.failed = error
            self._feed._use(None)
            self.inbox.put(Failed(error))

    def _read_session(self) -> bool:
        """Read until the session is lost; True if a message came."""
        session, came = self._session, False
        if session is None:
            return came
        try:
            for message in session.stream(self._feed._leases, self._report):
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
            self._feed._word = f"session {session.id[:8]} was lost ({why})"
            log.warning("rank %d: %s; attaching again", self._feed._target.rank, self._feed._word)
        self._feed._use(None)
        session.close(self._feed._leases)
        return came

    def _take(self, session: Session, message: pb.ServerMessage) -> None:
        feed = self._feed
        feed._hear("a message came")
        if message.HasField("stop_at"):
            feed.stop_at = StopAt(message.stop_at.step, message.stop_at.reason)
        if message.HasField("committed"):
            feed.last_commit = to_commit(message.committed)
        for frame in message.frames:
            self._take_frame(session, frame)
        if message.end:
            feed._word = f"the stream ended at step {self._next}"
            self.inbox.put(End())
        if message.HasField("failure"):
            failure = by_kind(message.failure.kind, message.failure.message)
            if not message.failure.retryable:
                raise failure
            raise NotReady(str(failure))

    def _take_frame(self, session: Session, frame: pb.Frame) -> None:
        lease = self._feed._leases.add(session.id, frame.slot, session.turn)
        if frame.first_step != self._next or not frame.steps:
            raise SidecarError(
                f"the sidecar sent steps {frame.first_step}..{frame.first_step + frame.steps} and step {self._next} is "
                "next: steps were left out or sent twice; this is a bug of Lanefeed, please report it"
            )
        if session.arena is None:
            raise SidecarError("a frame came before the arena was mapped")
        base = session.arena.slot(frame.slot, frame.sequence, frame.first_step)
        lease.watch(base)
        self._next += frame.steps
        self._feed._hear(f"frame {frame.sequence} up to step {self._next} was the last to come")
        self.inbox.put(FrameCame(frame, base, lease))

    def _reattach(self) -> None:
        request = pb.AttachRequest(resuming=True, resume_at=self._next)
        session, hello = self._feed._attach(request, self._closing)
        if hello.start != self._next:
            session.close()
            raise SidecarError(f"the sidecar starts again at step {hello.start} and step {self._next} is next")
        self._session = session
        if self._closing.is_set():
            session.close()
            return
        log.info("attached again, session %s, from step %d on", session.id[:8], self._next)
        self._feed._use(session)

    def end(self) -> None:
        """Stop the thread; returns within about a second."""
        self._closing.set()
        self._feed._use(None)
        if self._session is not None:
            self._session.finish(self._feed._leases)
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=2.0)
