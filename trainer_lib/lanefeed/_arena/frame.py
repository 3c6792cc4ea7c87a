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

__all__ = ["Cut", "Frame", "Layout", "frame_end", "host_cut"]

#: Cuts elements of a dtype out of the frame's bytes at an offset, in a shape; returns an array or a tensor over it.
Cut = Callable[[int, "np.dtype[Any]", tuple[int, ...]], Any]

#: Steps whose values are made in one go.
_AHEAD = 16

_BOOL, _INT64 = np.dtype(np.bool_), np.dtype(np.int64)


class Layout:
    """A stream's columns, prepared once so that a frame costs the same whatever their number."""

    __slots__ = ("at", "columns", "names", "nullable")

    def __init__(self, columns: Sequence[Column]) -> None:
        """`columns` in the order of the frames' blocks."""
        self.names = tuple(column.name for column in columns)
        self.at = {name: at for at, name in enumerate(self.names)}
        #: (column, dtype of what users get, bytes of a row or, ragged, of an element).
        self.columns = tuple((column, _dtype(column), column.row_bytes) for column in columns)
        self.nullable = tuple(at for at, column in enumerate(columns) if column.nullable)


def _dtype(column: Column) -> "np.dtype[Any]":
    return _BOOL if column.logical == "bool" and column.itemsize == 1 else np.dtype(column.dtype)


def frame_end(message: pb.Frame, layout: Layout) -> int:
    """Bytes of the slot that the frame uses, from the slot's start."""
    steps, rows = message.steps, message.rows
    end = message.ids_offset + 8 * steps * rows
    if message.mask_offset:
        end = max(end, message.mask_offset + steps * rows)
    for (column, _, size), block in zip(layout.columns, message.blocks, strict=True):
        if column.ragged:
            end = max(end, block.values + size * block.starts[steps], block.offsets + 8 * steps * (rows + 1))
        else:
            end = max(end, block.values + size * steps * rows)
        if block.validity:
            end = max(end, block.validity + steps * rows)
    return int(end)


class Frame:
    """Columns of the steps of a frame.

    Args:
        message: the frame's description; must not change any more.
        layout: the stream's columns.
        cut: makes an array or tensor of the frame's bytes.
        host: the same for bytes that stay on the host: ids.
        world: number of ranks, for the weight.
    """

    __slots__ = (
        "_blocks",
        "_cut",
        "_fixed",
        "_host",
        "_ids",
        "_layout",
        "_mask",
        "epoch",
        "first",
        "names",
        "rows",
        "steps",
        "weight",
    )

    def __init__(self, message: pb.Frame, layout: Layout, cut: Cut, host: Cut, world: int) -> None:
        """Nothing is cut yet."""
        self.rows: int = message.rows
        self.steps: int = message.steps
        self.epoch: int = message.epoch
        #: Total step of the first batch.
        self.first: int = message.first_step
        self.weight: float = message.samples * world / message.global_samples if message.global_samples else 0.0
        self.names = layout.names
        self._layout = layout
        self._blocks = message.blocks
        #: Columns of fixed shape that were asked for: what is made already, by step (see `_made_ahead`).
        self._fixed: dict[str, dict[int, Any]] = {}
        self._ids: int = message.ids_offset
        self._mask: int = message.mask_offset
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
        made = self._fixed.get(name)
        if made is not None and step in made:
            return made.pop(step)
        at = self._layout.at[name]
        if self._layout.columns[at][0].ragged:
            return self._ragged(at, step)
        return self._made_ahead(name, at, step)

    def _made_ahead(self, name: str, at: int, step: int) -> Any:
        """The column's values of the next steps; keeps all but the first, each to be handed out once.

        Making a tensor takes a microsecond in a row of them, and 30 when a training step has pushed its code out of the
        CPU's caches.
        """
        column, dtype, size = self._layout.columns[at]
        first, stride, shape, cut = self._blocks[at].values, size * self.rows, (self.rows, *column.shape), self._cut
        ahead = range(step + 1, min(step + _AHEAD, self.steps))
        self._fixed[name] = {k: cut(first + k * stride, dtype, shape) for k in ahead}
        return cut(first + step * stride, dtype, shape)

    def _ragged(self, at: int, step: int) -> Ragged:
        (column, dtype, size), block, rows = self._layout.columns[at], self._blocks[at], self.rows
        first, last = block.starts[step], block.starts[step + 1]
        return Ragged(
            self._cut(block.values + first * size, dtype, (last - first,)),
            self._cut(block.offsets + 8 * step * (rows + 1), _INT64, (rows + 1,)),
            logical=column.logical,
            validity=self._cut(block.validity + step * rows, _BOOL, (rows,)) if block.validity else None,
        )

    def validity(self, step: int) -> dict[str, Any]:
        """Column -> bool [R], False for nulls; only columns with a null in this frame are in it."""
        found = ((at, self._blocks[at].validity) for at in self._layout.nullable)
        return {
            self.names[at]: self._cut(first + step * self.rows, _BOOL, (self.rows,)) for at, first in found if first
        }


def host_cut(base: NDArray[np.uint8], wrap: Callable[[Any], Any] | None) -> Cut:
    """A cut of a frame in host memory: views of `base`, or with `wrap` what it makes of them (a tensor over each)."""

    def plain(offset: int, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> Any:
        return np.ndarray(shape, dtype, base, offset)

    def wrapped(offset: int, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> Any:
        return wrap(np.ndarray(shape, dtype, base, offset))  # type: ignore[misc]

    return wrapped if wrap else plain
