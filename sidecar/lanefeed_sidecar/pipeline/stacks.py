"""Neighbouring scalar columns of a window: they lie in one buffer, and are shuffled in one go.

A scatter of narrow columns costs Python a turn a column, and twice the time of a gather. So a piece that is a whole
window is gathered at once to its places; smaller ones are copied in the order of the line, and shuffled when the last
has come. Called by `window`. Pieces are disjoint: several threads may put theirs at a time.
"""

import numpy as np
from numpy.typing import NDArray

from lanefeed_sidecar.formats.chunk import Chunk

__all__ = ["Stack"]

Array = NDArray[np.generic]
Index = NDArray[np.int64]


class Stack:
    """Columns `run` of a window of `rows` rows, in `buffer` [columns, rows or more]."""

    __slots__ = ("_rows", "_shuffled", "buffer", "run")

    def __init__(self, run: range, buffer: Array, rows: int) -> None:
        """Empty."""
        self.run, self.buffer, self._rows = run, buffer, rows
        self._shuffled = False

    def put(self, chunk: Chunk, source: slice, at: int, order: Index | None) -> None:
        """Rows `source` of the chunk are rows [at, ...) of the window's line; with `order` they are the whole window,
        which has the order[i]-th of them at its row i.
        """
        rows = source.stop - source.start
        if order is not None:
            self._gather(chunk, order + source.start)
            self._shuffled = True
            return
        block = chunk.blocks.get(self.run.start)
        if block is not None:
            self.buffer[:, at : at + rows] = block[:, source]
            return
        for row, index in zip(self.buffer, self.run, strict=True):
            row[at : at + rows] = chunk.columns[index].values[source]

    def _gather(self, chunk: Chunk, order: Index) -> None:
        """Row i of the window is row order[i] of the chunk."""
        out = self.buffer[:, : self._rows]
        block = chunk.blocks.get(self.run.start)
        if block is not None:
            np.take(block, order, axis=1, out=out, mode="wrap")
            return
        for row, index in zip(out, self.run, strict=True):
            np.take(chunk.columns[index].values, order, out=row, mode="wrap")

    @property
    def shuffled(self) -> bool:
        """Whether the rows are at their places; else `shuffle` is to be called when all are there."""
        return self._shuffled

    def shuffle(self, order: Index, buffer: Array) -> Array:
        """Move all rows to their places in another buffer of the same size; the old one, for others to use."""
        before, self.buffer = self.buffer, buffer
        np.take(before, order, axis=1, out=buffer[:, : self._rows], mode="wrap")
        self._shuffled = True
        return before
