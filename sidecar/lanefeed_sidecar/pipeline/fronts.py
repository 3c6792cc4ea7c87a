"""Where lanes go after their open windows, and what is said when these do not fit. Called by the store, under its lock.

A decoded row group is kept while a lane comes to rows of it soon: decoding it again costs more than its memory.
"""

from collections.abc import Iterable

from lanefeed_core.lanes import Lanes
from lanefeed_sidecar.errors import DataError
from lanefeed_sidecar.pipeline.needs import PAD_WINDOW, WindowKey
from lanefeed_sidecar.pipeline.pieces import RowGroupKey, RowGroups

__all__ = ["Fronts", "too_large"]


class Fronts:
    """Rows of the line that lanes come to after their open windows."""

    def __init__(self, lanes: Lanes, *, keeps_epochs: bool) -> None:
        """`keeps_epochs`: the next epoch's rows count too, however late they are needed."""
        self._lanes, self._keeps_epochs = lanes, keeps_epochs
        #: (epoch, lane) -> line rows of the lane that follow its open windows.
        self._rows: dict[tuple[int, int], tuple[int, int]] = {}

    def find(self, windows: Iterable[WindowKey]) -> None:
        """Other windows are open now."""
        newest: dict[tuple[int, int], int] = {}
        current = 0
        for number, key in enumerate(windows):
            at = (key.epoch, key.lane)
            newest[at] = max(key.window, newest.get(at, PAD_WINDOW))
            current = min(current, key.epoch) if number else key.epoch
        self._rows = {}
        for (epoch, number), window in newest.items():
            lane = self._lanes.lane_line(number)
            begin = lane.start + (window + 1) * self._lanes.spec.window
            stop = lane.stop
            if epoch > current and not self._keeps_epochs:
                # What the next epoch needs later than soon would push out buffers that are needed now.
                stop = min(stop, begin + self._lanes.spec.window)
            if begin < stop and window != PAD_WINDOW:
                self._rows[epoch, number] = (begin, stop)

    def reach(self, group: RowGroupKey, groups: RowGroups) -> bool:
        """Whether a lane comes to rows of the row group."""
        start, rows = groups.start(group), groups.rows(group)
        for (epoch, _), (begin, stop) in self._rows.items():
            at = self._lanes.line(epoch).shard_line(group.shard) + start
            if at < stop and at + rows > begin:
                return True
        return False


def too_large(groups: RowGroups, group: RowGroupKey, windows: int, rows: int, budget: int, said: float) -> DataError:
    """The windows of the next step hold more than the budget; `said`: bytes of a row by the metadata."""
    row = max(1, groups.nbytes(group) // max(1, groups.rows(group)))
    return DataError(
        f"the {windows} windows that the next step needs hold {rows} rows and take more than sidecar.readAheadBytes, "
        f"which is {budget}: rows of shard {groups.path(group)}, row group {group.group} take about {row} bytes "
        f"decoded, where the files' metadata lets expect {said:.0f}; raise sidecar.readAheadBytes to {2 * rows * row}, "
        "or for a new job lower shuffle.window or batching.lanes"
    )
