"""Every supported type, through both formats, by read and by stream: bit for bit what was written."""

import datetime as dt
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lanefeed_core.layout import Column
from lanefeed_sidecar.errors import ConfigError
from lanefeed_sidecar.formats import delivered_columns, open_shard
from support.shards import index, read_all, write

FORMATS = ["parquet", "arrow"]
RNG = np.random.default_rng(5)


def numbers(kind: str, rows: int = 23) -> np.ndarray:
    """Random bits of a type: NaN payloads, infinities and -0.0 among floats."""
    raw = RNG.integers(0, 256, rows * np.dtype(kind).itemsize, dtype=np.uint8).view(kind)
    if raw.dtype.kind == "f":
        raw[0], raw[1] = -0.0, np.nan
        raw[2:3].view(np.uint8)[:] = 0xFF
    return raw


def rows_of(values: np.ndarray) -> list[bytes]:
    return [values[i].tobytes() for i in range(len(values))]


NUMBERS = [
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
]  # fmt: skip


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("batch", [0, 4])
def test_numbers_are_bit_exact(tmp_path: Path, kind: str, batch: int) -> None:
    data = {name: numbers(name) for name in NUMBERS}
    write(tmp_path / f"a.{kind}", pa.table({n: pa.array(v) for n, v in data.items()}), kind, rows=10)
    manifest = index(tmp_path)
    assert delivered_columns(manifest, ()) == tuple(Column(n, n) for n in NUMBERS)
    assert read_all(manifest, batch=batch) == {n: rows_of(v) for n, v in data.items()}


def q(*values: int) -> list[bytes]:
    return [struct.pack("<q", v) for v in values]


def i(*values: int) -> list[bytes]:
    return [struct.pack("<i", v) for v in values]


def lst(kind: str, *rows: list[int]) -> list[bytes]:
    return [np.array(row, dtype=kind).tobytes() for row in rows]


FSL = pa.list_(pa.int16(), 2)
CASES = {
    "bool": (pa.array([True, False, True]), [b"\1", b"\0", b"\1"], Column("c", "bool", logical="bool")),
    "date32": (pa.array([0, 1, -1], pa.date32()), i(0, 1, -1), Column("c", "int32", logical="date32[day]")),
    "time32": (
        pa.array([0, 1, 86_399_999], pa.time32("ms")),
        i(0, 1, 86_399_999),
        Column("c", "int32", logical="time32[ms]"),
    ),
    "time64": (pa.array([0, 1, 2], pa.time64("us")), q(0, 1, 2), Column("c", "int64", logical="time64[us]")),
    "timestamp": (
        pa.array([0, 1, -(1 << 62)], pa.timestamp("us", "UTC")),
        q(0, 1, -(1 << 62)),
        Column("c", "int64", logical="timestamp[us, tz=UTC]"),
    ),
    "duration": (pa.array([0, 1, -5], pa.duration("ms")), q(0, 1, -5), Column("c", "int64", logical="duration[ms]")),
    "string": (
        pa.array(["", "a\0b", "\u00e9"]),
        [b"", b"a\0b", b"\xc3\xa9"],
        Column("c", "uint8", (), "ragged", logical="string"),
    ),
    "large_string": (
        pa.array(["x", "", "yz"], pa.large_string()),
        [b"x", b"", b"yz"],
        Column("c", "uint8", (), "ragged", logical="string"),
    ),
    "binary": (
        pa.array([b"\xff", b"", b"\0"]),
        [b"\xff", b"", b"\0"],
        Column("c", "uint8", (), "ragged", logical="binary"),
    ),
    "large_binary": (
        pa.array([b"\xff", b"", b"\0"], pa.large_binary()),
        [b"\xff", b"", b"\0"],
        Column("c", "uint8", (), "ragged", logical="binary"),
    ),
    "fixed_binary": (
        pa.array([b"abc", b"\0\0\1", b"xyz"], pa.binary(3)),
        [b"abc", b"\0\0\1", b"xyz"],
        Column("c", "uint8", (3,), logical="binary"),
    ),
    "list": (
        pa.array([[1, 2], [], [3]], pa.list_(pa.int16())),
        lst("int16", [1, 2], [], [3]),
        Column("c", "int16", (), "ragged"),
    ),
    "large_list": (
        pa.array([[1.5], [], [-0.0, 2]], pa.large_list(pa.float32())),
        lst("float32", [1.5], [], [-0.0, 2]),
        Column("c", "float32", (), "ragged"),
    ),
    "list_of_bool": (
        pa.array([[True, False], [], [True]]),
        [b"\1\0", b"", b"\1"],
        Column("c", "bool", (), "ragged", logical="bool"),
    ),
    "same_length_list": (
        pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32())),
        lst("int32", [1, 2], [3, 4], [5, 6]),
        Column("c", "int32", (), "ragged"),
    ),
    "fixed_list": (
        pa.array([[1, 2], [3, 4], [5, 6]], FSL),
        lst("int16", [1, 2], [3, 4], [5, 6]),
        Column("c", "int16", (2,)),
    ),
    "nested_fixed_list": (
        pa.array([[[1, 2], [3, 4], [5, 6]]] * 3, pa.list_(FSL, 3)),
        lst("int16", *([[1, 2, 3, 4, 5, 6]] * 3)),
        Column("c", "int16", (3, 2)),
    ),
    "dictionary": (
        pa.array(["b", "a", "b"]).dictionary_encode(),
        [b"b", b"a", b"b"],
        Column("c", "uint8", (), "ragged", logical="string"),
    ),
    "dictionary_of_numbers": (pa.array([7, 8, 7]).dictionary_encode(), q(7, 8, 7), Column("c", "int64")),
    "tensor": (
        pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.int16(), (2, 1)), pa.array([[1, 2], [3, 4], [5, 6]], FSL)
        ),
        lst("int16", [1, 2], [3, 4], [5, 6]),
        Column("c", "int16", (2, 1)),
    ),
}
#: What only one format can hold.
ARROW_ONLY = {
    "date64": (
        pa.array([0, 86_400_000, -86_400_000], pa.date64()),
        q(0, 86_400_000, -86_400_000),
        Column("c", "int64", logical="date64[ms]"),
    ),
    "string_view": (
        pa.array(["", "short", "longer than twelve bytes"], pa.string_view()),
        [b"", b"short", b"longer than twelve bytes"],
        Column("c", "uint8", (), "ragged", logical="string"),
    ),
    "half_list": (
        pa.array([[np.float16(1), np.float16(2)], [], [np.float16(3)]], pa.list_(pa.float16())),
        lst("float16", [1, 2], [], [3]),
        Column("c", "float16", (), "ragged"),
    ),
}


