"""What this rank consumed, for the ledger (G5): sums per step from the frames, folded up to the cursor.

The loader gives it every frame and asks it for parts (`state_dict`) and segments (`commit`). Pure. It keeps the sums of
steps that were given but not consumed, and what this life consumed until now and until the last commit: a segment is a
snapshot's ledger less the latter, so snapshots may be taken while others are being committed. It has a lock, since
checkpoints may be committed from another thread.
"""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from lanefeed_core.ledger import Entry, Ledger

__all__ = ["EvenSums", "FrameSums", "Proof", "Snapshot"]


#: Frames that wait to be added up, all in a row: each alone costs next() as much as all of them.
_FRAMES = 32


@dataclass(frozen=True, slots=True)
class FrameSums:
    """Ledger entries of steps from total step `first` on: steps[k] has (epoch, count, sum) of each epoch."""

    first: int
    steps: tuple[tuple[tuple[int, int, int], ...], ...]

    @property
    def stop(self) -> int:
        """The step after the last one."""
        return self.first + len(self.steps)

    def fold(self, start: int, stop: int, sums: dict[int, list[int]]) -> None:
        """Add total steps start..stop to epoch -> [count, sum]."""
        for entries in self.steps[start - self.first : stop - self.first]:
            for epoch, count, total in entries:
                seen = sums.setdefault(epoch, [0, 0])
                seen[0] += count
                seen[1] += total


@dataclass(slots=True)
class EvenSums:
    """The same where all steps are of one epoch and have `count` samples: the common case, for next to nothing."""

    first: int
    epoch: int
    count: int
    sums: Sequence[int]

    @property
    def stop(self) -> int:
        """The step after the last one."""
        return self.first + len(self.sums)

    def fold(self, start: int, stop: int, sums: dict[int, list[int]]) -> None:
        """Add total steps start..stop to epoch -> [count, sum]."""
        seen = sums.setdefault(self.epoch, [0, 0])
        seen[0] += self.count * (stop - start)
        seen[1] += sum(self.sums[start - self.first : stop - self.first])


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The proof at total step `step`, in `epoch`. `life`: what was consumed in this life, cut to that epoch and the one
    before, as states carry it. `total`: the same, cut only where commits cover it: `Proof.segment` subtracts from it.
    """

    step: int
    epoch: int
    life: Ledger
    total: Ledger


class Proof:
    """Ledger of one life of a rank, from total step `start` on."""

    def __init__(self, start: int) -> None:
        """Nothing consumed yet."""
        #: Total step at which this life began.
        self.since = start
        #: Total step of the last commit, or of the start.
        self.committed = start
        self._folded = start
        self._frames: deque[FrameSums | EvenSums] = deque()
        #: What was consumed up to `_folded` and up to `committed`, both of epochs from `_cut` on.
        self._total = Ledger()
        self._done = Ledger()
        #: Epochs before it are over and committed as a whole.
        self._cut = 0
        self._lock = threading.Lock()

    def add(self, sums: FrameSums | EvenSums, consumed: int | None = None) -> None:
        """The next frame's sums, before its first batch is given; what is before step `consumed` was consumed."""
        with self._lock:
            if consumed is not None and len(self._frames) >= _FRAMES:
                self._fold(consumed)
            self._frames.append(sums)

    def rewind(self, step: int) -> None:
        """Frames from total step `step` on will be added again: they were given to somebody who dropped them."""
        with self._lock:
            self._fold(step)
            self._frames.clear()

    def _fold(self, step: int) -> None:
        """Count everything before total step `step` as consumed. Steps only grow within a life."""
        # Plain numbers first, one entry an epoch then: this runs in next(), for all steps of many frames.
        sums: dict[int, list[int]] = {}
        while self._frames and self._folded < step:
            frame = self._frames[0]
            stop = min(step, frame.stop)
            frame.fold(self._folded, stop, sums)
            self._folded = stop
            if stop == frame.stop:
                self._frames.popleft()
        for epoch, (count, total) in sums.items():
            self._total.add(epoch, count, total)

    def snapshot(self, step: int, epoch: int) -> Snapshot:
        """The proof at total step `step`, in `epoch`: the epochs before that one are over there."""
        with self._lock:
            self._fold(step)
            return Snapshot(step, epoch, self._total.since(epoch - 1), self._total.since(0))

    def segment(self, snapshot: Snapshot) -> tuple[int, Ledger]:
        """The last commit's total step, and what was consumed from it up to `snapshot`, as things are now.

        Other snapshots may have been committed since this one was taken. One that is older than the last commit has
        no segment: an empty ledger.
        """
        with self._lock:
            if snapshot.step < self.committed:
                return self.committed, Ledger()
            left = (snapshot.total - self._done).since(self._cut)
            return self.committed, Ledger({epoch: left[epoch] for epoch in left.epochs if left[epoch] != Entry()})

    def commit(self, snapshot: Snapshot) -> None:
        """`snapshot` is committed: segments count from its step on. An older one than the last changes nothing."""
        with self._lock:
            if snapshot.step < self.committed:
                return
            self.committed = snapshot.step
            # The epoch before the snapshot's is over, but states still carry it.
            self._cut = max(self._cut, snapshot.epoch - 1)
            self._done = snapshot.total.since(self._cut)
            self._total = self._total.since(self._cut)
