"""Gathers the rows of wide columns out of all windows of a frame, by one call for each column.

Their windows lie in the order of the line (`slabs`, `window`), so that a row is moved once between where it was read
and the slot. Called by `assemble`. Windows that have no block (padding) are in stream order and copied as such.
"""

import numpy as np
from numpy.typing import NDArray

from lanefeed_sidecar.pipeline.copies import Copy, copy_rows
from lanefeed_sidecar.pipeline.needs import WindowKey
from lanefeed_sidecar.pipeline.slabs import Slabs
from lanefeed_sidecar.pipeline.window import Window

__all__ = ["Gather"]


class Gather:
    """Where the rows of one frame lie."""

    def __init__(self, copies: list[Copy], windows: dict[WindowKey, Window], steps: int, rows: int) -> None:
        """`copies` make the whole frame, `steps` x `rows`."""
        self._windows = windows
        self._slabs: Slabs | None = None
        #: Row of the slabs for each row of the frame; those of other windows are row 0, and are overwritten.
        self._places: NDArray[np.int64] = np.zeros((steps, rows), np.int64)
        self._others: list[Copy] = []
        for copy in copies:
            window = windows[copy.key]
            if window.block is None:
                self._others.append(copy)
                continue
            self._slabs = window.block.slabs
            copy_rows(self._places, window.places, copy)

    def column(self, index: int, out: NDArray[np.generic]) -> None:
        """Put the column's rows into `out`, [steps, rows, *shape]."""
        if self._slabs is not None:
            np.take(self._slabs.arrays[index], self._places, axis=0, out=out, mode="clip")
        for copy in self._others:
            copy_rows(out, self._windows[copy.key].columns[index].values, copy)
