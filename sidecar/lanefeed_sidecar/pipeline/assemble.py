"""Fills a slot with a frame: K steps of one rank, copied from windows in whole blocks.

Windows are in stream order already, so that a lane's part of K steps is one block copy per column wherever the steps
lie in one window; rows of wide columns are gathered (`gather`). Sums for the ledger are made from the ids in the slot,
which travelled with the rows. Called by the engine with windows that are whole; no waiting and no scheduling here.
"""

import time
from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from lanefeed_core import ledger
from lanefeed_core.errors import LayoutError
from lanefeed_core.lanes import Lanes
from lanefeed_core.layout import SLOT_HEADER_BYTES, Column, aligned, check_batch_fits, fixed_frame_bytes
from lanefeed_sidecar.errors import BatchTooLarge
from lanefeed_sidecar.pipeline.copies import Copy, Shape, copy_rows, frame_copies, frame_keys
from lanefeed_sidecar.pipeline.frames import Block, EpochSum, FrameMeta
from lanefeed_sidecar.pipeline.gather import Gather
from lanefeed_sidecar.pipeline.needs import PAD_WINDOW, WindowKey
from lanefeed_sidecar.pipeline.plan import Run, plan_of
from lanefeed_sidecar.pipeline.slabs import is_wide
from lanefeed_sidecar.pipeline.stats import Stats
from lanefeed_sidecar.pipeline.window import RaggedData, Window

__all__ = ["Copy", "Shape", "assemble", "frame_copies", "frame_keys"]

Slot = NDArray[np.uint8]


class _Cursor:
    """Hands out aligned blocks of the slot. Raises LayoutError when it is full."""

    def __init__(self, slot: Slot, rows: int) -> None:
        self.slot, self._rows = slot, rows
        self.at = SLOT_HEADER_BYTES

    def block(self, nbytes: int) -> tuple[int, Slot]:
        """(offset, bytes) of a new block."""
        start = self.at
        self.at = start + aligned(nbytes)
        check_batch_fits(self.at, len(self.slot), self._rows)
        return start, self.slot[start : start + nbytes]

    def blocks(self, nbytes: int, count: int) -> tuple[list[int], int]:
        """Offsets of `count` new blocks of one size, one after the other, and the bytes from one to the next."""
        start, step = self.at, aligned(nbytes)
        self.at = start + count * step
        check_batch_fits(self.at, len(self.slot), self._rows)
        return [start + number * step for number in range(count)], step


def assemble(
    lanes: Lanes,
    columns: tuple[Column, ...],
    shape: Shape,
    copies: list[Copy],
    windows: dict[WindowKey, Window],
    slot: Slot,
    stats: Stats,
) -> FrameMeta:
    """Fill the slot. Where ragged values would not fit, the frame is cut to the steps that do.

    Raises BatchTooLarge where a single step does not fit.
    """
    began = time.perf_counter()
    steps = _steps_that_fit(columns, shape, copies, windows, len(slot))
    try:
        meta = _fill(lanes, columns, shape.cut(steps), copies, windows, slot)
    except LayoutError as error:
        raise BatchTooLarge(str(error)) from None
    stats.spend(assemble=time.perf_counter() - began)
    return meta


def _steps_that_fit(
    columns: tuple[Column, ...], shape: Shape, copies: list[Copy], windows: dict[WindowKey, Window], room: int
) -> int:
    """The most steps, but at least one, whose values a slot of `room` bytes holds."""
    ragged = [(i, column.itemsize) for i, column in enumerate(columns) if column.ragged]
    if not ragged:
        return shape.steps
    ends = []
    for index, itemsize in ragged:
        taken = np.zeros(shape.steps, dtype=np.int64)
        for copy in _clip(copies, shape.steps):
            data = windows[copy.key].columns[index]
            if isinstance(data, RaggedData):
                first = copy.first + np.arange(copy.steps, dtype=np.int64) * copy.stride
                lengths = data.offsets[first + copy.rows] - data.offsets[first]
                taken[copy.step : copy.step + copy.steps] += lengths
        ends.append(np.cumsum(taken) * itemsize)
    listed = list(columns)
    padded = any(c.key.window == PAD_WINDOW for c in copies)

    def size(steps: int) -> int:
        values = sum(aligned(int(end[steps - 1])) for end in ends)
        return fixed_frame_bytes(listed, shape.rows, steps, mask=padded) + values

    return max(1, bisect_right(range(1, shape.steps + 1), room, key=size))


