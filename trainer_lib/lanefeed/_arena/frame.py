"""One frame: K steps of one rank in one slot (or in a copy, or on a device), cut into columns and steps on demand.

The loader opens it, batches ask it for a column of one step when somebody looks at it. A step's column is made as one
NumPy view and, for tensors, one tensor over that view, so columns that nobody touches cost nothing. Views are writable.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanefeed._ragged import Ragged
from lanefeed_core.layout import Column
from lanefeed_core.proto import lanefeed_pb2 as pb

__all__ = ["Cut", "Frame", "frame_end", "host_cut"]

#: Cuts elements of a dtype out of the frame's bytes at an offset, in a shape; returns an array or a tensor over it.
Cut = Callable[[int, "np.dtype[Any]", tuple[int, ...]], Any]

_BOOL, _INT64 = np.dtype(np.bool_), np.dtype(np.int64)


def frame_end(message: pb.Frame, columns: Sequence[Column]) -> int:
    """Bytes of the slot that the frame uses, from the slot's start."""
    steps, rows = message.steps, message.rows
    end = message.ids_offset + 8 * steps * rows
    if message.mask_offset:
        end = max(end, message.mask_offset + steps * rows)
    for column, block in zip(columns, message.blocks, strict=True):
        if column.ragged:
            size = column.itemsize * block.starts[-1]
            end = max(end, block.values + size, block.offsets + 8 * steps * (rows + 1))
        else:
            end = max(end, block.values + column.row_bytes * steps * rows)
        if block.validity:
            end = max(end, block.validity + steps * rows)
    return int(end)


class Frame:
    """Columns of the steps of a frame.

    Args:
        message: the frame's description; must not change any more.
        columns: those of the stream, in the order of the message's blocks.
        cut: makes an array or tensor of the frame's bytes.
        host: the same for bytes that stay on the host: ids.
        world: number of ranks, for the weight.
    """

    __slots__ = (
        "_at",
        "_blocks",
        "_cut",
        "_host",
        "_ids",
        "_mask",
        "epoch",
        "first",
        "names",
        "rows",
        "steps",
        "weight",
    )

    def __init__(self, message: pb.Frame, columns: Sequence[Column], cut: Cut, host: Cut, world: int) -> None:
        """Nothing is cut yet."""
        self.rows = message.rows
        self.steps = message.steps
        self.epoch = message.epoch
        #: Total step of the first batch.
        self.first = message.first_step
        self.weight = message.samples * world / message.global_samples if message.global_samples else 0.0
        self.names = tuple(column.name for column in columns)
        self._at = {column.name: at for at, column in enumerate(columns)}
        self._blocks = tuple(
            (column, _dtype(column), block.values, block.offsets, block.validity, tuple(block.starts))
            for column, block in zip(columns, message.blocks, strict=True)
        )
        self._ids = message.ids_offset
        self._mask = message.mask_offset
        self._cut = cut
        self._host = host

    def ids(self, step: int) -> Any:
        """Sample ids of a step, int64 [R], on the host."""
        return self._host(self._ids + 8 * step * self.rows, _INT64, (self.rows,))

    def mask(self, step: int) -> Any:
        """bool [R], False for padding, or None where nothing is padded."""
        return self._cut(self._mask + step * self.rows, _BOOL, (self.rows,)) if self._mask else None

    def value(self, name: str, step: int) -> Any:
        """A column of a step: [R, *shape], or Ragged. Raises KeyError for a column that the stream does not have."""
        column, dtype, values, offsets, validity, starts = self._blocks[self._at[name]]
        rows = self.rows
        if not column.ragged:
            return self._cut(values + step * rows * column.row_bytes, dtype, (rows, *column.shape))
        first, last = starts[step], starts[step + 1]
        return Ragged(
            self._cut(values + first * dtype.itemsize, dtype, (last - first,)),
            self._cut(offsets + 8 * step * (rows + 1), _INT64, (rows + 1,)),
            logical=column.logical,
            validity=self._cut(validity + step * rows, _BOOL, (rows,)) if validity else None,
        )

    def validity(self, step: int) -> dict[str, Any]:
        """Column -> bool [R], False for nulls; only columns with a null in this frame are in it."""
        return {
            block[0].name: self._cut(block[4] + step * self.rows, _BOOL, (self.rows,))
            for block in self._blocks
            if block[4]
        }


def _dtype(column: Column) -> "np.dtype[Any]":
    return _BOOL if column.logical == "bool" and column.itemsize == 1 else np.dtype(column.dtype)


def host_cut(base: NDArray[np.uint8], wrap: Callable[[Any], Any] | None) -> Cut:
    """A cut of a frame in host memory: views of `base`, or with `wrap` what it makes of them (a tensor over each)."""

    def plain(offset: int, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> Any:
        return np.ndarray(shape, dtype, base, offset)

    def wrapped(offset: int, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> Any:
        return wrap(np.ndarray(shape, dtype, base, offset))  # type: ignore[misc]

    return wrapped if wrap else plain
