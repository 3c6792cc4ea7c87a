"""Arrow arrays to chunks: views where the layout allows, bit-exact always.

`converter` chooses once per file how a column is read, readers call what it gave for every array, in their thread.
Chunked arrays are never combined by Arrow (32-bit offsets overflow at 2 GiB); pieces are joined here with 64-bit
offsets. Values under a null are zeros, rows under a null are empty, whatever lay there: what is delivered is a function
of the data.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lanefeed_core.layout import Column
from lanefeed_sidecar.formats.chunk import ChunkColumn, FixedChunk, RaggedChunk
from lanefeed_sidecar.formats.types import NUMBERS, Unsupported, deliverable, plain_type

__all__ = ["ConvertError", "Converter", "convert", "converter"]

#: Turns one Arrow array with at least one row into a column of a chunk.
Converter = Callable[[pa.Array], ChunkColumn]

_Bytes = NDArray[np.uint8]


class ConvertError(Exception):
    """A column that does not hold what its type or the manifest says; the reader adds file and row group."""


def convert(column: Column, convert_piece: Converter, array: pa.ChunkedArray | pa.Array, rows: int) -> ChunkColumn:
    """One column of a chunk of `rows` rows. Raises ConvertError naming the column."""
    if len(array) != rows:
        raise ConvertError(f"column {column.name} has {len(array)} rows where {rows} were promised")
    if not isinstance(array, pa.ChunkedArray):
        return convert_piece(array) if rows else _join(column, [])
    if array.num_chunks == 1 and rows:
        return convert_piece(array.chunk(0))
    return _join(column, [convert_piece(piece) for piece in array.chunks if len(piece)])


def converter(column: Column, kind: pa.DataType) -> Converter:
    """How arrays of type `kind` become `column`. Raises ConvertError where they cannot."""
    if pa.types.is_null(kind):
        _refuse_nulls(column, nullable=column.nullable)
        return partial(_nothing, column)
    made = deliverable(column.name, kind, nullable=column.nullable)
    if isinstance(made, Unsupported) or made != column:
        raise ConvertError(f"column {column.name} is {kind} in this shard, which is not what the manifest says")
    return _converter(column, kind)


def _converter(column: Column, kind: pa.DataType) -> Converter:
    if isinstance(kind, pa.BaseExtensionType):
        inner = _converter(column, kind.storage_type)
        return lambda array: inner(array.storage)
    if pa.types.is_dictionary(kind):
        wide = pa.large_binary() if _is_bytes(kind.value_type) else kind.value_type
        return partial(_dictionary, _converter(column, wide), wide)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return partial(_view, _converter(column, pa.large_binary()))
    if column.ragged:
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        wide_offsets = pa.types.is_large_list(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
        return partial(_ragged, column, is_list, np.dtype(np.int64 if wide_offsets else np.int32))
    if pa.types.is_fixed_size_list(kind):
        return partial(_fixed_list, column)
    return partial(_number if str(kind) in NUMBERS else _scalar, column)


def _is_bytes(kind: pa.DataType) -> bool:
    return str(plain_type(kind)) in ("string", "binary")


def _view(inner: Converter, array: pa.Array) -> ChunkColumn:
    return inner(array.cast(pa.large_binary()))


def _dictionary(inner: Converter, wide: pa.DataType, array: pa.Array) -> ChunkColumn:
    """Decoded by `take`, which checks every index; strings with 64-bit offsets, as decoded they may pass 2 GiB."""
    values = array.dictionary
    return inner((values if values.type == wide else values.cast(wide)).take(array.indices))


def _nothing(column: Column, array: pa.Array) -> ChunkColumn:
    """A shard in which the column has no value at all, and so no type."""
    rows = len(array)
    validity = np.zeros(rows, dtype=np.uint8)
    if column.ragged:
        return RaggedChunk(np.zeros(0, dtype=column.dtype), np.zeros(rows + 1, dtype=np.int64), validity)
    return FixedChunk(np.zeros((rows, *column.shape), dtype=column.dtype), validity)


def _validity(column: Column, array: pa.Array) -> _Bytes | None:
    """Bytes 0/1 per row, or None where no row is null."""
    if not array.null_count:
        return None
    _refuse_nulls(column, nullable=column.nullable)
    return _valid(array)


def _refuse_nulls(column: Column, *, nullable: bool) -> None:
    if not nullable:
        raise ConvertError(f"column {column.name} has nulls, and the manifest says that it has none")


def _valid(array: pa.Array) -> _Bytes:
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False)).astype(np.uint8)


def _number(column: Column, array: pa.Array) -> FixedChunk:
    """`_scalar` for what Arrow and NumPy have in common, in half the time: wide tables have many such columns."""
    return FixedChunk(array.to_numpy(), None) if array.null_count == 0 else _scalar(column, array)


def _scalar(column: Column, array: pa.Array) -> FixedChunk:
    values = _elements(array, np.dtype(column.dtype), column.shape)
    if array.null_count == 0:
        return FixedChunk(values, None)
    return _zero_nulls(values, _validity(column, array))


def _fixed_list(column: Column, array: pa.Array) -> FixedChunk:
    """Slots under a null list exist in Arrow's layout, so that any nesting is one view of the leaves."""
    rows, validity = len(array), _validity(column, array)
    while pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        array = array.values.slice(array.offset * size, len(array) * size)
        if array.null_count:
            _refuse_null_elements(column, _valid(array).reshape(rows, -1).min(axis=1), validity)
    values = _elements(array, np.dtype(column.dtype), ()).reshape(rows, *column.shape)
    return _zero_nulls(values, validity)


