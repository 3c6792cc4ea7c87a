"""Weighing a row group before it is decoded: never less than it decodes to, near to it, and bounded itself."""

import io
from itertools import groupby

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanefeed_sidecar.errors import DataError
from lanefeed_sidecar.formats import delivered_columns, levels, open_shard
from lanefeed_sidecar.formats.convert import ConvertError
from support.shards import index, write

BIG = 1 << 40


def table(rows: int = 3000) -> pa.Table:
    ids = np.arange(rows)
    lengths = ids % 7
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    numbers = pa.array(np.repeat(ids // 64, lengths))
    return pa.table(
        {
            "same": pa.array(["s" * 900] * rows),
            "few": pa.array([None if i % 5 == 0 else "abc" * (i % 300) for i in ids.tolist()]),
            "all": pa.array([f"{i}-{i * i}" * 9 for i in ids.tolist()], pa.large_string()),
            "list": pa.ListArray.from_arrays(pa.array(ends), numbers),
            "inner": pa.StructArray.from_arrays([pa.array(["y" * 50] * rows)], ["text"]),
        }
    )


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip", "lz4", "brotli"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_it_is_what_reading_gives(version: str, compression: str, dictionary: bool, tmp_path) -> None:  # type: ignore[no-untyped-def]
    options = {"compression": compression, "use_dictionary": dictionary, "data_page_version": version}
    write(tmp_path / "a.parquet", table(), "parquet", data_page_size=20_000, dictionary_pagesize_limit=9_000, **options)
    manifest = index(tmp_path)
    reader = open_shard(manifest, 0, delivered_columns(manifest, ()))
    found = reader.weigh(0, BIG).nbytes
    real = sum(column.values.nbytes for column in reader.read(0).columns)
    # Levels and lengths of strings that are stored as they are count too.
    assert real <= found <= 1.2 * real + 100_000
    streamed = [column.values.nbytes for chunk in reader.stream(0, 100) for column in chunk.columns]
    assert sum(streamed) == real
    reader.close()


@pytest.mark.parametrize(("most", "words"), [(1000, "column same has a page at byte 4 that decompresses to")])
def test_a_page_above_the_limit_is_refused(most: int, words: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    write(tmp_path / "a.parquet", table(), "parquet", compression="zstd", use_dictionary=False)
    manifest = index(tmp_path)
    reader = open_shard(manifest, 0, delivered_columns(manifest, ()))
    with pytest.raises(DataError, match=words):
        reader.weigh(0, most)
    reader.close()


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_row_above_the_limit_is_refused_and_many_small_ones_are_not(version: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    for name, ends in (("one", [0, 1, 90_001, 90_002]), ("many", [*range(0, 90_002, 3), 90_002])):
        values = pa.array(np.zeros(90_002, np.int32))
        array = pa.ListArray.from_arrays(pa.array(np.array(ends, np.int32)), values)
        write(tmp_path / name / "a.parquet", pa.table({"x": array}), "parquet", data_page_version=version)
    manifest = index(tmp_path / "one")
    reader = open_shard(manifest, 0, delivered_columns(manifest, ()))
    with pytest.raises(DataError, match="column x has a row of 90000 numbers, which take 360000 bytes"):
        reader.weigh(0, 200_000)
    reader.close()
    manifest = index(tmp_path / "many")
    reader = open_shard(manifest, 0, delivered_columns(manifest, ()))
    assert reader.weigh(0, 200_000).nbytes == 4 * 90_002
    reader.close()


@pytest.mark.parametrize("shape", [(2, 2), (3, 8, 8), (2, 100, 100)])
def test_large_row_groups_of_nested_lists_are_passed(shape: tuple[int, ...], tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Their repetition levels take more than one bit."""
    width = int(np.prod(shape))
    rows = 400_000 // width
    array: pa.Array = pa.array(np.arange(rows * width, dtype=np.int32))
    for length in reversed(shape):
        array = pa.FixedSizeListArray.from_arrays(array, length)
    write(tmp_path / "a.parquet", pa.table({"x": array}), "parquet")
    manifest = index(tmp_path)
    reader = open_shard(manifest, 0, delivered_columns(manifest, ()))
    reader.weigh(0, 1_500_000)
    values = reader.read(0).columns[0].values
    assert (np.asarray(values).reshape(-1) == np.arange(rows * width)).all()
    reader.close()


def packed(values: list[int]) -> bytes:
    """Levels of one bit as Parquet writes them: runs of eight and more as runs, the rest packed, eight at a time."""
    out = io.BytesIO()
    left: list[int] = []

    def number(value: int) -> None:
        while value > 127:
            out.write(bytes([value & 127 | 128]))
            value >>= 7
        out.write(bytes([value]))

    def flush() -> None:
        if left:
            data = np.packbits(np.array(left + [0] * (-len(left) % 8), np.uint8), bitorder="little").tobytes()
            number(len(data) << 1 | 1)
            out.write(data)
            left.clear()

    for value, run in groupby(values):
        size = len(list(run))
        if size >= 8 and len(left) % 8 == 0:
            flush()
            number(size << 1)
            out.write(bytes([value]))
        else:
            left += [value] * size
    flush()
    return out.getvalue()


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 3)), min_size=1, max_size=30), st.integers(0, 50))
def test_the_longest_row_is_found_whatever_the_runs(rows: list[tuple[int, int]], carried: int) -> None:
    values = [v for length, times in rows for _ in range(times) for v in [0] + [1] * length]
    values = values[1:] or [1]
    lengths = [carried]
    for value in values:
        if value:
            lengths[-1] += 1
        else:
            lengths.append(1)
    assert levels.longest(packed(values), len(values), 1, carried) == (max(lengths), lengths[-1])


def test_levels_that_end_too_early_are_an_error() -> None:
    for raw in (b"", b"\x03", b"\x01", b"\x00\x01"):
        with pytest.raises((ValueError, IndexError, ConvertError)):
            levels.longest(raw, 100, 1, 0)
