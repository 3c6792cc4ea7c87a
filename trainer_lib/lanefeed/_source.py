"""Where a batch's values come from: a frame of several steps (`_arena.frame`), or values that are at hand.

Called by `_batch`. What is behind it is nobody's business: memory that is shared, copied, or on a device.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

__all__ = ["Fixed", "Source"]


class Source(Protocol):
    """Where a batch's values come from: a frame of several steps, or fixed values."""

    @property
    def names(self) -> tuple[str, ...]:
        """Columns in order."""

    @property
    def epoch(self) -> int:
        """Epoch of the steps."""

    @property
    def rows(self) -> int:
        """Rows of each step, padding included."""

    @property
    def weight(self) -> float:
        """See `Batch.weight`."""

    def value(self, name: str, step: int) -> Any:
        """A column of a step; KeyError if there is none."""

    def values(self, step: int) -> Sequence[Any]:
        """All columns of a step, in order."""

    def stack(self, names: tuple[str, ...], step: int) -> Any:
        """Columns of a step as one [rows, columns] over the same memory, or None; KeyError if there is none."""

    def ids(self, step: int) -> Any:
        """Sample ids of a step."""

    def mask(self, step: int) -> Any:
        """Mask of a step or None."""

    def validity(self, step: int) -> dict[str, Any]:
        """Validity of a step's columns with nulls."""


class Fixed:
    """Source of one batch whose values are at hand."""

    __slots__ = ("_ids", "_mask", "_validity", "_values", "epoch", "names", "rows", "weight")

    def __init__(
        self,
        values: Mapping[str, Any],
        *,
        ids: Any,
        mask: Any = None,
        validity: Mapping[str, Any] | None = None,
        weight: float = 1.0,
        epoch: int = 0,
        rows: int = 0,
    ) -> None:
        self._values = dict(values)
        self.names = tuple(self._values)
        self._ids = ids
        self._mask = mask
        self._validity = dict(validity or {})
        self.weight = weight
        self.epoch = epoch
        self.rows = rows

    def value(self, name: str, step: int) -> Any:
        return self._values[name]

    def values(self, step: int) -> Sequence[Any]:
        return list(self._values.values())

    def stack(self, names: tuple[str, ...], step: int) -> Any:
        return None

    def ids(self, step: int) -> Any:
        return self._ids

    def mask(self, step: int) -> Any:
        return self._mask

    def validity(self, step: int) -> dict[str, Any]:
        return self._validity
