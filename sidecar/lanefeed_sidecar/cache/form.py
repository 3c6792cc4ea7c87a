"""Where the columns of an entry lie in its body, by its description; worked out once for all entries that say the same.

Row groups of one size have one description unless a column is ragged, and with 73 columns reading it takes longer than
reading their bytes. Called by `entry`. Pure: no byte of a column is looked at.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanefeed_core.layout import Column, column_runs
from lanefeed_sidecar.formats.chunk import Block, Chunk, ChunkColumn, FixedChunk, RaggedChunk

__all__ = ["ALIGN", "EntryError", "Form", "form_of", "likely_form"]

ALIGN = 64
#: Forms that are remembered. A stream has two sizes of row groups, or as many as row groups.
_MOST = 64
_INT64, _UINT8 = np.dtype(np.int64), np.dtype(np.uint8)


class EntryError(Exception):
    """The file is no whole entry of these columns; whoever reads it removes it and decodes again."""


@dataclass(frozen=True, slots=True)
class Part:
    """One column: where its arrays begin in the body; 0: there is none."""

    values: int
    shape: tuple[int, ...]
    dtype: "np.dtype[Any]"
    nbytes: int
    offsets: int
    validity: int


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring scalar columns of one type that lie one after the other."""

    first: int
    count: int
    start: int
    stride: int
    dtype: "np.dtype[Any]"


@dataclass(frozen=True, slots=True)
class Form:
    """All columns of an entry of `rows` rows by its `description`; its body has at least `end` bytes."""

    columns: Sequence[Column]
    rows: int
    description: bytes
    parts: tuple[Part, ...]
    runs: tuple[Run, ...]
    end: int

    def chunk(self, body: NDArray[np.uint8]) -> Chunk:
        """Views of the body."""
        return Chunk(self.rows, [self._column(body, part) for part in self.parts], self._blocks(body))

    def _column(self, body: NDArray[np.uint8], part: Part) -> ChunkColumn:
        values = np.ndarray(part.shape, part.dtype, body, part.values)
        validity = np.ndarray((self.rows,), _UINT8, body, part.validity) if part.validity else None
        if not part.offsets:
            return FixedChunk(values, validity)
        return RaggedChunk(values, np.ndarray((self.rows + 1,), _INT64, body, part.offsets), validity)

    def _blocks(self, body: NDArray[np.uint8]) -> dict[int, Block]:
        return {
            run.first: np.ndarray((run.count, self.rows), run.dtype, body, run.start, (run.stride, run.dtype.itemsize))
            for run in self.runs
        }


#: By description, columns (by identity: a form keeps them alive) and rows.
_FORMS: dict[tuple[bytes, int, int], Form] = {}
#: The only one of them, by columns and rows; None where there are several (nulls, ragged columns).
_LIKELY: dict[tuple[int, int], Form | None] = {}


def form_of(description: bytes, columns: Sequence[Column], rows: int) -> Form:
    """The form of an entry whose description ends the first 8 + len(description) bytes. Raises EntryError."""
    key = (description, id(columns), rows)
    known = _FORMS.get(key)
    if known is not None and known.columns is columns:
        return known
    made = _read(description, columns, rows)
    if len(_FORMS) >= _MOST:
        _FORMS.clear()
        _LIKELY.clear()
    _FORMS[key] = made
    other = _LIKELY.get((id(columns), rows), made)
    alone = other is not None and other.description == description and not any(part.offsets for part in made.parts)
    _LIKELY[id(columns), rows] = made if alone else None
    return made


def likely_form(columns: Sequence[Column], rows: int) -> Form | None:
    """The form that an entry of so many rows will have; None where that cannot be known before it is read."""
    known = _LIKELY.get((id(columns), rows))
    return known if known is not None and known.columns is columns else None


def _read(description: bytes, columns: Sequence[Column], rows: int) -> Form:
    try:
        about = json.loads(description)
        if about["rows"] != rows or len(about["columns"]) != len(columns):
            raise EntryError(f"it holds {about['rows']} rows of {len(about['columns'])} columns")
        places = _Places(8 + len(description))
        parts = [_part(places, column, rows, *entry) for column, entry in zip(columns, about["columns"], strict=True)]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise EntryError(f"its description cannot be used: {error!r}") from None
    return Form(columns, rows, description, tuple(parts), tuple(_runs(columns, parts, rows)), places.at)


class _Places:
    """Hands out the body's places in order."""

    def __init__(self, at: int) -> None:
        self.at = at

    def take(self, nbytes: int) -> int:
        start = self.at + -self.at % ALIGN
        self.at = start + nbytes
        return start


def _part(
    places: _Places, column: Column, rows: int, dtype: str, shape: list[int] | None, count: int, valid: bool
) -> Part:
    kind = np.dtype(column.dtype)
    if dtype != kind.str or (shape is None) != column.ragged or (shape is not None and tuple(shape) != column.shape):
        raise EntryError(f"column {column.name} is {dtype} {shape}")
    wanted = rows * math.prod(column.shape)
    if not isinstance(count, int) or count < 0 or (shape is not None and count != wanted):
        raise EntryError(f"column {column.name} has {count} elements")
    values = places.take(count * kind.itemsize)
    offsets = places.take(8 * (rows + 1)) if shape is None else 0
    validity = places.take(rows) if valid else 0
    full = (count,) if shape is None else (rows, *column.shape)
    return Part(values, full, kind, count * kind.itemsize, offsets, validity)


def _runs(columns: Sequence[Column], parts: Sequence[Part], rows: int) -> list[Run]:
    found = []
    for run in column_runs(columns):
        mine = [parts[index] for index in run]
        if len(run) < 2 or columns[run.start].shape or not rows or any(part.validity for part in mine):
            continue
        stride = -(-mine[0].nbytes // ALIGN) * ALIGN
        if all(part.values == mine[0].values + i * stride for i, part in enumerate(mine)):
            found.append(Run(run.start, len(run), mine[0].values, stride, mine[0].dtype))
    return found
