"""Fixed-size lists read without their levels: the values of Arrow's own reading, or the ordinary way, nothing else."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lanefeed_sidecar.formats import compact, delivered_columns, levels, open_shard, whole_lists
from support.shards import index, read_all, reads_without_levels, write

KINDS = {
    "int32": pa.int32(),
    "uint32": pa.uint32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
}


def lists(values: np.ndarray, size: int, nulls: set[int] = frozenset()) -> pa.Array:  # type: ignore[assignment]
    flat = pa.array(values)
    if not nulls:
        return pa.FixedSizeListArray.from_arrays(flat, size)
    mask = pa.array([i in nulls for i in range(len(values) // size)])
    return pa.FixedSizeListArray.from_arrays(flat, size, mask=mask)


def numbers(kind: str, count: int, seed: int, distinct: int) -> np.ndarray:
    """Random bits, so that NaN payloads and -0.0 are among them; few distinct values make dictionaries."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(kind)
    pool = rng.integers(0, 256, (distinct, dtype.itemsize), dtype=np.uint8).view(dtype)[:, 0]
    return pool[rng.integers(0, distinct, count)]


def file_of(path: Path, column: pa.Array, rows: int, **options: Any) -> Path:
    return write(path, pa.table({"x": column}), "parquet", rows, **options)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(sorted(KINDS)),
    size=st.sampled_from([1, 2, 3, 7, 8, 64, 513]),
    rows=st.integers(1, 90),
    group=st.integers(1, 50),
    distinct=st.sampled_from([1, 2, 300, 100_000]),
    codec=st.sampled_from(["zstd", "snappy", "gzip", "none", "lz4", "brotli"]),
    version=st.sampled_from(["1.0", "2.0"]),
    dictionary=st.booleans(),
    page=st.sampled_from([64, 1000, 1 << 20]),
    checksum=st.booleans(),
    seed=st.integers(0, 1000),
)
@example("int32", 2048, 40, 16, 50_000, "zstd", "1.0", True, 1 << 20, True, 1)
@example("int32", 2048, 40, 16, 50_000, "zstd", "2.0", True, 3000, True, 1)
@example("float32", 3, 50, 50, 100_000, "snappy", "1.0", True, 64, False, 1)
def test_the_values_are_those_of_arrows_own_reading(
    tmp_path: Path,
    kind: str,
    size: int,
    rows: int,
    group: int,
    distinct: int,
    codec: str,
    version: str,
    dictionary: bool,
    page: int,
    checksum: bool,
    seed: int,
) -> None:
    values = numbers(kind, rows * size, seed, distinct)
    path = file_of(
        tmp_path / "d" / "0.parquet",
        lists(values, size),
        group,
        compression=codec,
        data_page_version=version,
        use_dictionary=dictionary,
        data_page_size=page,
        write_page_checksum=checksum,
        write_batch_size=5,
    )
    manifest = index(path.parent)
    columns = delivered_columns(manifest, ())
    reader = open_shard(manifest, 0, columns)
    try:
        found = [reader.read(g) for g in range(len(manifest.shards[0].row_groups))]
    finally:
        reader.close()
    got = b"".join(chunk.columns[0].values.tobytes() for chunk in found)
    assert got == values.tobytes()


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["zstd", "snappy", "gzip", "none"])
def test_whole_lists_are_read_without_their_levels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str, version: str
) -> None:
    seen = reads_without_levels(monkeypatch)
    path = file_of(
        tmp_path / "d" / "0.parquet",
        lists(numbers("int32", 100 * 64, 1, 500), 64),
        30,
        compression=codec,
        data_page_version=version,
        data_page_size=2000,
        write_page_checksum=True,
    )
    read_all(index(path.parent))
    assert seen == [True] * 4


@pytest.mark.parametrize(
    ("column", "options"),
    [
        (lists(np.arange(40, dtype=np.int32), 4, {3}), {}),
        (pa.array([[1, 2], [3, None], [5, 6]], pa.list_(pa.int32(), 2)), {}),
        (lists(np.arange(40, dtype=np.int32), 4), {"compression": "lz4"}),
        (lists(np.arange(40, dtype=np.int16), 4), {}),
    ],
    ids=["a null list", "a null in a list", "a codec that does not say its length", "a type that Parquet stores wider"],
)
def test_everything_else_goes_the_ordinary_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: pa.Array, options: dict[str, Any]
) -> None:
    seen = reads_without_levels(monkeypatch)
    path = file_of(tmp_path / "d" / "0.parquet", column, 100, **options)
    if column.null_count == 0 and column.flatten().null_count:
        with pytest.raises(Exception, match="null"):
            read_all(index(path.parent))
    else:
        rows = read_all(index(path.parent))["x"]
        assert [r is None for r in rows] == [v is None for v in column.to_pylist()]
    assert True not in seen


