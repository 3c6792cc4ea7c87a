"""Many columns and steps of a frame at once: one array over all of them, cut into what users look at.

Making a tensor costs microseconds, most of them Python's; torch cuts one tensor into hundreds for a fraction. Called by
`frame`, which knows where columns lie. Cuts of a tensor are plain tensors, not views of each other (`_tensors.pieces`).
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

__all__ = ["columns_of", "cut_up", "matrix"]


def cut_up(values: Any, sizes: Sequence[int]) -> Sequence[Any]:
    """The array or tensor in pieces of `sizes` along its first dimension."""
    if isinstance(values, np.ndarray):
        found, at = [], 0
        for size in sizes:
            found.append(values[at : at + size])
            at += size
        return found
    return _pieces()(values, sizes)


@cache
def _pieces() -> Callable[[Any, Sequence[int]], Sequence[Any]]:
    # Where tensors come from torch is imported already; where they do not it must not be.
    from lanefeed._tensors import pieces

    return pieces


def columns_of(values: Any, *, columns: int, steps: int, rows: int, stride: int) -> list[Sequence[Any]]:
    """Per step the columns [rows, ...]: column c begins at c * stride, and holds `steps` times `rows`.

    Args:
        values: what lies from the first column's first step to the last column's last one.
        columns: how many.
        steps: of each.
        rows: of a step.
        stride: rows from one column to the next.
    """
    rest = stride - steps * rows
    if columns == 1 or not rest:
        sizes = [rows] * (steps * columns)
        each = steps
    else:
        sizes = ([rows] * steps + [rest]) * (columns - 1) + [rows] * steps
        each = steps + 1
    found = cut_up(values, sizes)
    return [found[step::each] for step in range(steps)]


def matrix(values: Any, rows: int, columns: int, stride: int) -> Any:
    """[rows, columns] over the same memory: column c begins at c * stride."""
    if isinstance(values, np.ndarray):
        size = values.itemsize
        return np.ndarray((rows, columns), values.dtype, values, 0, (size, stride * size))
    return values.as_strided((rows, columns), (1, stride))
