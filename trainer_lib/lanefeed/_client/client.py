"""The gRPC client of one rank: attaches, commits, and knows what is known; a `life` reads the stream meanwhile.

Used by `Stream` and `Loader` through the `Feed` protocol. A life tries for ever to come back after a lost session while
the loader is open: whoever waits for something (the loader for a frame, a commit for its answer) has the deadline.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from lanefeed._arena.former import FormerArenas
from lanefeed._arena.leases import Leases
from lanefeed._arena.mapping import Arena
from lanefeed._client.feed import Commit, Events, Failed, Hello, Reporter, StopAt
from lanefeed._client.life import Life
from lanefeed._client.patience import BACKOFF, WORD_SECONDS, Patience
from lanefeed._client.rpc import NotReady, explain, fatal
from lanefeed._client.session import Session
from lanefeed._version import VERSION
from lanefeed.errors import AuthError, CommitRefused, LanefeedError, SidecarError, SidecarLost
from lanefeed_core import futex
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
        self.target = target
        self._on_arena = on_arena
        self.leases = Leases()
        self._former = FormerArenas()
        self._changed = threading.Condition()
        self._session: Session | None = None
        self._life: Life | None = None
        self._report: Reporter | None = None
        self._last_session = ""
        #: Number of the attach that was tried last.
        self._turn = 0
        self._heard = time.monotonic()
        self._word = "nothing was received yet"
        self._word_at = 0.0
        #: Whether frames may come over the board.
        self.boards = futex.available()
        self.stop_at: StopAt | None = None
        self.last_commit: Commit | None = None

    @property
    def inbox(self) -> Events:
        """Events of the current life."""
        if self._life is None:
            raise SidecarError("the stream was not started")
        return self._life.inbox

    def heard(self) -> tuple[float, str]:
        """When a message came last, and what is known."""
        frame = self._life.inbox.heard() if self._life is not None else (0.0, "")
        return max(self._heard, frame[0]), frame[1] if frame[0] > self._word_at else self._word

    def wake(self, error: LanefeedError) -> None:
        """A failure for whoever waits on the inbox."""
        if self._life is not None:
            self._life.inbox.put(Failed(error))

    def nudge(self) -> None:
        """Wake the writer: it sends progress."""
        self.leases.released.put(None)

    # ---- attaching ---------------------------------------------------------------------------------------------

    def peek(self) -> Hello:
        """Ask for the stream and the last commit."""
        session, hello = self.attach(pb.AttachRequest(peek=True))
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
        session, hello = self.attach(request)
        self._life = Life(self, report, hello.start)
        self._life.begin(session)
        return hello

    def attach(self, request: pb.AttachRequest, closing: threading.Event | None = None) -> tuple[Session, Hello]:
        """Attach within the deadline, or with `closing` until that is set."""
        target = self.target
        request.protocol = PROTOCOL_VERSION
        request.rank, request.world = target.rank, target.world
        request.plan_generation, request.pid, request.version = target.plan_generation, os.getpid(), VERSION
        # A life's own reconnect has no deadline of its own: whoever waits has one. Its `closing` ends it.
        patience = Patience(target, forever=closing is not None)
        closing = closing or threading.Event()
        while True:
            self._turn += 1
            if not request.peek:
                request.session, request.board = self._last_session, self.boards
                del request.held[:]
                request.held.extend(self.leases.carry(self._last_session, self._turn))
            try:
                return self._try(request, patience, closing)
            except NotReady as error:
                self.note(str(error))
                self._former.look(self.leases)
                patience.pause(self._word, closing)
            except AuthError:
                if patience.tries >= _AUTH_TRIES:
                    raise
                patience.pause("the sidecar refused the token", closing)

    def _try(self, request: pb.AttachRequest, patience: Patience, closing: threading.Event) -> tuple[Session, Hello]:
        folder = self.target.folder()
        session = Session(folder, self.target.rank, self._turn, self._former)
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
                self.leases.settle(session.id, session.turn, session.board)
                if self._on_arena is None:
                    self._former.follow(session.arena, reply.slots, self.leases)
                else:
                    # Frames are copied to the device at once, so a former arena goes at once too.
                    self._on_arena(session.arena)
            self.hear(f"attached to session {session.id[:8]}")
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
                self.note(f"commit of step {commit.stop}: {explain(error)}")
                time.sleep(BACKOFF[1])
                continue
            if reply is None:
                continue
            if not reply.accepted:
                raise CommitRefused(reply.reason or f"the commit of step {commit.stop} was refused")
            return

    def _commit(self, session: Session, commit: pb.RankCommit, end: float) -> pb.CommitReply | None:
        """One try, with a word every 10 seconds; None where the session was closed meanwhile."""
        future = session.commit(commit, self.target.plan_generation, max(0.1, end - time.monotonic()))
        if future is None:
            return None
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

    def hear(self, word: str) -> None:
        """A message came."""
        self.note(word)
        self._heard = self._word_at

    def note(self, word: str) -> None:
        """What is known now, for whoever waits too long."""
        self._word, self._word_at = word, time.monotonic()

    def use(self, session: Session | None) -> None:
        """Commits go to this session from now on."""
        with self._changed:
            self._session = session
            self._changed.notify_all()

    # ---- the end -----------------------------------------------------------------------------------------------

    def _end_life(self) -> None:
        life, self._life = self._life, None
        if life is not None:
            life.inbox.discard()
            life.end()

    def close(self) -> None:
        """End the life; mapped memory stays until its last view dies."""
        self._end_life()
