"""A window being filled and then read: buffers in stream order, scattered into by decode threads.

Wide columns lie in the order of the line and are gathered when a frame is made, so that their rows are moved once less
(`slabs`, `gather`). Several threads may scatter into one window at a time: their targets are disjoint. Buffers come
from a pool (`pool`). No scheduling here.
"""

import math
import threading
from collections.abc import Callable, Container
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lanefeed_core.layout import Column
from lanefeed_sidecar.errors import SidecarError
from lanefeed_sidecar.formats.chunk import Chunk, FixedChunk, RaggedChunk
from lanefeed_sidecar.pipeline.needs import PAD_WINDOW, WindowKey
from lanefeed_sidecar.pipeline.pieces import Piece, RowGroupKey
from lanefeed_sidecar.pipeline.plan import plan_of
from lanefeed_sidecar.pipeline.pool import BufferPool
from lanefeed_sidecar.pipeline.slabs import Block
from lanefeed_sidecar.pipeline.stacks import Stack

__all__ = ["BufferPool", "FixedData", "RaggedData", "Window"]

Array = NDArray[np.generic]
Index = NDArray[np.int64]

#: Rows shorter than this, on average, are gathered by one indexed take; longer ones by a copy each.
_TAKE_BELOW_BYTES = 256


@dataclass(slots=True)
class FixedData:
    """A fixed column of a window: values [rows, *shape]; validity [rows] or None while no null was seen.

    Values of a column that is part of the window's block are in the order of the line, all else in stream order.
    """

    values: Array
    validity: NDArray[np.uint8] | None = None


@dataclass(slots=True)
class RaggedData:
    """A ragged column: pieces until the window is whole, then values and offsets int64 [rows + 1] in stream order."""

    values: Array
    offsets: NDArray[np.int64]
    validity: NDArray[np.uint8] | None = None
    #: Elements of each row, int64 [rows], once whole.
    lengths: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    pieces: list[tuple[NDArray[np.int64], Array, NDArray[np.int64]]] = field(default_factory=list)


