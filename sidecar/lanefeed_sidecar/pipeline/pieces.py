"""Cuts a window into pieces of row groups: which rows of which row group lie where in the window's part of the line.

Pure. Pieces are cut when a window is opened, under the store's lock, and are arithmetic alone; the order in which the
rows come is worked out by the decode thread that brings the first of them.
"""

from bisect import bisect_right
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lanefeed_core.lanes import Lanes
from lanefeed_core.manifest import Manifest
from lanefeed_sidecar.pipeline.needs import PAD_WINDOW, WindowKey

__all__ = ["Piece", "RowGroups", "RowGroupKey", "window_order", "window_pieces", "window_rows"]


class RowGroupKey(NamedTuple):
    """One row group: index of its shard in the manifest, and its number in the shard."""

    shard: int
    group: int


class Piece(NamedTuple):
    """Rows `source` of a row group (a slice or indices) are rows [at, ...) of the window's part of the line."""

    source: slice | NDArray[np.int64]
    at: int


class RowGroups:
    """Where every shard's row groups begin; built once."""

    def __init__(self, manifest: Manifest, row_bytes: int = 0) -> None:
        """Prefix sums over each shard's row groups. row_bytes: what a decoded row takes at least."""
        self._row_bytes = row_bytes
        # Plain numbers: they are asked for one at a time, many times a row group.
        self._starts = [(0, *accumulate(s.row_groups)) for s in manifest.shards]
        self._bytes = [s.row_group_bytes for s in manifest.shards]
        self._manifest = manifest
        #: What was found out about row groups before they were decoded: (bytes, bytes of their largest pages).
        self._weighed: dict[RowGroupKey, tuple[int, int]] = {}

    def path(self, key: RowGroupKey) -> str:
        """Of its shard, for messages."""
        return self._manifest.shards[key.shard].path

    def start(self, key: RowGroupKey) -> int:
        """First row of the row group in its shard."""
        return self._starts[key.shard][key.group]

    def rows(self, key: RowGroupKey) -> int:
        """Rows of the row group."""
        starts = self._starts[key.shard]
        return starts[key.group + 1] - starts[key.group]

    def weighed(self, key: RowGroupKey) -> bool:
        """Whether its size is known and not only what the metadata says."""
        return key in self._weighed

    def weigh(self, key: RowGroupKey, nbytes: int, pages: int) -> None:
        """Its ragged columns decode to `nbytes`, and its largest pages, one a column, to `pages`."""
        self._weighed[key] = (nbytes, pages)

    def pages(self, key: RowGroupKey) -> int:
        """Bytes of its largest pages, one a column; 0 where that is not known."""
        return self._weighed.get(key, (0, 0))[1]

    def nbytes(self, key: RowGroupKey) -> int:
        """Decoded bytes: what was found out, or as the metadata says (encoded, so often too little).

        At least what fixed columns take.
        """
        if key in self._weighed:
            return self._weighed[key][0] + self.rows(key) * self._row_bytes
        known = self._bytes[key.shard]
        said = int(known[key.group]) if known else int(self.rows(key) * self._manifest.row_bytes)
        return max(said, self.rows(key) * self._row_bytes)

    def largest(self) -> int:
        """Decoded bytes of the largest row group."""
        said = max((max(b) for b in self._bytes if b), default=0)
        rows = max(max(s.row_groups) for s in self._manifest.shards)
        return max(said, int(rows * (self._row_bytes if said else max(self._row_bytes, self._manifest.row_bytes))))

    def within(self, most: int) -> bool:
        """Whether all row groups together decode to at most `most` bytes, about. Looks no further than it must."""
        left = most
        for index, shard in enumerate(self._manifest.shards):
            left -= sum(self.nbytes(RowGroupKey(index, group)) for group in range(len(shard.row_groups)))
            if left < 0:
                return False
        return True

    def split(self, shard: int, start: int, stop: int) -> list[tuple[RowGroupKey, int, int]]:
        """Rows [start, stop) of a shard as (row group, first row in it, last row in it, exclusive)."""
        starts = self._starts[shard]
        group = bisect_right(starts, start) - 1
        found = []
        while start < stop:
            base, end = starts[group], starts[group + 1]
            if end > start:
                high = min(stop, end)
                found.append((RowGroupKey(shard, group), start - base, high - base))
                start = high
            group += 1
        return found


def window_rows(lanes: Lanes, key: WindowKey) -> int:
    """Rows of a window."""
    if key.window == PAD_WINDOW:
        left = lanes.lane_rows(key.lane) - lanes.full_steps * lanes.share(key.lane)
        return lanes.share(key.lane) - left
    start, stop = lanes.window_line(key.lane, key.window)
    return stop - start


def window_pieces(lanes: Lanes, groups: RowGroups, key: WindowKey) -> dict[RowGroupKey, Piece]:
    """All pieces of a window, in the order of the line; together they are all of its rows."""
    found: dict[RowGroupKey, Piece] = {}
    if key.window == PAD_WINDOW:
        at = 0
        for group, pairs in _pads(lanes, groups, key).items():
            found[group] = Piece(np.array([row for row, _ in pairs]), at)
            at += len(pairs)
        return found
    start, stop = lanes.window_line(key.lane, key.window)
    for run in lanes.line(key.epoch).shard_runs(start, stop):
        at = run.at
        for group, low, high in groups.split(run.shard, run.start, run.stop):
            found[group] = Piece(slice(low, high), at)
            at += high - low
    return found


def window_order(lanes: Lanes, groups: RowGroups, key: WindowKey) -> NDArray[np.int64]:
    """Which row of the window's part of the line comes at each place of the stream: int64 [rows]."""
    if key.window != PAD_WINDOW:
        return lanes.window_order(key.epoch, key.lane, key.window)
    places = [place for pairs in _pads(lanes, groups, key).values() for _, place in pairs]
    order = np.empty(len(places), np.int64)
    order[places] = np.arange(len(places), dtype=np.int64)
    return order


def _pads(lanes: Lanes, groups: RowGroups, key: WindowKey) -> dict[RowGroupKey, list[tuple[int, int]]]:
    """(row of the row group, place in the stream) of the rows that fill up the lane's share of the last step."""
    rows: dict[RowGroupKey, list[tuple[int, int]]] = {}
    for place, sample in enumerate(lanes.pad_rows(key.lane, key.epoch).tolist()):
        shard = lanes.shard_of(sample)
        row = sample - lanes.shard_start(shard)
        group, low, _ = groups.split(shard, row, row + 1)[0]
        rows.setdefault(group, []).append((low, place))
    return rows