def case(name: str) -> tuple[pa.Array, list[bytes], Column]:
    return {**CASES, **ARROW_ONLY}[name]


MATRIX = [(f, n) for f in FORMATS for n in CASES] + [("arrow", n) for n in ARROW_ONLY]


def take(array: pa.Array, rows: pa.Array) -> pa.Array:
    """Arrow takes no views."""
    if pa.types.is_string_view(array.type):
        return array.cast(pa.string()).take(rows).cast(array.type)
    return array.take(rows)


def plain(column: Column) -> Column:
    """Empty lists make a list column nullable, as Parquet's statistics count them among the nulls."""
    return Column(column.name, column.dtype, column.shape, column.kind, False, column.logical)


@pytest.mark.parametrize(("kind", "name"), MATRIX)
@pytest.mark.parametrize("batch", [0, 2])
def test_types(tmp_path: Path, kind: str, name: str, batch: int) -> None:
    array, rows, column = case(name)
    write(tmp_path / f"a.{kind}", pa.table({"c": array}), kind, rows=2)
    manifest = index(tmp_path)
    (found,) = delivered_columns(manifest, ())
    assert plain(found) == column
    assert found.nullable is False or (kind == "parquet" and found.ragged)
    assert read_all(manifest, batch=batch) == {"c": rows}


@pytest.mark.parametrize(("kind", "name"), MATRIX)
@pytest.mark.parametrize("batch", [0, 2])
def test_types_with_nulls(tmp_path: Path, kind: str, name: str, batch: int) -> None:
    array, rows, column = case(name)
    taken = take(array, pa.array([0, None, 2, 1, None]))
    write(tmp_path / f"a.{kind}", pa.table({"c": taken}), kind, rows=4)
    manifest = index(tmp_path)
    (found,) = delivered_columns(manifest, ())
    assert found.nullable
    assert plain(found) == column
    assert read_all(manifest, batch=batch) == {"c": [rows[0], None, rows[2], rows[1], None]}