@dataclass(slots=True)
class Window:
    """One window. `waiting` holds the row groups that are still to be scattered; empty and `whole`: it may be read."""

    key: WindowKey
    rows: int
    ids: NDArray[np.int64]
    columns: list[FixedData | RaggedData]
    pieces: dict[RowGroupKey, Piece]
    waiting: set[RowGroupKey]
    nbytes: int
    whole: bool = False
    allocated: bool = False
    error: SidecarError | None = None
    readers: int = 0
    #: Makes `order`; see `pieces.window_order`.
    arrange: Callable[[WindowKey], Index] = field(kw_only=True)
    #: Buffers of runs of several columns, by the first column's index: [columns, at least rows, *shape].
    stacks: dict[int, Array] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    #: Memory of wide columns; None: they have buffers like others (padding).
    block: Block | None = None
    #: For each row of the stream its id and, with a block, once whole, its row of the slabs: [rows, 1 or 2].
    marks: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 1), np.int64))
    _buffers: list[Array] = field(default_factory=list)
    #: Runs of several scalar columns, which come in the order of the line; columns of none, for the rest.
    _lined: list[Stack] = field(default_factory=list)
    _single: list[int] = field(default_factory=list)
    _wide: list[int] = field(default_factory=list)
    _pool: BufferPool | None = None
    _order: Index | None = None
    _places: Index | None = None

    @classmethod
    def open(
        cls,
        key: WindowKey,
        pieces: dict[RowGroupKey, Piece],
        arrange: Callable[[WindowKey], Index],
        *,
        rows: int,
        nbytes: int,
    ) -> "Window":
        """A window of `rows` rows that will take about `nbytes`; it has no buffers and no order yet."""
        return cls(key, rows, np.zeros(0, np.int64), [], pieces, set(pieces), nbytes, arrange=arrange)

    def order(self) -> Index:
        """Row of the line for each row of the stream; made once, by whoever asks first."""
        with self.lock:
            if self._order is None:
                self._order = self.arrange(self.key)
            return self._order

    def places(self) -> Index:
        """Row of the stream for each row of the line; made once."""
        order = self.order()
        with self.lock:
            if self._places is None:
                self._places = np.empty(self.rows, np.int64)
                self._places[order] = np.arange(self.rows, dtype=np.int64)
            return self._places

    def allocate(self, columns: tuple[Column, ...], pool: BufferPool, capacity: int) -> None:
        """Take buffers, when the first row group comes: by then the pool may have those of a window that was passed.

        Buffers hold max(capacity, rows) rows, so that windows cut short by a lane's end use the same ones.
        """
        if self.allocated:
            return
        self.allocated = True
        self._pool = pool
        size = max(capacity, self.rows)
        self.block = pool.block(columns, size) if self.key.window != PAD_WINDOW else None
        for run in plan_of(columns).runs:
            if self.block is not None and run.columns.start in self.block.slabs.arrays:
                self.columns += [FixedData(self.block.rows(index, self.rows)) for index in run.columns]
                self._wide += run.columns
                continue
            lined = len(run.columns) > 1 and not run.shape and self.key.window != PAD_WINDOW
            self._single += () if lined else run.columns
            if run.ragged:
                self.columns.append(RaggedData(np.zeros(0, run.dtype), np.zeros(self.rows + 1, np.int64)))
                continue
            buffer = pool.take(run.dtype.name, (len(run.columns), size, *run.shape))
            self._buffers.append(buffer)
            self.columns += map(FixedData, buffer[:, : self.rows])
            if len(run.columns) > 1:
                self.stacks[run.columns.start] = buffer
            if lined:
                self._lined.append(Stack(run.columns, buffer, self.rows))
        marks = pool.take("int64", (size, 1 if self.block is None else 2))
        self._buffers.append(marks)
        self.marks = marks[: self.rows]  # type: ignore[assignment]
        self.ids = self.marks[:, 0]
        self._measure()

    def _measure(self) -> None:
        ragged = [d for d in self.columns if isinstance(d, RaggedData)]
        self.nbytes = sum(b.nbytes for b in self._buffers) + sum(
            d.values.nbytes + d.offsets.nbytes + d.lengths.nbytes for d in ragged
        )
        self.nbytes += self.block.slabs.block_bytes if self.block is not None else 0

    def into(self, group: RowGroupKey, rows: int) -> dict[int, Array]:
        """Where the wide columns' values of a row group belong that lies whole in the window; else empty."""
        piece = self.pieces[group]
        if self.block is None or not isinstance(piece.source, slice) or piece.source != slice(0, rows):
            return {}
        return {index: self.block.rows(index, piece.at + rows)[piece.at :] for index in self._wide}

    def scatter(
        self, group: RowGroupKey, chunk: Chunk, first_row: int, first_id: int, *, there: Container[int] = ()
    ) -> None:
        """Put the rows of `chunk` that belong here at their places.

        chunk holds rows [first_row, first_row + chunk.rows) of the row group; `first_id` is the sample id of the row
        group's first row. Ids are written from what was decoded, not from the plan. `there`: columns whose values
        were read to their places (`into`).
        """
        cut = _within(self.pieces[group], first_row, chunk.rows)
        if cut is None:
            return
        source, line = cut
        if isinstance(source, slice):
            self.ids[line] = np.arange(first_id + first_row + source.start, first_id + first_row + source.stop)
        else:
            self.ids[line] = source + (first_id + first_row)
        if self._lined or self._wide:
            self._put(chunk, source, line, there)
        if self._single:
            self._put_single(chunk, source, self.places()[line])

    def _put(self, chunk: Chunk, source: slice | Index, line: slice | Index, there: Container[int]) -> None:
        """Columns that come in the order of the line."""
        if not (isinstance(source, slice) and isinstance(line, slice)):
            raise TypeError(f"window {self.key}: only padding picks single rows")
        # A window that comes at once needs no shuffle later.
        order = self.order() if self._lined and line == slice(0, self.rows) else None
        for stack in self._lined:
            stack.put(chunk, source, line.start, order)
            if stack.run.start not in chunk.blocks:
                for index in stack.run:
                    self._put_validity(index, chunk, source, line)
        for index in self._wide:
            column, lazy = chunk.columns[index], chunk.lazy.get(index)
            if lazy is not None:
                lazy.put(column, self.columns[index].values, np.arange(line.start, line.stop), source)
            elif index not in there:
                self.columns[index].values[line] = column.values[source]
            self._put_validity(index, chunk, source, line)

    def _put_single(self, chunk: Chunk, source: slice | Index, target: Index) -> None:
        """Columns that come in the order of the stream."""
        for index in self._single:
            data, column, lazy = self.columns[index], chunk.columns[index], chunk.lazy.get(index)
            if lazy is not None:
                lazy.put(column, data.values, target, source)
            elif isinstance(data, FixedData) and isinstance(column, FixedChunk):
                _scatter_rows(data.values, target, column.values[source])
            elif isinstance(data, RaggedData) and isinstance(column, RaggedChunk):
                values, offsets = _ragged_rows(column, source)
                with self.lock:
                    data.pieces.append((target, values, offsets))
                    self.nbytes += values.nbytes
            else:
                continue
            self._scatter_validity(data, column.validity, source, target)

    def _put_validity(self, index: int, chunk: Chunk, source: slice | Index, line: slice | Index) -> None:
        """Which values are null is kept in stream order for all columns."""
        validity = chunk.columns[index].validity
        if validity is not None:
            self._scatter_validity(self.columns[index], validity, source, self.places()[line])

    def _scatter_validity(
        self, data: FixedData | RaggedData, validity: NDArray[np.uint8] | None, source: slice | Index, target: Index
    ) -> None:
        if validity is None:
            return
        with self.lock:
            if data.validity is None:
                data.validity = np.ones(self.rows, dtype=np.uint8)
            data.validity[target] = validity[source]

    def finish(self) -> None:
        """Put what came in the order of the line into stream order; called once, by the thread of the last piece."""
        order = self.order()
        self.ids[:] = self.ids[order]
        self._shuffle([stack for stack in self._lined if not stack.shuffled], order)
        if self.block is not None:
            np.add(order, self.block.first, out=self.marks[:, 1])
        for data in self.columns:
            if isinstance(data, RaggedData):
                _finish_ragged(data, self.rows)
        self._order = self._places = None
        self._measure()

    def _shuffle(self, stacks: list[Stack], order: Index) -> None:
        if not stacks or self._pool is None:
            return
        for stack in stacks:
            buffer = self._pool.take(stack.buffer.dtype.name, stack.buffer.shape)
            before = stack.shuffle(order, buffer)
            self._buffers = [buffer if one is before else one for one in self._buffers]
            self.stacks[stack.run.start] = buffer
            for index, part in zip(stack.run, buffer, strict=True):
                data = self.columns[index]
                if isinstance(data, FixedData):
                    data.values = part[: self.rows]
            self._pool.give(before)

    def close(self, pool: BufferPool) -> None:
        """Give the buffers back; nobody may read the window any more."""
        for buffer in self._buffers:
            pool.give(buffer)
        self._buffers.clear()
        if self.block is not None and not self.block.given:
            pool.give_block(self.block)


