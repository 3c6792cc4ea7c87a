"""Arrow layouts that writers rarely make: garbage under nulls, several pieces, nulls inside dictionaries."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lanefeed_core.layout import Column
from lanefeed_sidecar.formats import Chunk, delivered_columns
from lanefeed_sidecar.formats.convert import ConvertError, convert, converter
from support.shards import index, read_all, row_bytes, write

MIDDLE_NULL = pa.py_buffer(b"\x05")
GARBAGE = {
    "number": pa.Array.from_buffers(pa.int16(), 3, [MIDDLE_NULL, pa.py_buffer(np.array([1, 99, 3], "int16"))]),
    "time": pa.Array.from_buffers(pa.time32("s"), 3, [MIDDLE_NULL, pa.py_buffer(np.array([1, 99, 3], "int32"))]),
    "bool": pa.Array.from_buffers(pa.bool_(), 3, [MIDDLE_NULL, pa.py_buffer(b"\x07")]),
    "bytes": pa.Array.from_buffers(pa.binary(2), 3, [MIDDLE_NULL, pa.py_buffer(b"aaxxcc")]),
    "string": pa.Array.from_buffers(
        pa.string(), 3, [MIDDLE_NULL, pa.py_buffer(np.array([1, 2, 4, 5], "int32")), pa.py_buffer(b"?axxc")]
    ),
    "list": pa.Array.from_buffers(
        pa.list_(pa.int8()),
        3,
        [MIDDLE_NULL, pa.py_buffer(np.array([0, 1, 3, 4], "int32"))],
        children=[pa.array([1, None, 99, 3], pa.int8())],
    ),
    "fixed_list": pa.Array.from_buffers(
        pa.list_(pa.int8(), 2), 3, [MIDDLE_NULL], children=[pa.array([1, 1, None, 99, 3, 3], pa.int8())]
    ),
}


def rows_of(column: Column, array: pa.Array | pa.ChunkedArray) -> list[bytes | None]:
    part = convert(column, converter(column, array.type), array, len(array))
    return row_bytes(column, Chunk(len(array), [part]), 0)


@pytest.mark.parametrize("name", GARBAGE)
def test_what_lies_under_a_null_is_never_delivered(tmp_path: Path, name: str) -> None:
    """`row_bytes` checks that there is nothing; the same rows without garbage are the oracle for the others."""
    array = GARBAGE[name]
    write(tmp_path / "a.arrow", pa.table({"c": array}), "arrow")
    (column,) = delivered_columns(index(tmp_path), ())
    clean = pa.array(array.to_pylist(), array.type)
    found = read_all(index(tmp_path))["c"]
    assert found == rows_of(column, clean)
    assert found[1] is None
    assert None not in (found[0], found[2])


@pytest.mark.parametrize("name", GARBAGE)
def test_pieces_are_joined(name: str) -> None:
    array = GARBAGE[name]
    (column,) = (
        Column("c", c.dtype, c.shape, c.kind, True, c.logical)
        for c in delivered_columns(_manifest(array), ())
    )  # fmt: skip
    whole, none = rows_of(column, array), array.slice(0, 0)
    first, last = array.slice(0, 1), array.slice(2, 1)
    assert rows_of(column, pa.chunked_array([array, none, last, array.slice(1)])) == [*whole, whole[2], *whole[1:]]
    assert rows_of(column, pa.chunked_array([first, last, first])) == [whole[0], whole[2], whole[0]]
    assert rows_of(column, pa.chunked_array([none, none])) == []
    assert rows_of(column, pa.chunked_array([], array.type)) == []
    assert rows_of(column, none) == []


def _manifest(array: pa.Array) -> object:
    from lanefeed_core.manifest import Field, Manifest

    return Manifest((), (Field("c", str(array.type)),))


def test_nulls_inside_a_dictionary(tmp_path: Path) -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0], pa.int8()), pa.array(["a", None]))
    write(tmp_path / "a.arrow", pa.table({"c": array}), "arrow")
    assert read_all(index(tmp_path)) == {"c": [b"a", None, None, b"a"]}
    only_values = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array([7, None], pa.int8()))
    write(tmp_path / "a.arrow", pa.table({"c": only_values}), "arrow")
    assert read_all(index(tmp_path)) == {"c": [b"\7", None]}


def test_nulls_that_the_manifest_denies() -> None:
    with pytest.raises(ConvertError, match="column c has nulls, and the manifest says that it has none"):
        rows_of(Column("c", "int16"), GARBAGE["number"])
    with pytest.raises(ConvertError, match="column c is int16 in this shard, which is not what the manifest says"):
        converter(Column("c", "int32"), pa.int16())
