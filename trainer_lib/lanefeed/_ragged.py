"""Rows of different lengths: strings, binary and lists, as values and offsets.

Made by `_arena.frame` for ragged columns, handed to users. NumPy here; with tensors the same object holds tensors, and
`_tensors` does what needs torch. Nothing is copied until a method says so.
"""

import itertools
from typing import Any

import numpy as np

__all__ = ["Ragged"]


class Ragged:
    """R rows of different lengths.

    values: elements of all rows end to end, [E] (uint8 for strings and binary). offsets: int64 [R + 1], row r is
    values[offsets[r]:offsets[r + 1]]. Both are NumPy arrays, or tensors where the loader gives tensors.
    """

    __slots__ = ("logical", "offsets", "validity", "values")

    def __init__(self, values: Any, offsets: Any, *, logical: str = "", validity: Any = None) -> None:
        """`logical` is "string", "binary" or ""; `validity` bool [R] or None: rows that are False are null."""
        self.values = values
        self.offsets = offsets
        self.logical = logical
        self.validity = validity

    @property
    def lengths(self) -> Any:
        """Elements in each row, int64 [R]."""
        return self.offsets[1:] - self.offsets[:-1]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Any:
        """The elements of one row, a view. Raises IndexError outside the rows."""
        count = len(self)
        if not -count <= row < count:
            raise IndexError(f"row {row} of {count}")
        row %= count
        return self.values[int(self.offsets[row]) : int(self.offsets[row + 1])]

    def __repr__(self) -> str:
        kind = f" of {self.logical}" if self.logical else ""
        return f"Ragged({len(self)} rows{kind}, {len(self.values)} elements of {self.values.dtype})"

    def to_list(self) -> list[Any]:
        """Rows as Python objects: str for strings, bytes for binary, lists of numbers otherwise; None for nulls."""
        values, offsets = _host(self.values), _host(self.offsets).tolist()
        pairs = itertools.pairwise(offsets)
        if self.logical in ("string", "binary"):
            raw = values.tobytes()
            rows: list[Any] = [raw[a:b] for a, b in pairs]
            if self.logical == "string":
                rows = [row.decode("utf-8") for row in rows]
        else:
            rows = [values[a:b].tolist() for a, b in pairs]
        if self.validity is None:
            return rows
        return [row if valid else None for row, valid in zip(rows, _host(self.validity).tolist(), strict=True)]

    def to_padded(self, value: Any = 0, *, length: int | None = None) -> Any:
        """Rows as one [R, length] array or tensor, filled with `value`; `length` cuts or widens (default: longest)."""
        lengths = self.lengths
        if length is None:
            length = int(lengths.max()) if len(self) else 0
        if not isinstance(self.values, np.ndarray):
            from lanefeed import _tensors

            return _tensors.padded(self, value, length)
        out = np.full((len(self), length), value, dtype=self.values.dtype)
        keep = np.arange(length)[None, :] < lengths[:, None]
        source = self.offsets[:-1, None] + np.arange(length)[None, :]
        out[keep] = self.values[source[keep]]
        return out

    def to_nested(self) -> Any:
        """A torch nested tensor (jagged layout) over the same values. Needs torch."""
        from lanefeed import _tensors

        return _tensors.nested(self)

    def to(self, *args: Any, **kwargs: Any) -> "Ragged":
        """Values, offsets and validity moved by torch's `Tensor.to(*args, **kwargs)`."""
        valid = self.validity if self.validity is None else self.validity.to(*args, **kwargs)
        values, offsets = self.values.to(*args, **kwargs), self.offsets.to(*args, **kwargs)
        return Ragged(values, offsets, logical=self.logical, validity=valid)


def _host(array: Any) -> Any:
    """NumPy view (or copy, from a device) of an array or tensor."""
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()
