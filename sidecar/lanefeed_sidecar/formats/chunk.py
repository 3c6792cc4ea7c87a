"""Decoded rows as NumPy sees them: what readers give and the pipeline scatters into windows.

Values are views of Arrow memory where the layout allows it; nothing here knows Arrow.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Block", "Chunk", "ChunkColumn", "FixedChunk", "RaggedChunk"]

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


@dataclass(slots=True)
class Chunk:
    """Consecutive rows of one row group, columns in the order in which they are delivered."""

    rows: int
    columns: list[ChunkColumn]
    #: Runs of columns (`column_runs`) that also lie in one block, by their first column: the same memory, no null.
    blocks: dict[int, Block] = field(default_factory=dict)

    #: Bytes of memory that the chunk holds, about.
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        """Add the bytes up once: they are asked for with every row group that is kept."""
        self.nbytes = sum(column.values.nbytes for column in self.columns)
        self.nbytes += sum(column.offsets.nbytes for column in self.columns if isinstance(column, RaggedChunk))