def _zero_nulls(values: NDArray[np.generic], validity: _Bytes | None) -> FixedChunk:
    if validity is not None:
        values = values.copy()
        values[validity == 0] = np.zeros((), dtype=values.dtype)
    return FixedChunk(values, validity)


def _refuse_null_elements(column: Column, whole: _Bytes, validity: _Bytes | None) -> None:
    """`whole`: rows of which every element is there; what lies under a null row does not matter."""
    present = whole if validity is None else whole[validity != 0]
    if not present.all():
        raise ConvertError(
            f"column {column.name} has null elements inside its lists, which no tensor can hold: fill them when "
            "writing the shards, or leave the column out with data.columns"
        )


def _elements(array: pa.Array, kind: np.dtype[np.generic], shape: tuple[int, ...]) -> NDArray[np.generic]:
    """A view of the array's values [rows, *shape]; under nulls is whatever the buffer has. Booleans are a copy."""
    rows, start = len(array), array.offset
    if kind == np.bool_:
        return np.asarray(array.fill_null(False).to_numpy(zero_copy_only=False), dtype=np.bool_)
    if not rows:
        return np.zeros((0, *shape), dtype=kind)
    buffer = array.buffers()[1]
    if pa.types.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        raw = np.frombuffer(buffer, dtype=np.uint8, count=(start + rows) * width)[start * width :]
        return raw.reshape(rows, width)
    values = np.frombuffer(buffer, dtype=kind, count=start + rows)
    return values[start:] if start else values


def _ragged(column: Column, is_list: bool, offset_kind: np.dtype[np.generic], array: pa.Array) -> RaggedChunk:
    rows, start, validity = len(array), array.offset, _validity(column, array)
    raw = np.frombuffer(array.buffers()[1], dtype=offset_kind, count=start + rows + 1)[start:]
    first, last = int(raw[0]), int(raw[-1])
    offsets = raw.astype(np.int64)
    offsets -= first
    lengths = np.diff(offsets)
    if first < 0 or (lengths < 0).any():
        raise ConvertError(f"column {column.name} has offsets that run backwards")
    if is_list:
        inner = array.values.slice(first, last - first)
        if inner.null_count:
            _refuse_null_elements(column, *_whole_rows(inner, lengths, validity))
        values = _elements(inner, np.dtype(column.dtype), ())
    else:
        data = array.buffers()[2]
        values = np.frombuffer(data, dtype=np.uint8)[first:last] if data else np.zeros(0, dtype=np.uint8)
    if len(values) != last - first:
        raise ConvertError(f"column {column.name} has {len(values)} elements where its offsets say {last - first}")
    if validity is not None:
        return _without_nulls(values, offsets, lengths, validity)
    return RaggedChunk(values, offsets, None)


def _whole_rows(inner: pa.Array, lengths: NDArray[np.int64], validity: _Bytes | None) -> tuple[_Bytes, _Bytes | None]:
    """Per element: is it there, and is its row (None: all rows are)."""
    return _valid(inner), None if validity is None else np.repeat(validity, lengths)


def _without_nulls(
    values: NDArray[np.generic], offsets: NDArray[np.int64], lengths: NDArray[np.int64], validity: _Bytes
) -> RaggedChunk:
    """Null rows have no elements, whatever lay under them."""
    if lengths[validity == 0].any():
        values = values[np.repeat(validity.astype(np.bool_), lengths)]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths * validity)])
    return RaggedChunk(values, offsets, validity)


def _join(column: Column, parts: list[ChunkColumn]) -> ChunkColumn:
    validity = None
    if any(p.validity is not None for p in parts):
        validity = np.concatenate([_valid_or_ones(p) for p in parts])
    if not column.ragged:
        empty = np.zeros((0, *column.shape), dtype=column.dtype)
        return FixedChunk(np.concatenate([p.values for p in parts]) if parts else empty, validity)
    ragged = [p for p in parts if isinstance(p, RaggedChunk)]
    starts = np.cumsum([0, *(len(p.values) for p in ragged)], dtype=np.int64)
    offsets = [p.offsets[:-1] + start for p, start in zip(ragged, starts, strict=False)]
    values = np.concatenate([p.values for p in ragged]) if ragged else np.zeros(0, dtype=column.dtype)
    return RaggedChunk(values, np.concatenate([*offsets, starts[-1:]]), validity)


def _valid_or_ones(part: ChunkColumn) -> _Bytes:
    if part.validity is not None:
        return part.validity
    rows = len(part.offsets) - 1 if isinstance(part, RaggedChunk) else len(part.values)
    return np.ones(rows, dtype=np.uint8)