@pytest.mark.parametrize(("kind", "name"), MATRIX)
def test_slices_and_offsets(tmp_path: Path, kind: str, name: str) -> None:
    """Arrays that begin in the middle of their buffers, bit offsets of validity included."""
    array, rows, _ = case(name)
    long = take(array, pa.array([0, 1, None, 2] * 9))
    want = [rows[0], rows[1], None, rows[2]] * 9
    table = pa.table({"c": pa.chunked_array([long.slice(3, 11), long.slice(14, 0), long.slice(17, 9)])})
    write(tmp_path / f"a.{kind}", table, kind)
    for batch in (0, 3):
        assert read_all(index(tmp_path), batch=batch) == {"c": [*want[3:14], *want[17:26]]}


@pytest.mark.parametrize("kind", FORMATS)
def test_structs_are_flattened_one_level(tmp_path: Path, kind: str) -> None:
    rows = [{"x": 1, "y": "a", "z": [1, 2]}, None, {"x": None, "y": "bc", "z": [3, 4]}]
    struct_type = pa.struct([("x", pa.int64()), ("y", pa.string()), ("z", FSL)])
    table = pa.table({"s": pa.array(rows, struct_type), "s.w": pa.array([1, 2, 3])})
    write(tmp_path / f"a.{kind}", table, kind)
    manifest = index(tmp_path)
    assert [f.name for f in manifest.fields] == ["s.x", "s.y", "s.z", "s.w"]
    whole = read_all(manifest)
    assert whole == {
        "s.x": [*q(1), None, None],
        "s.y": [b"a", None, b"bc"],
        "s.z": [lst("int16", [1, 2])[0], None, lst("int16", [3, 4])[0]],
        "s.w": q(1, 2, 3),
    }
    # A selection keeps the user's order and reads only those.
    assert list(read_all(manifest, ("s.w", "s.y"), batch=2).items()) == [("s.w", whole["s.w"]), ("s.y", whole["s.y"])]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_fixed_list_is_a_view(tmp_path: Path, kind: str) -> None:
    values = np.arange(64 * 2048, dtype=np.int32)
    write(tmp_path / f"a.{kind}", pa.table({"t": pa.FixedSizeListArray.from_arrays(pa.array(values), 2048)}), kind)
    manifest = index(tmp_path)
    columns = delivered_columns(manifest, ())
    reader = open_shard(manifest, 0, columns)
    before = pa.total_allocated_bytes()
    chunk = reader.read(0)
    reader.close()
    assert not chunk.columns[0].values.flags.owndata
    # Parquet decodes into one buffer (and level bitmaps), a mapped Arrow file into none.
    assert pa.total_allocated_bytes() - before < (1.2 * values.nbytes if kind == "parquet" else 4096)
    # What was read outlives the reader.
    assert (chunk.columns[0].values.reshape(-1) == values).all()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", ["string", "fixed_list", "list", "bool", "timestamp"])
def test_case_34_all_null_in_the_first_file(tmp_path: Path, kind: str, name: str) -> None:
    array, rows, column = case(name)
    write(tmp_path / f"a.{kind}", pa.table({"c": pa.nulls(2)}), kind)
    write(tmp_path / f"b.{kind}", pa.table({"c": array}), kind)
    write(tmp_path / f"c.{kind}", pa.table({"c": pa.nulls(1)}), kind)
    manifest = index(tmp_path)
    (found,) = delivered_columns(manifest, ())
    assert found.nullable
    assert plain(found) == column
    for batch in (0, 2):
        assert read_all(manifest, batch=batch) == {"c": [None, None, *rows, None]}


def test_alike_types_unify(tmp_path: Path) -> None:
    """A dictionary here, large strings there, lists whose items are named otherwise: one schema."""
    element = pa.list_(pa.field("element", pa.int16(), nullable=False))
    text = pa.array(["a", "b"])
    lists = [[1], [2, 3]]
    parts = [
        (text, pa.array(lists, pa.list_(pa.int16()))),
        (text.cast(pa.large_string()), pa.array(lists, pa.large_list(pa.int16()))),
        (text.dictionary_encode(), pa.array(lists, element)),
        (text.cast(pa.string_view()), pa.array(lists, pa.list_(pa.int16()))),
    ]
    for at, (a, b) in enumerate(parts):
        write(tmp_path / f"{at}.arrow", pa.table({"a": a, "b": b}), "arrow")
    manifest = index(tmp_path)
    assert [(f.name, f.type, f.nullable) for f in manifest.fields] == [
        ("a", "string", False),
        ("b", "list<item: int16>", False),
    ]
    assert read_all(manifest) == {"a": [b"a", b"b"] * 4, "b": lst("int16", *lists) * 4}