def _fill(
    lanes: Lanes,
    columns: tuple[Column, ...],
    shape: Shape,
    copies: list[Copy],
    windows: dict[WindowKey, Window],
    slot: Slot,
) -> FrameMeta:
    steps, rows = shape.steps, shape.rows
    parts = _clip(copies, steps)
    cursor = _Cursor(slot, rows)
    ids_offset, raw = cursor.block(8 * steps * rows)
    ids = raw.view(np.int64).reshape(steps, rows)
    gather = Gather(parts, windows, steps, rows)
    gather.ids(ids)
    mask_offset, mask = _mask(shape, parts, cursor)
    blocks: list[Block] = []
    for run in plan_of(columns).runs:
        if is_wide(run):
            blocks += _gathered(run, columns, shape, parts, windows, cursor, gather)
        elif len(run.columns) > 1:
            blocks += _stack(run, columns, shape, parts, windows, cursor)
        else:
            index = run.columns.start
            blocks.append(_column(index, columns[index], shape, parts, windows, cursor))
    samples = rows if mask is None else int(mask.sum())
    sums = [int(ledger.sum_ids(ids[0][mask]))] if mask is not None else ledger.sum_steps(ids).tolist()
    return FrameMeta(
        first_step=shape.total,
        epoch=shape.epoch,
        steps=steps,
        rows=rows,
        samples=samples,
        global_samples=lanes.step_samples(shape.step),
        blocks=tuple(blocks),
        ids_offset=ids_offset,
        mask_offset=mask_offset,
        sums=tuple(sums),
        epoch_sums=() if lanes.spec.aligned else _epoch_sums(shape, parts, ids),
    )


def _clip(copies: list[Copy], steps: int) -> list[Copy]:
    if all(c.step + c.steps <= steps for c in copies):
        return copies
    return [
        Copy(c.key, c.first, c.stride, c.step, min(c.steps, steps - c.step), c.at, c.rows)
        for c in copies
        if c.step < steps
    ]


