"""All lives of the pod's ranks, and what concerns all of them: stop, fence, failure, the last commit.

The service calls it for each RPC, the reporter for its reports and answers, the supervisor to end it. It decides who
may attach (with `attach` and `starts`) and hands the rank's slots from one life to the next; it never touches data.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from lanefeed_core.manifest import Manifest
from lanefeed_core.podconfig import PodConfig
from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_sidecar.arena import Arena, RunFolder
from lanefeed_sidecar.arena.board import boards
from lanefeed_sidecar.errors import CommitRefused, PlanMismatch, SidecarError, Unavailable
from lanefeed_sidecar.feed import attach
from lanefeed_sidecar.feed.agree import REASON, stop_step
from lanefeed_sidecar.feed.life import Life
from lanefeed_sidecar.feed.messages import failure_message, stream_info
from lanefeed_sidecar.feed.seams import FeedEngine
from lanefeed_sidecar.feed.starts import Starts
from lanefeed_sidecar.feed.totals import RankTotals
from lanefeed_sidecar.pipeline.stats import Stats

__all__ = ["Hub"]

log = logging.getLogger(__name__)

#: How long a former life's filler may take to let go of its slot.
JOIN_SECONDS = 10.0
MAX_FAILURES = 16
#: A step that we agreed on ourselves holds so long: by then a pod that is evicted is gone.
OUR_STOP_SECONDS = 30.0


class Hub:
    """The ranks of one pod in one session. Thread safe."""

    def __init__(
        self,
        config: PodConfig,
        manifest: Manifest,
        engine: FeedEngine,
        arena: Arena,
        folder: RunFolder,
        *,
        session: str,
        stats: Stats,
    ) -> None:
        """No rank is attached."""
        self.config, self.engine, self.arena, self.session, self.stats = config, engine, arena, session, stats
        self.digest = manifest.digest
        self.ranks = config.plan.ranks(config.pod_index)
        #: Called, outside of the lock, when something should be reported at once.
        self.on_news: Callable[[], None] = lambda: None
        #: Called with an error that no restart of the trainer mends.
        self.on_fatal: Callable[[SidecarError], None] = lambda _error: None
        #: Called with (rank, start, resuming) when a life begins.
        self.on_attach: Callable[[int, int, bool], None] = lambda _rank, _start, _resuming: None
        #: Whether a step is a commit of the job, besides `last_commit`.
        self.is_commit: Callable[[int], bool] = lambda _step: False
        self._lock = threading.RLock()
        self._gates = {rank: threading.Lock() for rank in self.ranks}
        self._starts = Starts(folder.path, config.plan.generation)
        self._lives: dict[int, Life] = {}
        self._boards = boards(arena, self.ranks)
        self._totals = {rank: RankTotals() for rank in self.ranks}
        self._failures: list[pb.Failure] = []
        self._refused: list[str] = []
        self._stop: pb.StopAt | None = None
        self._stop_is_ours = False
        #: When it was heard of first, by the monotonic clock.
        self.stop_heard: float | None = None
        self._left = False
        self._barred: SidecarError | None = None
        self.fenced = False
        self._commits = {config.last_commit_step} - {0}
        self._last_commit: pb.Committed | None = None
        if config.last_commit_step:
            self._last_commit = pb.Committed(
                step=config.last_commit_step,
                name=config.last_commit_name,
                plan_generation=config.last_commit_generation,
            )

    # ---- attach ------------------------------------------------------------------------------------------------

    def attach(self, request: pb.AttachRequest) -> pb.AttachReply:
        """Handshake of a rank; begins its life. Raises SidecarError for whatever does not fit."""
        attach.check_protocol(request)
        attach.check_place(request, self.config)
        if request.peek:
            self._check_open()
            return self._reply(request.rank, 0)
        start = attach.start_of(request, self.config, self.engine.lanes, self.digest)
        rank = request.rank
        gate = self._gates[rank]
        if not gate.acquire(timeout=JOIN_SECONDS):
            raise Unavailable(f"rank {rank} is being attached by another process: waited {JOIN_SECONDS} s for it")
        try:
            self._admit(request, start)
            life = self._replace(request, start)
        finally:
            gate.release()
        log.info(
            "rank %d attached at step %d (%s, pid %d, lanefeed %s)",
            rank,
            start,
            attach.how(request),
            request.pid,
            request.version,
        )
        self.on_news()
        return self._reply(rank, start, life.board_life)

    def _admit(self, request: pb.AttachRequest, start: int) -> None:
        rank = request.rank
        with self._lock:
            self._check_open()
            self._forget_our_stop()
            stop = self._stop
            if stop is not None and not request.resuming and (self._left or start >= stop.step):
                raise Unavailable(
                    f"stopping ({stop.reason or 'asked by the control plane'}): ranks leave at step {stop.step} and "
                    "are not attached again; wait for the next plan"
                )
            old = self._lives.get(rank)
            if request.resuming:
                attach.check_not_replaced(request, self.session, old)
            else:
                reached = max(self._totals[rank].reached, old.delivered) if old else None
                self._starts.check(rank, start, reached=reached, committed=self._is_commit)
                self._starts.record(rank, start)

    def _replace(self, request: pb.AttachRequest, start: int) -> Life:
        """End the rank's former life, then begin the new one in its slots."""
        rank = request.rank
        old = self._lives.get(rank)
        held = set(request.held) if request.session == self.session else set()
        slots = self.slots(rank)
        if not held <= set(slots):
            raise PlanMismatch(
                f"rank {rank} holds slots {sorted(held - set(slots))}, which are not its own: it has {list(slots)}"
            )
        if old is not None:
            old.close(Unavailable(f"rank {rank} was attached again by process {request.pid}"))
            if not old.join(JOIN_SECONDS):
                raise Unavailable(f"rank {rank}: its former stream still fills a slot after {JOIN_SECONDS} s")
        self.engine.seek(rank, start)
        life = Life(
            rank,
            start,
            from_state=bool(request.state_json),
            resuming=request.resuming,
            consumed=min(old.consumed, start) if old is not None else 0,
            pid=request.pid,
            slots=slots,
            held=held,
            arena=self.arena,
            engine=self.engine,
            stats=self.stats,
            on_error=self._filler_failed,
            board=self._boards.get(rank) if request.board else None,
        )
        with self._lock:
            if old is not None:
                self._add_totals(old, life, again=old.pid == request.pid)
            self._totals[rank].attaches += 1
            self._lives[rank] = life
            for event in self._standing():
                life.tell(event)
            barred = self._barred
        self.on_attach(rank, start, request.resuming)
        if barred is not None:
            life.close(barred)
            raise barred
        life.begin()
        return life

    def _check_open(self) -> None:
        if self._barred is not None:
            raise self._barred

    def _standing(self) -> list[pb.ServerMessage]:
        """Events that a new stream must hear of."""
        found = [pb.ServerMessage(committed=self._last_commit)] if self._last_commit else []
        return found + ([pb.ServerMessage(stop_at=self._stop)] if self._stop else [])

    def _reply(self, rank: int, start: int, board_life: int = 0) -> pb.AttachReply:
        return pb.AttachReply(
            session=self.session,
            arena_path=str(self.arena.path),
            arena_bytes=self.arena.bytes,
            slot_bytes=self.arena.slot_bytes,
            slots=list(self.slots(rank)),
            stream_json=stream_info(self.config, self.engine, self.digest, rank).to_json(),
            start=start,
            last_commit=self._last_commit,
            board_offset=self.arena.board_offset(rank - self.ranks.start),
            board_life=board_life,
        )

    def slots(self, rank: int) -> range:
        """The rank's slots of the arena."""
        each = self.arena.slots // len(self.ranks)
        at = (rank - self.ranks.start) * each
        return range(at, at + each)

    def _add_totals(self, old: Life, life: Life, *, again: bool) -> None:
        """`again`: the same process, as far as is known, goes on counting from where it was."""
        if again:
            life.counts_on(old.counted)
        done = old.others if again else old.figures
        self._totals[old.rank] = self._totals[old.rank].with_life(done, old.delivered)

    # ---- streams -----------------------------------------------------------------------------------------------

    def open_stream(self, begin: pb.Begin) -> Life:
        """The life that a stream belongs to. Raises SidecarError where there is none for it."""
        with self._lock:
            life = self._lives.get(begin.rank)
            if begin.session != self.session or life is None or not life.alive:
                raise Unavailable(
                    f"session {begin.session or '(none)'} of rank {begin.rank} is gone (this is {self.session}): "
                    "attach again"
                )
            if life.streaming:
                raise PlanMismatch(
                    f"rank {begin.rank} has a stream already: one process per rank, one stream per process"
                )
            life.streaming = True
            return life

    def close_stream(self, life: Life) -> None:
        """The stream is over: what the trainer held is free, nothing else happens."""
        with self._lock:
            self._left |= self._stop is not None and life.alive and life.consumed >= self._stop.step
        life.close()
        self.on_news()

    # ---- what concerns all -------------------------------------------------------------------------------------

    def stop_at(self, stop: pb.StopAt, *, ours: bool = False) -> None:
        """Relay the control plane's wish that all ranks leave at one step. A step that we agreed on ourselves stays."""
        with self._lock:
            if self._stop == stop or self._stop_is_ours:
                return
            self._stop_is_ours = ours
            self._stop = pb.StopAt(step=stop.step, reason=stop.reason)
            self.stop_heard = time.monotonic() if self.stop_heard is None else self.stop_heard
            lives = list(self._lives.values())
        log.info("ranks leave at step %d (%s)", stop.step, stop.reason)
        for life in lives:
            life.tell(pb.ServerMessage(stop_at=stop))

    def stop_wanted(self) -> None:
        """A trainer was told to end. One step for all, where all are here; else it is the control plane's to say."""
        with self._lock:
            if self._stop is not None or self.config.plan.replicas > 1 or not self._lives:
                return
            step = stop_step((x.start, x.consumed, x.seconds) for x in self._lives.values())
        self.stop_at(pb.StopAt(step=step, reason=REASON), ours=True)

    def _forget_our_stop(self) -> None:
        """All ranks left at a step of ours, and the pod is still here: it was no eviction, training may go on."""
        streaming = any(life.streaming for life in self._lives.values())
        if self._stop_is_ours and not streaming and time.monotonic() - (self.stop_heard or 0.0) > OUR_STOP_SECONDS:
            self._stop, self._stop_is_ours, self._left, self.stop_heard = None, False, False, None

    def committed(self, last: pb.Committed) -> None:
        """Relay what the control plane accepted last."""
        with self._lock:
            if self._last_commit == last:
                return
            self._last_commit = pb.Committed(step=last.step, name=last.name, plan_generation=last.plan_generation)
            self._commits = set(sorted(self._commits | {last.step})[-256:])
            lives = list(self._lives.values())
        for life in lives:
            life.tell(pb.ServerMessage(committed=last))

    def _is_commit(self, step: int) -> bool:
        return step in self._commits or self.is_commit(step)

    def fence(self, reason: str) -> None:
        """This pod was replaced: nobody may train or commit here any more."""
        if not self.fenced:
            self.fenced = True
            self.bar(
                CommitRefused(f"this pod was replaced: {reason or 'another pod or plan generation holds its place'}")
            )

    def bar(self, error: SidecarError) -> None:
        """Fail all streams, and refuse whoever attaches or commits from now on."""
        with self._lock:
            if self._barred is not None:
                return
            self._barred = error
            lives = list(self._lives.values())
        log.error("%s: %s", error.kind, error)
        self.stats.error(error.kind)
        for life in lives:
            life.fail(error)

    @property
    def barred(self) -> SidecarError | None:
        """Why nobody may attach, None where they may."""
        return self._barred

    def _filler_failed(self, life: Life, error: SidecarError) -> None:
        """From a filler thread: a failure that may pass ends that stream, one that will not ends them all."""
        self.add_failure(error)
        if error.retryable:
            log.warning("rank %d: %s: %s", life.rank, error.kind, error)
            self.stats.error(error.kind)
            life.fail(error)
        else:
            self.bar(error)
            self.on_fatal(error)
        self.on_news()

    def close(self, why: SidecarError) -> list[Life]:
        """End all streams with `why` as their status; the lives, to be joined."""
        with self._lock:
            self._barred = self._barred or why
            lives = list(self._lives.values())
        for life in lives:
            life.close(why)
        return lives

    # ---- for reports and metrics -------------------------------------------------------------------------------

    def add_failure(self, error: SidecarError) -> None:
        """To be reported."""
        with self._lock:
            failure = failure_message(error)
            if failure not in self._failures and len(self._failures) < MAX_FAILURES:
                self._failures.append(failure)

    def failures(self) -> list[pb.Failure]:
        """Failures of this session; reporting one again changes nothing."""
        with self._lock:
            return list(self._failures)

    def refused(self, reasons: list[str]) -> None:
        """The control plane refused commits: the trainer hears of it at its next one."""
        with self._lock:
            self._refused = [*self._refused, *(r for r in reasons if r not in self._refused)][-MAX_FAILURES:]

    def take_refused(self) -> str:
        """What to tell a trainer that commits, once."""
        with self._lock:
            reasons, self._refused = self._refused, []
            return "; ".join(reasons)

    def lives(self) -> dict[int, Life]:
        """The newest life of every rank that attached in this session."""
        with self._lock:
            return dict(self._lives)

    def totals(self, rank: int) -> RankTotals:
        """Sums over the rank's former lives, and its present one, in this session."""
        with self._lock:
            t, life = self._totals[rank], self._lives.get(rank)
            return t.with_life(life.figures, life.delivered) if life is not None else replace(t)

    def rank_reports(self) -> list[pb.RankReport]:
        """The ranks that attached in this session."""
        return [self._rank_report(life) for _, life in sorted(self.lives().items())]

    def _rank_report(self, life: Life) -> pb.RankReport:
        info = stream_info(self.config, self.engine, self.digest, life.rank)
        return pb.RankReport(
            rank=life.rank,
            started=life.start,
            started_from_state=life.from_state,
            consumed=life.consumed,
            attached=life.alive,
            ended=life.ended,
            wait_seconds=life.wait_seconds,
            step_seconds=life.step_seconds,
            rank_batch=info.rank_batch,
        )