def test_other_columns_beside_them_come_as_always(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = reads_without_levels(monkeypatch)
    table = pa.table(
        {
            "a": pa.array([f"t{i}" for i in range(50)]),
            "x": lists(np.arange(200, dtype=np.int64), 4),
            "b": pa.array(range(50), pa.int16()),
            "y": lists(np.arange(100, dtype=np.float32), 2, {7}),
        }
    )
    write(tmp_path / "d" / "0.parquet", table, "parquet", 20)
    rows = read_all(index(tmp_path / "d"))
    assert list(rows["x"]) == [np.arange(4 * i, 4 * i + 4).tobytes() for i in range(50)]
    assert rows["a"] == [f"t{i}".encode() for i in range(50)]
    assert rows["b"] == [np.int16(i).tobytes() for i in range(50)]
    assert [i for i, r in enumerate(rows["y"]) if r is None] == [7]
    # x always; y where its row group has no null.
    assert seen == [True, False, True, True, True, True]
    assert list(read_all(index(tmp_path / "d"), ("b", "x"))) == ["b", "x"]


def test_tooth_pages_in_another_order_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of one page before those of the page before it: the rows differ, and the comparison above would say so."""
    real = whole_lists.WholeLists._pages

    def swapped(self: whole_lists.WholeLists, *args: Any) -> Any:
        pages = real(self, *args)
        pages.parts[-4:] = [*pages.parts[-2:], *pages.parts[-4:-2]]
        return pages

    values = np.arange(600, dtype=np.int32)
    path = file_of(
        tmp_path / "d" / "0.parquet",
        lists(values, 4),
        200,
        use_dictionary=False,
        data_page_size=400,
        write_batch_size=5,
    )
    manifest = index(path.parent)
    assert b"".join(r or b"" for r in read_all(manifest)["x"]) == values.tobytes()
    monkeypatch.setattr(whole_lists.WholeLists, "_pages", swapped)
    assert b"".join(r or b"" for r in read_all(manifest)["x"]) != values.tobytes()


def test_one_flipped_byte_anywhere_gives_what_the_ordinary_way_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No checksums here: damage may decode to other values, but never to others than Arrow's own, or the right ones."""
    path = file_of(
        tmp_path / "d" / "0.parquet",
        lists(numbers("int32", 60, 3, 9), 4),
        100,
        compression="snappy",
        write_statistics=False,
    )
    data = path.read_bytes()
    end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    manifest = index(path.parent)
    columns = delivered_columns(manifest, ())

    right = b"".join(r or b"" for r in read_all(manifest)["x"])

    def outcome() -> bytes | str:
        reader = open_shard(manifest, 0, columns)
        try:
            return bytes(reader.read(0).columns[0].values.tobytes())
        except Exception as error:
            return type(error).__name__
        finally:
            reader.close()

    for at in range(4, end):
        with path.open("r+b") as file:
            os.pwrite(file.fileno(), bytes([data[at] ^ 0x41]), at)
        fast = outcome()
        with monkeypatch.context() as patch:
            patch.setattr(whole_lists.WholeLists, "read", lambda *_: None)
            slow = outcome()
        with path.open("r+b") as file:
            os.pwrite(file.fileno(), data[at : at + 1], at)
        # Headers hold things that are not needed to read the values.
        assert fast in (slow, right), f"byte {at}"


# ---- levels and the compact protocol ---------------------------------------------------------------------------


def packed(bits: list[int]) -> bytes:
    """Levels of one bit as one literal run."""
    groups = -(-len(bits) // 8)
    body = np.packbits(np.array(bits + [0] * (groups * 8 - len(bits)), np.uint8), bitorder="little").tobytes()
    return bytes([groups << 1 | 1]) + body


def test_levels_are_decoded_as_the_format_says() -> None:
    assert levels.decode(b"\x10\x01", 8, 1) is not None
    assert levels.decode(b"\x06\x02" + b"\x03\x88\xc6\xfa", 11, 3).tolist() == [2, 2, 2, 0, 1, 2, 3, 4, 5, 6, 7]  # type: ignore[union-attr]
    assert levels.whole_lists(packed([0, 1, 1, 0, 1, 1]), 6, 0, 3)
    assert levels.whole_lists(packed([1, 0, 1, 1, 0, 1]), 6, 2, 3)
    assert not levels.whole_lists(packed([0, 1, 0, 1, 1, 1]), 6, 0, 3)


@pytest.mark.parametrize(
    "data", [b"", b"\x10", b"\x12\x01", b"\x00\x01", b"\x03", b"\x01", b"\xff\xff\xff\xff\xff\xff", b"\x10\x01\x00"]
)
def test_levels_that_are_no_levels_are_not_whole(data: bytes) -> None:
    assert levels.decode(data, 8, 1) is None
    assert not levels.all_present(data, 8, 1)


@given(st.binary(max_size=80))
def test_hostile_headers_end_in_an_error_and_nothing_else(data: bytes) -> None:
    try:
        _, at = compact.read_struct(data, 0)
    except (ValueError, IndexError):
        return
    assert 0 < at <= len(data)


def test_structs_are_read_as_they_are_written() -> None:
    inner = compact.struct((2, compact.I64, compact.integer(1 << 40)))
    data = compact.struct(
        (1, compact.I32, compact.integer(7)),
        (9, compact.TEXT, compact.text(b"passed over")),
        (11, compact.STRUCT, inner),
    )
    assert compact.read_struct(data, 0) == ({1: 7, 11: {2: 1 << 40}}, len(data))


def test_shards_of_one_thread_share_buffers_and_no_value_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read from one shard stays as it was while another one is read into the same memory."""
    seen = reads_without_levels(monkeypatch)
    values = [numbers("int32", 64 * 8 * (3 + k), k, 1000) for k in range(3)]
    for k, flat in enumerate(values):
        file_of(tmp_path / "d" / f"{k}.parquet", lists(flat, 64), 1000)
    manifest = index(tmp_path / "d")
    columns = delivered_columns(manifest, ())
    whole_lists._SCRATCH.raw = bytearray(1 << 16)
    before = whole_lists._SCRATCH.raw
    readers = [open_shard(manifest, shard, columns) for shard in range(3)]
    chunks = [reader.read(0) for reader in readers]
    assert seen == [True] * 3
    assert whole_lists._SCRATCH.raw is before
    for flat, chunk in zip(values, chunks, strict=True):
        assert chunk.columns[0].values.tobytes() == flat.tobytes()
    monkeypatch.setattr(whole_lists, "_KEPT_BYTES", 1000)
    for reader in readers:
        reader.close()
    assert not whole_lists._SCRATCH.raw
    assert chunks[0].columns[0].values.tobytes() == values[0].tobytes()
