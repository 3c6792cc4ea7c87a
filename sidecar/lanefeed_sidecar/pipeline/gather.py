"""Gathers ids and the rows of wide columns out of all windows of a frame, by one call for each column.

Their windows lie in the order of the line (`slabs`, `window`), so that a row is moved once between where it was read
and the slot. Called by `assemble`. Windows that have no block (padding) are in stream order and copied as such.
"""

import numpy as np
from numpy.typing import NDArray

from lanefeed_sidecar.pipeline.copies import Copy, copy_rows
from lanefeed_sidecar.pipeline.needs import WindowKey
from lanefeed_sidecar.pipeline.window import Window

__all__ = ["Gather"]


class Gather:
    """Where the rows of one frame lie."""

    def __init__(self, copies: list[Copy], windows: dict[WindowKey, Window], steps: int, rows: int) -> None:
        """`copies` make the whole frame, `steps` x `rows`."""
        self._windows = windows
        found = [windows[copy.key].block for copy in copies]
        self._slabs = next((block.slabs for block in found if block is not None), None)
        #: Copies from windows without a block. Their rows' places mean nothing; what these bring is overwritten.
        self._others = [copy for copy, block in zip(copies, found, strict=True) if block is None]
        #: Id and place of each row of the frame: one turn of Python a copy for both.
        self._marks: NDArray[np.int64] = np.zeros((steps, rows, 1 if self._slabs is None else 2), np.int64)
        for copy in copies:
            marks = windows[copy.key].marks
            copy_rows(self._marks[:, :, : marks.shape[1]], marks, copy)

    def ids(self, out: NDArray[np.int64]) -> None:
        """Put the rows' ids into `out`, [steps, rows]."""
        out[...] = self._marks[:, :, 0]

    def column(self, index: int, out: NDArray[np.generic]) -> None:
        """Put a wide column's rows into `out`, [steps, rows, *shape]."""
        if self._slabs is not None:
            np.take(self._slabs.arrays[index], self._marks[:, :, 1], axis=0, out=out, mode="wrap")
        for copy in self._others:
            copy_rows(out, self._windows[copy.key].columns[index].values, copy)