def _within(piece: Piece, first: int, rows: int) -> tuple[slice | Index, slice | Index] | None:
    """The piece cut to rows [first, first + rows) of its row group: these relative to `first`, and their rows of the
    line; None if nothing is left.
    """
    if isinstance(piece.source, slice):
        low, high = max(piece.source.start, first), min(piece.source.stop, first + rows)
        at = piece.at - piece.source.start
        return (slice(low - first, high - first), slice(at + low, at + high)) if low < high else None
    inside = (piece.source >= first) & (piece.source < first + rows)
    return (piece.source[inside] - first, piece.at + np.flatnonzero(inside)) if inside.any() else None


def _scatter_rows(buffer: Array, target: NDArray[np.int64], rows: Array) -> None:
    """buffer[target] = rows; whole rows as opaque items, which NumPy moves at memory speed without the GIL."""
    width = 0 if buffer.ndim == 1 else buffer.dtype.itemsize * math.prod(buffer.shape[1:])
    if not width or not rows.flags.c_contiguous:
        buffer[target] = rows
        return
    item = np.dtype((np.void, width))
    buffer.reshape(len(buffer), -1).view(item)[:, 0][target] = rows.reshape(len(rows), -1).view(item)[:, 0]


def _ragged_rows(column: RaggedChunk, source: slice | NDArray[np.int64]) -> tuple[Array, NDArray[np.int64]]:
    """Copies of the rows' values and zero-based offsets, so that the chunk's memory can go."""
    if isinstance(source, slice):
        offsets = column.offsets[source.start : source.stop + 1]
        return column.values[offsets[0] : offsets[-1]].copy(), offsets - offsets[0]
    parts = [column.values[column.offsets[i] : column.offsets[i + 1]] for i in source.tolist()]
    offsets = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum([len(p) for p in parts], out=offsets[1:])
    return np.concatenate(parts) if parts else column.values[:0], offsets


def _finish_ragged(data: RaggedData, rows: int) -> None:
    lengths = np.zeros(rows, dtype=np.int64)
    for target, _, offsets in data.pieces:
        lengths[target] = np.diff(offsets)
    data.lengths = lengths
    np.cumsum(lengths, out=data.offsets[1:])
    data.offsets[0] = 0
    total = int(data.offsets[-1])
    data.values = np.empty(total, dtype=data.values.dtype)
    for target, values, offsets in data.pieces:
        _place_rows(data.values, data.offsets[target], values, offsets)
    data.pieces = []


def _place_rows(out: Array, at: NDArray[np.int64], values: Array, offsets: NDArray[np.int64]) -> None:
    """out[at[i] : ...] = row i, for all rows."""
    if not len(at) or not len(values):
        return
    if values.nbytes >= _TAKE_BELOW_BYTES * len(at):
        bounds = offsets.tolist()
        for i, start in enumerate(at.tolist()):
            out[start : start + bounds[i + 1] - bounds[i]] = values[bounds[i] : bounds[i + 1]]
        return
    lengths = np.diff(offsets)
    index = np.repeat(at - offsets[:-1], lengths) + np.arange(len(values), dtype=np.int64)
    out[index] = values