def _words(array: NDArray[np.generic], column: Column, *lead: int) -> NDArray[np.generic]:
    """The same memory, [*lead, words]."""
    return array.reshape(*lead, column.row_bytes // column.itemsize).view(np.uint64)


def _mask(shape: Shape, copies: list[Copy], cursor: _Cursor) -> tuple[int, NDArray[np.bool_] | None]:
    pads = [c for c in copies if c.key.window == PAD_WINDOW]
    if not pads:
        return 0, None
    offset, raw = cursor.block(shape.rows)
    raw[:] = 1
    for copy in pads:
        raw[copy.at : copy.at + copy.rows] = 0
    return offset, raw.view(np.bool_)


def _stack(
    run: Run,
    columns: tuple[Column, ...],
    shape: Shape,
    copies: list[Copy],
    windows: dict[WindowKey, Window],
    cursor: _Cursor,
) -> list[Block]:
    """Neighbouring columns of one dtype and shape: their blocks follow each other, so that all are copied at once."""
    steps, rows, width, count = shape.steps, shape.rows, run.row_bytes, len(run.columns)
    starts, apart = cursor.blocks(width * steps * rows, count)
    strides = (apart, width * rows, width, *run.inner)
    out = np.ndarray((count, steps, rows, *run.shape), run.dtype, cursor.slot, starts[0], strides)
    for copy in copies:
        source = windows[copy.key].stacks[run.columns.start]
        target = out[:, copy.step : copy.step + copy.steps, copy.at : copy.at + copy.rows]
        strides = (source.strides[0], copy.stride * width, *source.strides[1:])
        target[...] = np.ndarray(target.shape, source.dtype, source, copy.first * width, strides)
    return _blocks(run, starts, columns, shape, copies, windows, cursor)


def _gathered(
    run: Run,
    columns: tuple[Column, ...],
    shape: Shape,
    copies: list[Copy],
    windows: dict[WindowKey, Window],
    cursor: _Cursor,
    gather: Gather,
) -> list[Block]:
    """Neighbouring wide columns: their blocks follow each other too, for the trainer."""
    size = run.row_bytes * shape.steps * shape.rows
    starts, _ = cursor.blocks(size, len(run.columns))
    for index, start in zip(run.columns, starts, strict=True):
        out = cursor.slot[start : start + size].view(run.dtype).reshape(shape.steps, shape.rows, *run.shape)
        gather.column(index, out)
    return _blocks(run, starts, columns, shape, copies, windows, cursor)


def _blocks(
    run: Run,
    starts: list[int],
    columns: tuple[Column, ...],
    shape: Shape,
    copies: list[Copy],
    windows: dict[WindowKey, Window],
    cursor: _Cursor,
) -> list[Block]:
    """Descriptions of a run's values at `starts`, with their validity."""
    if not run.nullable:
        return list(map(Block, starts))
    return [
        Block(start, validity=_validity_block(index, shape, copies, windows, cursor) if columns[index].nullable else 0)
        for index, start in zip(run.columns, starts, strict=True)
    ]


def _column(
    index: int,
    column: Column,
    shape: Shape,
    copies: list[Copy],
    windows: dict[WindowKey, Window],
    cursor: _Cursor,
) -> Block:
    steps, rows = shape.steps, shape.rows
    if column.ragged:
        block = _ragged_block(index, column, shape, copies, windows, cursor)
    else:
        offset, raw = cursor.block(column.row_bytes * steps * rows)
        # Rows of 64-bit words: NumPy moves strided rows of them quicker.
        words = bool(column.shape) and column.row_bytes % 8 == 0 and column.row_bytes > 0
        out = raw.view(column.dtype).reshape(steps, rows, *column.shape)
        if words:
            out = _words(out, column, steps, rows)
        for copy in copies:
            source = windows[copy.key].columns[index].values
            copy_rows(out, _words(source, column, len(source)) if words else source, copy)
        block = Block(offset)
    if column.nullable:
        block = block._replace(validity=_validity_block(index, shape, copies, windows, cursor))
    return block


def _validity_block(
    index: int, shape: Shape, copies: list[Copy], windows: dict[WindowKey, Window], cursor: _Cursor
) -> int:
    known = {c.key: windows[c.key].columns[index].validity for c in copies}
    if all(v is None for v in known.values()):
        return 0
    offset, raw = cursor.block(shape.steps * shape.rows)
    raw[:] = 1
    out = raw.reshape(shape.steps, shape.rows)
    for copy in copies:
        validity = known[copy.key]
        if validity is not None:
            copy_rows(out, validity, copy)
    return offset


def _ragged_block(
    index: int,
    column: Column,
    shape: Shape,
    copies: list[Copy],
    windows: dict[WindowKey, Window],
    cursor: _Cursor,
) -> Block:
    steps, rows = shape.steps, shape.rows
    offsets_at, raw = cursor.block(8 * steps * (rows + 1))
    offsets = raw.view(np.int64).reshape(steps, rows + 1)
    found = [(c, d) for c in copies if isinstance(d := windows[c.key].columns[index], RaggedData)]
    offsets[:, 0] = 0
    ends = offsets[:, 1:]
    for copy, data in found:
        copy_rows(ends, data.lengths, copy)
    np.cumsum(ends, axis=1, out=ends)
    starts = np.zeros(steps + 1, dtype=np.int64)
    np.cumsum(offsets[:, rows], out=starts[1:])
    values_at, raw = cursor.block(int(starts[-1]) * column.itemsize)
    values = raw.view(column.dtype)
    for copy, data in found:
        first = copy.first + np.arange(copy.steps, dtype=np.int64) * copy.stride
        low, high = data.offsets[first].tolist(), data.offsets[first + copy.rows].tolist()
        k = slice(copy.step, copy.step + copy.steps)
        targets = (starts[k] + offsets[k, copy.at]).tolist()
        source = data.values
        for at, begin, end in zip(targets, low, high, strict=True):
            values[at : at + end - begin] = source[begin:end]
    return Block(values_at, offsets_at, 0, tuple(starts.tolist()))


def _epoch_sums(shape: Shape, copies: list[Copy], ids: NDArray[np.int64]) -> tuple[EpochSum, ...]:
    """Continuous: lanes are in epochs of their own, so that each step is summed up by epoch."""
    epochs = sorted({c.key.epoch for c in copies})
    if len(epochs) == 1:
        sums = ledger.sum_steps(ids).tolist()
        return tuple(EpochSum(k, epochs[0], shape.rows, int(s)) for k, s in enumerate(sums))
    lap = np.zeros((shape.steps, shape.rows), dtype=np.int64)
    for copy in copies:
        lap[copy.step : copy.step + copy.steps, copy.at : copy.at + copy.rows] = copy.key.epoch
    found = []
    for k in range(shape.steps):
        for epoch in epochs:
            mine = ids[k][lap[k] == epoch]
            if len(mine):
                found.append(EpochSum(k, epoch, len(mine), ledger.sum_ids(mine)))
    return tuple(found)
