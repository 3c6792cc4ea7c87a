"""Sums over a dataset by its manifest, remembered: each costs a few ns a row, which is seconds for a huge dataset.

Used by `proof`. Safe from any thread without a lock: two that find out the same find the same.
"""

from dataclasses import dataclass

from lanefeed_core import expected
from lanefeed_core.cursor import Cursor
from lanefeed_core.lanes import Lanes
from lanefeed_core.ledger import Entry, Ledger

__all__ = ["Epoch", "Part", "Prefix", "Sum", "Sums", "finished"]

#: Sums remembered; those of one commit and of a start are wanted together. And where pods were cut off a part of each
#: rank is, at two commits of the job: of all ranks, if it was the operator that was away.
KEEP, MOST = 64, 1 << 16


@dataclass(frozen=True, slots=True)
class Epoch:
    """What a whole epoch holds."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a job that stands at a total step has consumed of its unfinished epochs."""

    step: int


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank of a world consumes from one total step to another."""

    world: int
    rank: int
    start: int
    stop: int


Sum = Epoch | Prefix | Part


class Sums:
    """The sums of one job."""

    def __init__(self, lanes: Lanes) -> None:
        """Nothing is summed up yet."""
        self._lanes = lanes
        self._known: dict[Sum, Ledger] = {}
        self._keep = KEEP
        self._all_rows: Entry | None = None

    def known(self, wanted: Sum) -> bool:
        """Whether `get` costs nothing now."""
        return wanted in self._known

    def get(self, wanted: Sum) -> Ledger:
        """The sum, from memory or found out now."""
        found = self._known.get(wanted)
        if found is None:
            found = self._known[wanted] = self._make(wanted)
            if isinstance(wanted, Part):
                self._keep = min(MOST, max(self._keep, KEEP + 2 * wanted.world))
            if len(self._known) > self._keep:
                for old in list(self._known)[: -self._keep]:
                    self._known.pop(old, None)
        return found

    def _make(self, wanted: Sum) -> Ledger:
        lanes = self._lanes
        match wanted:
            case Epoch(epoch):
                # The rows of an epoch are the same in every one: they are summed up once.
                if self._all_rows is None:
                    self._all_rows = expected.all_rows(lanes)
                return Ledger({epoch: expected.epoch_entry(lanes, epoch, self._all_rows)})
            case Prefix(step):
                cursor = Cursor.from_total(step, lanes.steps_per_epoch, aligned=lanes.spec.aligned)
                return expected.prefix(lanes, cursor).since(finished(lanes, step))
            case Part(world, rank, start, stop):
                return expected.part(lanes, world, rank, start, stop)


def finished(lanes: Lanes, step: int) -> int:
    """Epochs that are over at total step `step`; Continuous: over in every lane."""
    if lanes.spec.aligned:
        return step // lanes.steps_per_epoch
    return min(step * lanes.share(lane) // lanes.lane_rows(lane) for lane in range(lanes.spec.lanes))
