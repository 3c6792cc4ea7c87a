"""Arrow arrays to chunks: views where the layout allows, bit-exact always.

Called by readers, in their thread. Chunked arrays are never combined by Arrow (32-bit offsets overflow at 2 GiB); pieces
are joined here with 64-bit offsets.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lanefeed_core.layout import Column
from lanefeed_sidecar.formats.chunk import Chunk, ChunkColumn, FixedChunk, RaggedChunk

__all__ = ["ConvertError", "to_chunk"]


class ConvertError(Exception):
    """A column that does not hold what its type says; the reader adds file and row group."""


def to_chunk(columns: Sequence[Column], arrays: Sequence[pa.ChunkedArray | pa.Array], rows: int) -> Chunk:
    """One chunk of `rows` rows. Raises ConvertError naming the column."""
    made: list[ChunkColumn] = []
    for column, array in zip(columns, arrays, strict=True):
        pieces = array.chunks if isinstance(array, pa.ChunkedArray) else [array]
        if len(array) != rows:
            raise ConvertError(f"column {column.name} has {len(array)} rows where {rows} were promised")
        parts = [_piece(column, piece) for piece in pieces if len(piece)]
        made.append(parts[0] if len(parts) == 1 else _join(column, parts))
    return Chunk(rows, made)


def _piece(column: Column, array: pa.Array) -> ChunkColumn:
    if pa.types.is_null(array.type):
        return _all_null(column, len(array))
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    validity = _validity(array)
    if validity is not None and not column.nullable:
        raise ConvertError(f"column {column.name} has nulls, and the manifest says that it has none")
    if column.ragged:
        return _ragged(column, array, validity)
    values = _fixed(column, array)
    if validity is not None:
        values = values.copy()
        values[validity == 0] = np.zeros((), dtype=values.dtype)
    return FixedChunk(values, validity)


def _all_null(column: Column, rows: int) -> ChunkColumn:
    """A column that is all null in this shard, whatever its type in others."""
    validity = np.zeros(rows, dtype=np.uint8)
    if column.ragged:
        return RaggedChunk(np.zeros(0, dtype=column.dtype), np.zeros(rows + 1, dtype=np.int64), validity)
    return FixedChunk(np.zeros((rows, *column.shape), dtype=column.dtype), validity)


def _validity(array: pa.Array) -> NDArray[np.uint8] | None:
    """Bytes 0/1 per row, or None where no row is null."""
    if array.null_count == 0:
        return None
    valid: NDArray[np.uint8] = array.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    return valid


def _fixed(column: Column, array: pa.Array) -> NDArray[np.generic]:
    rows = len(array)
    depth = 0
    while pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        if array.null_count:
            # Null lists may hold garbage or nothing at all below; a filled copy has a fixed layout again.
            filled = pa.scalar([_zero(array.type.value_type)] * size, type=array.type)
            array = array.fill_null(filled)
        array = array.values.slice(array.offset * size, len(array) * size)
        depth += 1
    if depth and array.null_count:
        raise ConvertError(f"column {column.name} has null elements inside lists: fill them when writing the shards")
    return _primitive(array, column.dtype).reshape(rows, *column.shape)


def _zero(kind: pa.DataType) -> object:
    if pa.types.is_fixed_size_list(kind):
        return [_zero(kind.value_type)] * kind.list_size
    return False if pa.types.is_boolean(kind) else pa.scalar(0, pa.int64()).cast(kind, safe=False).as_py()


def _primitive(array: pa.Array, dtype: str) -> NDArray[np.generic]:
    """A view of the array's values; nulls hold whatever the buffer has."""
    if pa.types.is_boolean(array.type):
        return np.asarray(array.fill_null(False).to_numpy(zero_copy_only=False), dtype=np.bool_)
    if len(array) == 0:
        return np.zeros(0, dtype=dtype)
    if pa.types.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        start = array.offset * width
        return np.frombuffer(array.buffers()[1], dtype=np.uint8)[start : start + len(array) * width]
    kind = np.dtype(dtype)
    start = array.offset
    return np.frombuffer(array.buffers()[1], dtype=kind, count=start + len(array))[start:]


def _ragged(column: Column, array: pa.Array, validity: NDArray[np.uint8] | None) -> RaggedChunk:
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type) or pa.types.is_large_list(array.type)
    kind = np.dtype(np.int64 if wide else np.int32)
    raw = np.frombuffer(array.buffers()[1], dtype=kind, count=array.offset + len(array) + 1)
    offsets = raw[array.offset :].astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    offsets -= first
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        inner = array.values.slice(first, last - first)
        if inner.null_count:
            raise ConvertError(f"column {column.name} has null elements inside lists: fill them when writing the shards")
        values = _primitive(inner, column.dtype)
    else:
        data = array.buffers()[2]
        values = np.frombuffer(data, dtype=np.uint8)[first:last] if data is not None else np.zeros(0, np.uint8)
    if len(values) != last - first or (np.diff(offsets) < 0).any():
        raise ConvertError(f"column {column.name} has offsets that do not fit its values")
    if validity is not None:
        return _without_nulls(values, offsets, validity)
    return RaggedChunk(values, offsets, None)


def _without_nulls(
    values: NDArray[np.generic], offsets: NDArray[np.int64], validity: NDArray[np.uint8]
) -> RaggedChunk:
    """Null rows have no elements, whatever lay under them."""
    lengths = np.diff(offsets)
    if lengths[validity == 0].any():
        values = values[np.repeat(validity.astype(np.bool_), lengths)]
        lengths = lengths * validity
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return RaggedChunk(values, offsets, validity)


def _join(column: Column, parts: list[ChunkColumn]) -> ChunkColumn:
    validity = None
    if any(p.validity is not None for p in parts):
        validity = np.concatenate([_valid_or_ones(p) for p in parts])
    if not column.ragged:
        empty = np.zeros((0, *column.shape), dtype=column.dtype)
        return FixedChunk(np.concatenate([p.values for p in parts]) if parts else empty, validity)
    ragged = [p for p in parts if isinstance(p, RaggedChunk)]
    starts = np.cumsum([0, *(len(p.values) for p in ragged)])
    offsets = [p.offsets[:-1] + start for p, start in zip(ragged, starts, strict=False)]
    values = np.concatenate([p.values for p in ragged]) if ragged else np.zeros(0, dtype=column.dtype)
    return RaggedChunk(values, np.concatenate([*offsets, starts[-1:]]).astype(np.int64), validity)


def _valid_or_ones(part: ChunkColumn) -> NDArray[np.uint8]:
    if part.validity is not None:
        return part.validity
    rows = len(part.offsets) - 1 if isinstance(part, RaggedChunk) else len(part.values)
    return np.ones(rows, dtype=np.uint8)
