"""Wide tables: neighbouring columns of one plain type, taken out of Arrow as one block instead of one by one.

Making an array of each column, and moving each, costs microseconds and a turn at the GIL a column; a block costs them
once. Called by `reader` with what Arrow decoded. A run of columns of which one has a null, or whose block would be
large, goes the ordinary way (`convert`): a block is a copy, and a copy of something large would need its memory twice.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lanefeed_core.layout import Column, column_runs
from lanefeed_sidecar.formats.chunk import Block
from lanefeed_sidecar.formats.types import NUMBERS

__all__ = ["Blocks"]

#: Fewer columns are quicker one by one.
_FEWEST = 4
#: Larger blocks are not made: each decode thread would hold one more.
_MOST_BYTES = 16 << 20


class Blocks:
    """The runs of one file's columns that may be taken as blocks."""

    def __init__(self, schema: pa.Schema, columns: Sequence[Column]) -> None:
        """`columns` as delivered; those that the schema has under another type are left out."""
        self._runs: list[tuple[range, list[str], int]] = []
        for run in column_runs(columns):
            mine = [columns[index] for index in run]
            if len(run) >= _FEWEST and all(_plain(schema, column) for column in mine):
                self._runs.append((run, [column.name for column in mine], mine[0].itemsize))

    def read(self, batch: pa.RecordBatch, at: Mapping[str, int]) -> dict[int, Block]:
        """Blocks [columns, rows] by the first column's index; `at`: where the batch has which column."""
        found: dict[int, Block] = {}
        for run, names, itemsize in self._runs if batch.num_rows else ():
            places = [at[name] for name in names if name in at]
            if len(places) < len(names) or batch.num_rows * itemsize * len(run) > _MOST_BYTES:
                continue
            try:
                tensor = batch.select(places).to_tensor(row_major=False)
            except pa.ArrowTypeError:
                # It refuses nulls.
                continue
            block: NDArray[np.generic] = tensor.to_numpy().T
            found[run.start] = block
        return found


def _plain(schema: pa.Schema, column: Column) -> bool:
    index = schema.get_field_index(column.name)
    if index < 0 or column.ragged or column.shape:
        return False
    return NUMBERS.get(str(schema.field(index).type)) == column.dtype
