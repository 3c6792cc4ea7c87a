"""What `Batch.stack` needs besides the frame: is a column that somebody holds the view's own, and the copy where not.

Called by `_batch`. Tensors and arrays; no torch is imported where there are arrays.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lanefeed.errors import UsageError

__all__ = ["copied", "holds"]


def holds(view: Any, at: int, column: Any) -> bool:
    """Whether column `at` of the view [rows, columns] is that memory, and nothing else."""
    if type(view) is not type(column) or (view.dtype, view.shape[:1]) != (column.dtype, column.shape):
        return False
    if isinstance(view, np.ndarray):
        return bool(_address(view) + at * view.strides[1] == _address(column) and column.strides == view.strides[:1])
    first = view.data_ptr() + at * view.stride(1) * view.element_size()
    return bool(first == column.data_ptr() and column.stride() == view.stride()[:1])


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def copied(names: Sequence[str], columns: Sequence[Any]) -> Any:
    """A new tensor or array [rows, columns, ...]. Raises UsageError where the columns differ in kind."""
    kinds = [_kind(column) for column in columns]
    for name, kind in zip(names, kinds, strict=True):
        if kind is None or kind != kinds[0]:
            said = "ragged, or no tensor" if kind is None else f"{kind[1]} {list(kind[2])}"
            raise UsageError(
                f"column {name!r} is {said}, so that it cannot be stacked with {names[0]!r}: stack() takes columns of "
                "one dtype and shape"
            )
    if isinstance(columns[0], np.ndarray):
        return np.stack(columns, axis=1)
    from lanefeed._tensors import stacked

    return stacked(columns)


def _kind(column: Any) -> tuple[type, Any, tuple[int, ...]] | None:
    if not (hasattr(column, "dtype") and hasattr(column, "shape")):
        return None
    return type(column), column.dtype, tuple(column.shape)
