"""Decoded rows as NumPy sees them: what readers give and the pipeline scatters into windows.

Values are views of Arrow memory where the layout allows it; nothing here knows Arrow.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Block", "Chunk", "ChunkColumn", "FixedChunk", "Lazy", "RaggedChunk"]

#: Values of several columns of one type: [columns, rows].
Block = NDArray[np.generic]


@dataclass(slots=True)
class FixedChunk:
    """A column of one shape: values [rows, *shape], C-contiguous; validity uint8 [rows], or None: no null here."""

    values: NDArray[np.generic]
    validity: NDArray[np.uint8] | None = None


@dataclass(slots=True)
class RaggedChunk:
    """A column of rows that differ in length.

    values: elements of all rows end to end; offsets: int64 [rows + 1], zero-based; validity as in FixedChunk.
    """

    values: NDArray[np.generic]
    offsets: NDArray[np.int64]
    validity: NDArray[np.uint8] | None = None


ChunkColumn = FixedChunk | RaggedChunk


@dataclass(frozen=True, slots=True)
class Lazy:
    """A column that is delivered in one shape and kept as stored until its rows are put in their places (images).

    So each row is made once, by whom it is delivered to, into the memory that it is delivered from; what is kept of a
    row group for later is as small as it was stored.
    """

    #: Of a row as delivered; bytes.
    shape: tuple[int, ...]
    #: Makes row `number` of the chunk into an array of that shape. Raises DataError.
    make: Callable[[int, NDArray[np.uint8]], None]

    def put(
        self,
        stored: ChunkColumn,
        out: NDArray[np.generic],
        target: NDArray[np.int64],
        source: slice | NDArray[np.int64],
    ) -> None:
        """out[target] = the rows `source` of the column; nulls are zeros."""
        rows = np.arange(source.start, source.stop) if isinstance(source, slice) else source
        made: NDArray[np.uint8] = out.view(np.uint8)
        validity = stored.validity
        for at, row in zip(target.tolist(), rows.tolist(), strict=True):
            if validity is not None and not validity[row]:
                made[at] = 0
            else:
                self.make(row, made[at])

    def whole(self, stored: ChunkColumn, rows: int) -> FixedChunk:
        """All rows. Raises DataError."""
        values = np.empty((rows, *self.shape), np.uint8)
        self.put(stored, values, np.arange(rows), slice(0, rows))
        return FixedChunk(values, stored.validity)


@dataclass(slots=True)
class Chunk:
    """Consecutive rows of one row group, columns in the order in which they are delivered."""

    rows: int
    columns: list[ChunkColumn]
    #: Runs of columns (`column_runs`) that also lie in one block, by their first column: the same memory, no null.
    blocks: dict[int, Block] = field(default_factory=dict)
    #: Columns that are here as stored (ragged), and how their rows are made, by index.
    lazy: dict[int, Lazy] = field(default_factory=dict)

    #: Bytes of memory that the chunk holds, about.
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        """Add the bytes up once: they are asked for with every row group that is kept."""
        self.nbytes = sum(column.values.nbytes for column in self.columns)
        self.nbytes += sum(column.offsets.nbytes for column in self.columns if isinstance(column, RaggedChunk))

    def whole(self) -> "Chunk":
        """The same with every row made. Raises DataError."""
        if not self.lazy:
            return self
        made = [
            self.lazy[index].whole(column, self.rows) if index in self.lazy else column
            for index, column in enumerate(self.columns)
        ]
        return Chunk(self.rows, made, self.blocks)
