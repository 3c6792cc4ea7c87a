"""When a row group is needed next by this pod: pure functions of lanes, so that the cache's eviction knows the future.

The order of every epoch is known, so the entry to give up is the one that is needed last (Belady), not the one that was
used least recently: an epoch reads everything once, and in another order than the last one.
"""

from collections.abc import Iterator, Sequence

from lanefeed_core.lanes import Lanes
from lanefeed_sidecar.cache import NEVER
from lanefeed_sidecar.pipeline.needs import WindowKey
from lanefeed_sidecar.pipeline.pieces import RowGroupKey, RowGroups

__all__ = ["Uses"]

#: Epochs that are looked into. A row group that none of them gives to this pod's lanes is somebody else's.
_EPOCHS = 3


class Uses:
    """The uses of row groups by the given lanes. `epochs`: how many there are, 0 for no end."""

    def __init__(self, lanes: Lanes, groups: RowGroups, mine: Sequence[int], epochs: int) -> None:
        """Nothing is computed ahead."""
        self._lanes, self._groups, self._epochs = lanes, groups, epochs
        self._mine = sorted(mine)

    def uses(self, group: RowGroupKey, epoch: int) -> Iterator[tuple[WindowKey, int]]:
        """(window, total step that reads it first) of every window of `epoch` that holds rows of the group."""
        lanes = self._lanes
        first = lanes.line(epoch).shard_line(group.shard) + self._groups.start(group)
        last = first + self._groups.rows(group) - 1
        for lane in self._mine:
            start, stop = lanes.lane_line(lane)
            if start > last or stop <= first:
                continue
            size, share = lanes.spec.window, lanes.share(lane)
            low, high = max(first, start) - start, min(last, stop - 1) - start
            for window in range(low // size, high // size + 1):
                begin = epoch * lanes.lane_rows(lane) if not lanes.spec.aligned else 0
                step = (begin + window * size) // share
                base = epoch * lanes.steps_per_epoch if lanes.spec.aligned else 0
                yield WindowKey(epoch, lane, window), base + step

    def next_use(self, group: RowGroupKey, served: Sequence[WindowKey]) -> int:
        """Total step of the next use after the windows that were just `served`; NEVER where none is known."""
        if not served:
            return NEVER
        epoch, done = min(key.epoch for key in served), set(served)
        behind = max(step for key, step in self._steps(served))
        for number in range(epoch, epoch + _EPOCHS):
            if self._epochs and number >= self._epochs:
                break
            found = [step for key, step in self.uses(group, number) if key not in done and step >= behind]
            if found:
                return min(found)
        return NEVER

    def _steps(self, keys: Sequence[WindowKey]) -> Iterator[tuple[WindowKey, int]]:
        lanes = self._lanes
        for key in keys:
            share, size = lanes.share(key.lane), lanes.spec.window
            window = max(0, key.window)
            if lanes.spec.aligned:
                yield key, key.epoch * lanes.steps_per_epoch + window * size // share
            else:
                yield key, (key.epoch * lanes.lane_rows(key.lane) + window * size) // share
