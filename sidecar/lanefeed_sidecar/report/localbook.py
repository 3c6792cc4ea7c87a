"""The job's book where no control plane keeps it: one pod, all ranks local (`lanefeed.open`).

Called by the feed on attach and commit. The rules are `lanefeed_core.book`'s and those of the operator's coordinator:
a job commit is a step that every rank committed; epochs are proven as soon as one passes them. Kept in `book.json`.
"""

import json
import logging
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from lanefeed_core import errors as core_errors
from lanefeed_core import expected
from lanefeed_core.book import Book, CommitRefused, JobCommit, Segment
from lanefeed_core.cursor import Cursor
from lanefeed_core.lanes import Lanes
from lanefeed_core.ledger import Ledger
from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_sidecar import errors
from lanefeed_sidecar.arena.folder import write_atomically

__all__ = ["BOOK_NAME", "LocalBook"]

log = logging.getLogger(__name__)

BOOK_NAME = "book.json"


@dataclass(slots=True)
class _Life:
    start: int
    #: False where a session was resumed, so that the life's own start is not known.
    sure: bool
    #: Number of job commits made before it began.
    born: int


class LocalBook:
    """The book of a job that lives in one pod. Thread safe."""

    def __init__(self, folder: Path, lanes: Lanes, *, plan_generation: int, world: int, total_steps: int) -> None:
        """Go on from `book.json`, or begin."""
        self._path = folder / BOOK_NAME
        self._lanes = lanes
        self._total = total_steps
        self._lock = threading.Lock()
        self._lives: dict[int, _Life] = {}
        self._made = 0
        #: Whether `book.json` is older than the book: it could not be written.
        self._unsaved = False
        #: Epochs proven in this session.
        self.verified = 0
        self._book = self._load(plan_generation, world)

    @property
    def last(self) -> JobCommit:
        """The newest job commit that ranks can restore; step 0 if there is none."""
        with self._lock:
            return self._book.restorable

    def covers(self, step: int) -> bool:
        """Whether a rank's commit of `step` need not wait any longer."""
        with self._lock:
            return step <= self._book.last.step

    def knows(self, step: int) -> bool:
        """Whether `step` is a job commit."""
        with self._lock:
            return self._book.knows(step)

    def attach(self, rank: int, start: int, *, resuming: bool) -> None:
        """A rank attached at total step `start`."""
        with self._lock:
            old = self._lives.get(rank)
            if resuming:
                self._lives.setdefault(rank, _Life(start, False, self._made))
                return
            self._lives[rank] = _Life(start, True, self._made)
            if old is not None:
                self._book.rejoin(rank, start)
            self._settle()

    def commit(self, message: pb.RankCommit) -> JobCommit | None:
        """Take a rank's commit; the job's commit if this one completes it.

        Raises CommitRefused, LedgerMismatch if an epoch that this ends was not consumed exactly once, or SidecarError
        while the book cannot be written: the caller keeps the commit and brings it again.
        """
        ledger = Ledger.from_dict(json.loads(message.ledger_json))
        segment = Segment(message.rank, message.start, message.stop, ledger, message.name)
        with self._lock:
            before = list(self._book.commits)
            try:
                made = self._book.add(segment, self._book.plan_generation)
            except CommitRefused as error:
                raise errors.CommitRefused(str(error)) from None
            if made is None:
                if self._unsaved:
                    # It may be one that is in the book and not in the file; the caller forgets it after this.
                    self._save()
                return None
            try:
                self._prove(self._book.commits[-2].step, made)
            except core_errors.LedgerMismatch as error:
                self._book.commits = before
                raise errors.LedgerMismatch(str(error)) from None
            end = self._finished(made.step)
            self._book.commits[-1] = replace(made, ledger=made.ledger.since(end))
            self._made += 1
            self._save()
            return self._book.last

    def _settle(self) -> None:
        """All ranks began at one step that is not the last commit: that checkpoint wins."""
        lives = self._lives.values()
        starts = {life.start if life.sure else -1 for life in lives}
        if len(lives) < self._book.world or len(starts) != 1:
            return
        step = starts.pop()
        if step < 0 or step == self._book.last.step:
            return
        if step > self._book.last.step or all(life.born == self._made for life in lives):
            log.info("all ranks begin at step %d: the job's commits after it are void", step)
            self._book.begin(step, self._prefix(step), keep=True)
            self._save()

    def _prove(self, before: int, commit: JobCommit) -> None:
        for epoch in range(self._finished(before), self._finished(commit.step)):
            commit.ledger.check(epoch, expected.epoch_entry(self._lanes, epoch))
            self.verified += 1
            log.info("epoch %d is proven: %d samples, each exactly once", epoch, commit.ledger[epoch].count)
        if self._total and commit.step >= self._total:
            end, want = self._finished(commit.step), self._prefix(commit.step)
            for epoch in sorted({*want.epochs, *(e for e in commit.ledger.epochs if e >= end)}):
                commit.ledger.check(epoch, want[epoch])

    def _finished(self, step: int) -> int:
        """Epochs that are over at total step `step`; Continuous: over in every lane."""
        lanes = self._lanes
        if lanes.spec.aligned:
            return step // lanes.steps_per_epoch
        return min(step * lanes.share(lane) // lanes.lane_rows(lane) for lane in range(lanes.spec.lanes))

    def _prefix(self, step: int) -> Ledger:
        cursor = Cursor.from_total(step, self._lanes.steps_per_epoch, aligned=self._lanes.spec.aligned)
        return expected.prefix(self._lanes, cursor).since(self._finished(step))

    def _load(self, plan_generation: int, world: int) -> Book:
        try:
            book = Book.from_dict(json.loads(self._path.read_text()))
        except FileNotFoundError:
            return Book(plan_generation, world)
        except (ValueError, KeyError, TypeError) as error:
            raise errors.ConfigError(f"{self._path} cannot be read ({error!r}): remove the run folder") from None
        if plan_generation > book.plan_generation:
            book.new_plan(plan_generation, world)
        return book

    def _save(self) -> None:
        self._unsaved = True
        try:
            write_atomically(self._path, json.dumps(self._book.to_dict()), 0o640)
            self._unsaved = False
        except OSError as error:
            raise errors.SidecarError(
                f"{self._path} cannot be written: {error.strerror}; make the tmpfs larger"
            ) from None
