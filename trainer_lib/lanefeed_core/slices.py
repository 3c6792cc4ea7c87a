"""Which part of the global batch a rank reads, for any world size.

Called by `plan`, the sidecar's assembler and tests. The only place where world size meets the order; it never changes
the order, it only cuts it.
"""

from dataclasses import dataclass
from typing import NamedTuple

from lanefeed_core.errors import StreamError
from lanefeed_core.lanes import Lanes
from lanefeed_core.stream import PAD

__all__ = ["LaneSlice", "World", "lane_slices", "rank_lanes", "rank_slice"]


class LaneSlice(NamedTuple):
    """A rank's part of one lane's share: rows [start, stop) of the share, at row `at` of the rank batch."""

    lane: int
    start: int
    stop: int
    at: int


@dataclass(frozen=True, slots=True)
class World:
    """The data-parallel world of one topology: D ranks, and whether they may get unequal batches."""

    size: int
    allow_uneven: bool = False

    def check(self, global_batch_size: int) -> None:
        """Raise StreamError where `global_batch_size` cannot be split over the ranks, naming the way out."""
        if self.size < 1:
            raise StreamError(f"world size is {self.size}: it must be at least 1")
        if self.size > global_batch_size:
            raise StreamError(
                f"batching.globalBatchSize is {global_batch_size}, smaller than the {self.size} ranks (replicas x "
                "ranksPerReplica): a rank would get no sample; use fewer ranks or a larger global batch"
            )
        if global_batch_size % self.size and not self.allow_uneven:
            fits = [d for d in range(1, global_batch_size + 1) if global_batch_size % d == 0]
            near = sorted(sorted(fits, key=lambda d: abs(d - self.size))[:3])
            raise StreamError(
                f"batching.globalBatchSize {global_batch_size} is not a multiple of {self.size} ranks, so rank batches "
                f"would differ by one sample: set batching.uneven to Allow, or use {', '.join(map(str, near))} ranks"
            )


def rank_slice(rows: int, world: int, rank: int) -> tuple[int, int]:
    """Rows [start, stop) of a global batch of `rows` that a rank reads: [d R / D, (d + 1) R / D), rounded down."""
    return rank * rows // world, (rank + 1) * rows // world


def lane_slices(lanes: Lanes, world: int, rank: int, step: int) -> list[LaneSlice]:
    """The rank's parts of the lanes' shares at a step of an epoch, in the order of the rank batch.

    In a Partial last step shares are what each lane has left; in every other step (Pad included) they are full.
    """
    short = lanes.is_last_short(step) and lanes.spec.last_batch != PAD
    begin = lanes.left_offset if short else lanes.offset
    low, high = rank_slice(lanes.step_rows(step), world, rank)
    found = []
    for lane in range(_lane_at(lanes, low, short), lanes.spec.lanes):
        first, last = begin(lane), begin(lane + 1)
        if first >= high:
            break
        start, stop = max(low, first), min(high, last)
        if start < stop:
            found.append(LaneSlice(lane, start - first, stop - first, start - low))
    return found


def rank_lanes(lanes: Lanes, world: int, rank: int) -> list[int]:
    """The lanes that a rank reads, ascending: those of its full steps and of a short last one."""
    wanted = {part.lane for part in lane_slices(lanes, world, rank, 0)} if lanes.full_steps else set()
    if not lanes.spec.aligned:
        wanted = {part.lane for part in lane_slices(lanes, world, rank, 0)}
    elif lanes.steps_per_epoch > lanes.full_steps:
        wanted |= {part.lane for part in lane_slices(lanes, world, rank, lanes.full_steps)}
    return sorted(wanted)


def _lane_at(lanes: Lanes, row: int, short: bool) -> int:
    """A lane that begins at or before a row of the global batch; the search starts there."""
    if short:
        return 0
    return max(0, row * lanes.spec.lanes // lanes.spec.global_batch_size - 1)
