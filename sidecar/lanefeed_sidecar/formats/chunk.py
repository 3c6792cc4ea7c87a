"""Decoded rows as NumPy sees them: what readers give and the pipeline scatters into windows.

Values are views of Arrow memory where the layout allows it; nothing here knows Arrow.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lanefeed_core.layout import Column

__all__ = ["Block", "Chunk", "ChunkColumn", "FixedChunk", "RaggedChunk", "column_runs"]

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


def column_runs(columns: Sequence[Column]) -> list[range]:
    """Runs of neighbouring fixed columns of one dtype and shape; any other column is a run of its own.

    A run of several lies in one buffer [columns, rows, *shape], so that a wide table is copied in a few large moves
    instead of many small ones, each of which costs as much as 10 KB.
    """
    runs: list[range] = []
    for at, column in enumerate(columns):
        before = columns[at - 1] if at else column
        joins = not (column.ragged or before.ragged) and (before.dtype, before.shape) == (column.dtype, column.shape)
        if at and joins:
            runs[-1] = range(runs[-1].start, at + 1)
        else:
            runs.append(range(at, at + 1))
    return runs
