"""A Parquet row group in pieces, for those that are too large to be decoded whole.

Each flow has an open file of its own, so that it may be left where it is and gone on with later, from any thread, and
reads compressed bytes through a small buffer instead of a whole column chunk at a time. Strings are decoded as
dictionaries and spelt out piece by piece, because the same megabyte may stand for a thousand rows. Called by `reader`.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lanefeed_sidecar.formats.weigh import string_lengths

__all__ = ["BUFFER_BYTES", "PIECE_BYTES", "pieces"]

#: Compressed bytes of a column that are read at once.
BUFFER_BYTES = 64 << 10
#: Strings of one piece, at most, unless a single row has more.
PIECE_BYTES = 4 << 20


def pieces(file: pq.ParquetFile, row_group: int, batch_rows: int, names: list[str] | None) -> Iterator[pa.RecordBatch]:
    """Batches of at most `batch_rows` rows and about `PIECE_BYTES` of strings; closes the file at its end."""
    with file:
        for batch in file.iter_batches(batch_rows, row_groups=[row_group], columns=names, use_threads=False):
            yield from _cut(batch)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    sizes = np.zeros(batch.num_rows, np.int64)
    for array in batch.columns:
        parts = array.flatten() if pa.types.is_struct(array.type) else [array]
        for part in parts:
            if pa.types.is_dictionary(part.type) and _is_text(part.type.value_type):
                sizes += string_lengths(part)
    ends = np.cumsum(sizes)
    at = 0
    while at < batch.num_rows:
        before = int(ends[at - 1]) if at else 0
        stop = max(at + 1, int(np.searchsorted(ends, before + PIECE_BYTES, side="right")))
        yield batch.slice(at, stop - at)
        at = stop


def _is_text(kind: pa.DataType) -> bool:
    return any(
        is_kind(kind)
        for is_kind in (
            pa.types.is_string,
            pa.types.is_binary,
            pa.types.is_large_string,
            pa.types.is_large_binary,
            pa.types.is_string_view,
            pa.types.is_binary_view,
        )
    )
