"""The pure core of the report service: which reports count, what they add up to, and what is answered.

Takes the time as an argument and does no I/O. A report counts only from the pod UID that the shell expects at that
index, of the current plan generation, of the pod's newest session, with a growing sequence number. Commits go into the
core's book; every job commit is proven before it counts, and acknowledged only once it is persisted (`persisted`), so
a control plane that is killed at any point forgets nothing that a sidecar has forgotten.

The lock is held for microseconds: sums over a huge dataset are made before it is taken (`_needed`), and a report that
tells of progress alone costs the same however many ranks there are.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from lanefeed_core.book import Book, CommitRefused, JobCommit, Segment
from lanefeed_core.lanes import Lanes
from lanefeed_core.ledger import Ledger
from lanefeed_operator.api.status import EpochProof, Status
from lanefeed_operator.coordinator import lives
from lanefeed_operator.coordinator.admission import Admission, problem
from lanefeed_operator.coordinator.lives import Change, Life
from lanefeed_operator.coordinator.notes import Notes
from lanefeed_operator.coordinator.proof import Proofs, Prover
from lanefeed_operator.coordinator.reports import Committed, PodReport, RankCommit, RankReport, Reply, StopAt, Taken
from lanefeed_operator.coordinator.safe import Safe
from lanefeed_operator.coordinator.speed import Speed
from lanefeed_operator.coordinator.sums import Sum
from lanefeed_operator.coordinator.waiting import Waiting
from lanefeed_operator.errors import CoordinatorError
from lanefeed_operator.reconcile.types import FeedFailure, FeedView

__all__ = ["Coordinator"]

log = logging.getLogger(__name__)

#: Where a job has no last step of its own: what a status can hold.
MAX_STEPS = 1 << 53


class Coordinator:
    """Reports and commits of one job. Thread safe; `on_change` is called outside of the lock."""

    def __init__(self, job_uid: str, lanes: Lanes, total_steps: int, status: Status | None = None) -> None:
        """Begin a job, or go on from its persisted status."""
        self.job_uid = job_uid
        self.on_change: Callable[[], None] = lambda: None
        #: Called instead of `on_change` for a report that tells of nothing but steps consumed, where it is set.
        self.on_progress: Callable[[], None] | None = None
        self._lock = threading.RLock()
        self._waiting = Waiting()
        self._prover = Prover(lanes, total_steps)
        status = status or Status()
        self._book = Book.from_dict(status.book) if status.book else Book(0, 0)
        self._proofs = Proofs(status.ledger.epochs, status.ledger.verified)
        self._ranks_per_pod = max(1, status.plan.ranks_per_replica)
        self._recovered = True
        self._version = 1
        self._persisted = 1
        self._safe = Safe(self._book.restorable)
        self._events = 0
        self._commit_event = 0
        self._mismatch: FeedFailure | None = None
        self._notes = Notes()
        self._news = False
        self._reset()
        if status.plan.generation > self._book.plan_generation:
            self.new_plan(status.plan.generation, status.plan.replicas, status.plan.ranks_per_replica)
        self._found, self._since = bool(status.plan.generation), 0.0

    def _reset(self) -> None:
        """Forget everything that belongs to one plan."""
        self._door = Admission(self.job_uid, self._book.plan_generation)
        self._lives: dict[int, Life] = {}
        self._notes.failures.clear()
        self._stop: StopAt | None = None
        self._speed = Speed()
        self._moved = 0.0
        self._unsettled = False
        self._cuts: dict[tuple[int, int], Segment] = {}

    # ---- what the shell says ------------------------------------------------------------------------------------

    def new_plan(self, generation: int, replicas: int, ranks_per_replica: int) -> None:
        """Begin a plan generation; the present one again changes nothing. Raises CoordinatorError for an older one."""
        with self._lock:
            if generation == self._book.plan_generation:
                return
            if generation < self._book.plan_generation:
                raise CoordinatorError(
                    f"plan generation {generation} is older than {self._book.plan_generation}: plans only go forward"
                )
            self._book.new_plan(generation, replicas * ranks_per_replica)
            self._reset()
            self._recovered = self._found = False
            self._ranks_per_pod = ranks_per_replica
            self._changed()

    def expect(self, generation: int, index: int, pod_uid: str) -> None:
        """The shell made (or found) this pod: it holds the index from now on, and the one before is fenced."""
        with self._lock:
            if generation == self._book.plan_generation:
                self._door.expect(index, pod_uid)

    def fence(self, generation: int, index: int, pod_uid: str, reason: str) -> None:
        """Refuse every report of this pod from now on; again is no news: it would wake whoever fences again."""
        with self._lock:
            new = self._door.fence(index, pod_uid)
        if new:
            log.warning("plan generation %d: pod %s at index %d is fenced: %s", generation, pod_uid, index, reason)
            self.on_change()

    def stop(self, generation: int, step: int, reason: str) -> None:
        """All ranks of the plan generation are to leave at total step `step`."""
        with self._lock:
            if generation == self._book.plan_generation:
                self._stop = StopAt(step, reason)
        self.on_change()

    def persisted(self, version: int) -> None:
        """The status that holds the snapshot of this version is durable."""
        with self._lock:
            if version <= self._persisted:
                return
            self._persisted = version
            self._safe.persisted(version)
            ready = self._waiting.due(version)
        for call in ready:
            call()

    def when_persisted(self, version: int, call: Callable[[], None]) -> bool:
        """Call `call` once, outside of the lock, when `version` is durable; False where it is already."""
        with self._lock:
            if self._persisted >= version:
                return False
            self._waiting.add(version, call)
            return True

    def cancel_wait(self, call: Callable[[], None]) -> None:
        """`call` waits no longer."""
        with self._lock:
            self._waiting.remove(call)

    def behind(self, status: Status) -> bool:
        """Whether a persisted status knows what this coordinator does not: it was made from an old copy, make it anew.

        Commits that were acknowledged are never sent again, so going on from an old copy would hold up all later ones.
        """
        if not status.book:
            return False
        theirs = Book.from_dict(status.book)
        with self._lock:
            mine = self._book
            if theirs.plan_generation != mine.plan_generation:
                return theirs.plan_generation > mine.plan_generation
            step = theirs.restorable.step
            return step > mine.last.step and all(c.step != step for c in mine.void)

    # ---- what sidecars say --------------------------------------------------------------------------------------

    def report(self, report: PodReport, now: float) -> Reply:
        """Take a report and answer it at once."""
        taken = self.take(report, now)
        return self.reply(report, taken)

    def take(self, report: PodReport, now: float) -> Taken:
        """Take a report. A repeated or late one changes nothing."""
        for needed in self._needed(report):
            self._prover.prepare(needed)
        with self._lock:
            taken = self._admit(report)
            if taken.refused or not taken.fresh:
                return taken
            self._news = False
            self._apply(report, now)
            taken = replace(taken, version=self._version)
            wake = self.on_change if self._news else self.on_progress or self.on_change
        wake()
        return taken

    def slow(self, report: PodReport) -> bool:
        """Whether taking this report first sums up a dataset, which may take seconds; the lock is not held for it."""
        return any(not self._prover.prepared(needed) for needed in self._needed(report))

    def _needed(self, report: PodReport) -> list[Sum]:
        """Sums over the dataset that taking the report may ask for."""
        if not report.commits and not any(rank.started for rank in report.ranks):
            return []
        with self._lock:
            if self._door.refusal(report)[0]:
                return []
            last, known = self._book.last.step, {0, *(c.step for c in (*self._book.commits, *self._book.void))}
            begun = sorted(set(self._begun(report).values()) - known)
            segments = [segment for segment in (c.segment for c in self._good(report)) if segment.stop > last]
            world = self._book.world
        return self._prover.needed(last, begun, segments, world)

    def reply(self, report: PodReport, taken: Taken) -> Reply:
        """The answer to a report, by what is persisted now."""
        with self._lock:
            if taken.refused:
                return Reply(fenced=taken.fenced, reason=taken.refused)
            if report.plan_generation != self._book.plan_generation:
                return Reply(fenced=True, reason=self._door.old_plan(report))
            safe, event = self._safe.commit, self._safe.event
            known = {c.step for c in (*self._book.commits, *self._book.void)}
            count, refused = 0, []
            for commit in report.commits:
                wrong = self._problem(report, commit)
                if wrong:
                    refused.append(wrong)
                elif commit.stop > safe.step or not lives.counted(
                    self._lives.get(commit.rank), commit.stop, event, known
                ):
                    break
                count += 1
            last = Committed(safe.step, safe.name, safe.plan_generation) if safe.step else None
            return Reply(commits_taken=count, stop_at=self._stop, last_commit=last, refused=tuple(refused))

    def _admit(self, r: PodReport) -> Taken:
        """Whether a report counts; notes its session and sequence number if it does."""
        refused, fenced = self._door.refusal(r)
        if refused:
            return Taken(self._version, refused, fenced)
        return Taken(self._version, fresh=self._door.is_new(r))

    def _ranks(self, index: int) -> range:
        first = index * self._ranks_per_pod
        return range(first, min(first + self._ranks_per_pod, self._book.world))

    # ---- what it adds up to -------------------------------------------------------------------------------------

    def _apply(self, r: PodReport, now: float) -> None:
        """Old commits first, then the ranks' lives, then what the new lives committed."""
        self._news |= self._door.describe(r)
        good = self._good(r)
        begun = self._begun(r)
        for commit in good:
            if commit.rank in begun and commit.stop <= begun[commit.rank]:
                self._add(commit)
        self._take_lives(r, begun, now)
        if self._unsettled:
            self._settle()
        for commit in good:
            self._add(commit)
        self._news |= self._notes.add(r)
        self._moved = self._moved or now
        if self._lives and self._speed.due(now):
            self._speed.add(now, max(life.report.consumed for life in self._lives.values()))

    def _good(self, r: PodReport) -> list[RankCommit]:
        return [commit for commit in r.commits if not self._problem(r, commit)]

    def _problem(self, r: PodReport, commit: RankCommit) -> str:
        return problem(r.pod_index, self._ranks(r.pod_index), commit, self._prover.total_steps)

    def _begun(self, r: PodReport) -> dict[int, int]:
        """Ranks that began a new life -> the step at which."""
        found = {}
        for rank in self._own(r):
            what = lives.change(self._lives.get(rank.rank), rank, r.pod_uid)
            if what is Change.NEW:
                found[rank.rank] = rank.started
        return found

    def _own(self, r: PodReport) -> list[RankReport]:
        end = self._prover.total_steps or MAX_STEPS
        return [x for x in r.ranks if x.rank in self._ranks(r.pod_index) and max(x.started, x.consumed) <= end]

    def _take_lives(self, r: PodReport, begun: dict[int, int], now: float) -> None:
        self._events += 1
        # The door's own words, not the report's: equal, and kept once (64,000 pods).
        place = self._door.places[r.pod_index]
        where = (r.pod_index, place.uid, place.session)
        for rank in self._own(r):
            old = self._lives.get(rank.rank)
            if old is None and lives.change(old, rank, r.pod_uid) is Change.ABSENT:
                continue
            life = lives.merge(old, rank, where, event=self._events, now=now, recovered=self._recovered)
            self._lives[rank.rank] = life
            if old is None or lives.differ(old, life):
                self._news = self._unsettled = True
            if old is None or life.born != old.born or life.report.consumed != old.report.consumed:
                self._moved = now
            if rank.rank in begun and life.sure and old is not None:
                self._book.rejoin(rank.rank, begun[rank.rank])

    def _settle(self) -> None:
        """Where every rank of the plan began: a checkpoint that no commit names, or an older one, wins.

        Asked again only after a life or the book changed: nothing else could change the answer.
        """
        self._unsettled = False
        if len(self._lives) < self._book.world:
            return
        step, last = lives.common_start(self._lives), self._book.last.step
        if step is not None and step != last:
            all_new = all(life.born > self._commit_event for life in self._lives.values())
            if step > last or all_new:
                self._begin(step)
        fine = lives.allowed(self._book.commits, self._book.plan_generation)
        for rank, life in self._lives.items():
            if not life.fits and life.report.started in fine:
                self._lives[rank] = replace(life, fits=True)

    def _begin(self, step: int) -> None:
        """All ranks began at `step`: commits after it are void; epochs that a stand-in jumps over stay unproven.

        Proofs of epochs that are done again stay until they are made anew.
        """
        first, end = self._prover.finished(self._book.last.step), self._prover.finished(step)
        known = any(c.step == step for c in (*self._book.commits, *self._book.void))
        for cut in self._cuts.values():
            # Of a way that is void; the sidecar sends the whole until it is taken.
            self._book.remove(cut)
        self._cuts.clear()
        self._book.begin(step, Ledger() if known else self._prover.prefix(step), keep=True)
        self._safe.went_back(step, self._book.restorable)
        for epoch in range(first, end) if self._book.last.stand_in else ():
            self._proofs.keep(
                EpochProof(epoch=epoch, samples=0, digest="", expected="", verified=False, recomputed=True)
            )
        self._changed()

    def _add(self, commit: RankCommit) -> None:
        """Into the book; a job commit that this completes is proven before it counts."""
        if self._mismatch:
            return
        before, segment = list(self._book.commits), commit.segment
        cut = self._prover.cut(segment, self._book.last.step, self._book.world)
        if cut:
            self._cuts[cut.rank, cut.start] = cut
        made = self._enter(segment) or (self._enter(cut) if cut else None)
        if made is None:
            return
        checked = self._prover.check(self._book.commits[-2].step, made)
        for proof in checked.proofs:
            self._proofs.keep(proof)
        if checked.mismatch:
            self._book.commits = before
            self._mismatch = FeedFailure("LedgerMismatch", checked.mismatch)
        else:
            self._book.commits[-1] = checked.commit
            self._events += 1
            self._commit_event = self._events
            self._cuts = {key: kept for key, kept in self._cuts.items() if kept.stop > made.step}
        self._changed()

    def _enter(self, segment: Segment) -> JobCommit | None:
        """The job commit that a rank's segment completes, if it does."""
        try:
            return self._book.add(segment, self._book.plan_generation)
        except CommitRefused:
            return None

    def _changed(self) -> None:
        self._news = self._unsettled = True
        self._version += 1
        self._safe.changed(self._version, self._book.restorable, self._commit_event)

    # ---- what reconcile sees ------------------------------------------------------------------------------------

    def snapshot(self, now: float) -> FeedView:
        """Everything at this moment."""
        with self._lock:
            last, everyone = self._book.restorable, len(self._lives) >= self._book.world
            apart = {rank: life.report.started for rank, life in self._lives.items() if not life.fits}
            self._since = self._since or now
            return FeedView(
                version=self._version,
                plan_generation=self._book.plan_generation,
                ranks={rank: lives.view(life) for rank, life in self._lives.items()},
                book=self._book.to_dict(),
                last_step=last.step,
                last_name=last.name,
                last_generation=last.plan_generation,
                proofs=self._proofs.latest,
                proven=self._proofs.verified,
                mismatch=self._mismatch,
                failures=tuple(self._notes.failures),
                quarantined=tuple(sorted(self._notes.quarantined.items())),
                disagree=apart if everyone else {},
                rate=self._speed.rate(now),
                moved=self._moved,
                found=self._since if self._found else 0.0,
                stop_at=self._stop.step if self._stop else None,
                fenced=frozenset(self._door.fenced),
            )

    def addresses(self) -> dict[int, str]:
        """Pod index -> host:port of its /metrics, where one is known."""
        with self._lock:
            return {index: place.metrics_address for index, place in self._door.places.items() if place.metrics_address}

    def ready(self, index: int) -> bool:
        """Whether the pod that holds the index said that it is ready."""
        with self._lock:
            place = self._door.places.get(index)
            return place is not None and place.ready