UNSUPPORTED = {
    "decimal": (pa.array([None], pa.decimal128(10, 2)), "type decimal128(10, 2) is not supported"),
    "map": (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())), "type map<string, int32"),
    "list_of_list": (pa.array([[[1]]]), "lists of list<item: int64> are not supported, only lists of numbers"),
    "list_of_string": (pa.array([["a"]]), "lists of string are not supported, only lists of numbers"),
    "struct_in_struct": (pa.array([{"c": {"d": 1}}]), "type struct<d: int64> is not supported"),
    "all_null": (pa.nulls(1), "every value in every shard is null"),
}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_columns_are_refused_unless_left_out(tmp_path: Path, kind: str, name: str) -> None:
    array, reason = UNSUPPORTED[name]
    column = "c.c" if name == "struct_in_struct" else "c"
    write(tmp_path / f"a.{kind}", pa.table({"c": array, "ok": pa.array([1])}), kind)
    with pytest.raises(ConfigError) as error:
        index(tmp_path)
    assert f"column {column!r}" in str(error.value)
    assert reason in str(error.value)
    assert "leave it out with data.columns" in str(error.value)
    assert read_all(index(tmp_path, columns=("ok",)), ("ok",)) == {"ok": q(1)}


def test_unknown_column_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pa.table({"tokens": [1], "label": [2]}), "parquet")
    with pytest.raises(ConfigError) as error:
        delivered_columns(index(tmp_path), ("label", "tokns"))
    assert str(error.value) == (
        "data.columns names 'tokns', which the dataset does not have: did you mean 'tokens'? It has tokens, label"
    )
    with pytest.raises(ConfigError, match="names 'label' twice"):
        delivered_columns(index(tmp_path), ("label", "label"))


def test_pandas_like_dates() -> None:
    """The raw integers stand for what their logical name says."""
    array = pa.array([dt.datetime(1970, 1, 2, tzinfo=dt.UTC)], pa.timestamp("s", "UTC"))
    assert array.cast(pa.int64()).to_pylist() == [86_400]


column_values = st.one_of(
    st.tuples(st.just(pa.int32()), st.lists(st.none() | st.integers(-(1 << 31), (1 << 31) - 1), max_size=40)),
    st.tuples(st.just(pa.string()), st.lists(st.none() | st.text(max_size=5), max_size=40)),
    st.tuples(st.just(pa.binary()), st.lists(st.none() | st.binary(max_size=5), max_size=40)),
    st.tuples(st.just(pa.bool_()), st.lists(st.none() | st.booleans(), max_size=40)),
    st.tuples(
        st.just(pa.list_(pa.int8())),
        st.lists(st.none() | st.lists(st.integers(-128, 127), max_size=4), max_size=40),
    ),
    st.tuples(
        st.just(pa.list_(pa.int8(), 3)),
        st.lists(st.none() | st.lists(st.integers(-128, 127), min_size=3, max_size=3), max_size=40),
    ),
)


def expected(kind: pa.DataType, value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool):
        return bytes([value])
    if isinstance(value, int):
        return struct.pack("<i", value)
    return np.array(value, dtype=np.int8).tobytes()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.sampled_from(FORMATS), column_values, st.integers(1, 50), st.integers(0, 9), st.booleans())
def test_any_table(
    tmp_path: Path, data: st.DataObject, kind: str, column: tuple, rows: int, batch: int, dictionary: bool
) -> None:
    """Any values, nulls, row group size, batch size and slice come back as they were."""
    of, values = column
    cut = data.draw(st.integers(0, len(values)))
    array = pa.array(values, of).slice(cut)
    if not len(array) or array.null_count == len(array):
        return
    if dictionary and not pa.types.is_nested(of):
        array = array.dictionary_encode()
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    write(folder / f"a.{kind}", pa.table({"c": array}), kind, rows=rows)
    assert read_all(index(folder), batch=batch) == {"c": [expected(of, v) for v in values[cut:]]}
