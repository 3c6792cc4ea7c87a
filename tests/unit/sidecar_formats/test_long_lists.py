"""Lists of any length read without their levels: what Arrow's own reading gives, or the ordinary way, nothing else."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lanefeed_sidecar.errors import DataError
from lanefeed_sidecar.formats import RaggedChunk, delivered_columns, levels, open_shard
from lanefeed_sidecar.formats.compact import unsigned
from support.shards import index, reads_without_levels, write

KINDS = {"int32": pa.int32(), "uint32": pa.uint32(), "int64": pa.int64(), "float64": pa.float64()}


def column(lengths: np.ndarray, kind: str, seed: int, distinct: int) -> pa.Array:
    rng = np.random.default_rng(seed)
    pool = rng.integers(0, 256, (distinct, np.dtype(kind).itemsize), dtype=np.uint8).view(kind)[:, 0]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(pool[rng.integers(0, distinct, offsets[-1])]))


def check(path: Path, table: pa.Table, rows: int) -> None:
    """Every row group, bit for bit."""
    manifest = index(path.parent)
    reader = open_shard(manifest, 0, delivered_columns(manifest, ()))
    try:
        for group in range(len(manifest.shards[0].row_groups)):
            reader.weigh(group, 1 << 30)
            part = reader.read(group).columns[0]
            assert isinstance(part, RaggedChunk)
            wanted = table["x"].slice(group * rows, rows).combine_chunks()
            lengths = wanted.value_lengths().fill_null(0).to_numpy()
            assert part.offsets.dtype == np.int64
            assert np.diff(part.offsets).tolist() == lengths.tolist()
            assert part.offsets[0] == 0
            assert part.values.tobytes() == wanted.flatten().to_numpy(zero_copy_only=False).tobytes()
    finally:
        reader.close()


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(sorted(KINDS)),
    lengths=st.lists(st.sampled_from([1, 2, 7, 8, 9, 33, 64, 500]), min_size=1, max_size=40),
    group=st.integers(1, 30),
    distinct=st.sampled_from([1, 300, 100_000]),
    codec=st.sampled_from(["zstd", "snappy", "gzip", "none", "lz4"]),
    version=st.sampled_from(["1.0", "2.0"]),
    dictionary=st.booleans(),
    page=st.sampled_from([64, 1000, 1 << 20]),
    large=st.booleans(),
    seed=st.integers(0, 1000),
)
@example("int32", [600, 1, 2000, 64, 1, 1, 900], 4, 50_000, "zstd", "1.0", True, 1 << 20, False, 1)
def test_the_values_are_those_of_arrows_own_reading(
    tmp_path: Path,
    kind: str,
    lengths: list[int],
    group: int,
    distinct: int,
    codec: str,
    version: str,
    dictionary: bool,
    page: int,
    large: bool,
    seed: int,
) -> None:
    made = column(np.array(lengths), kind, seed, distinct)
    table = pa.table({"x": made.cast(pa.large_list(KINDS[kind])) if large else made})
    path = write(
        tmp_path / "d" / "0.parquet",
        table,
        "parquet",
        group,
        compression=codec,
        data_page_version=version,
        use_dictionary=dictionary,
        data_page_size=page,
        write_page_checksum=True,
        write_batch_size=5,
    )
    check(path, table, group)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("page", [500, 1 << 20])
def test_long_lists_are_read_without_their_levels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, page: int
) -> None:
    """Lists that go on over the ends of pages among them."""
    seen = reads_without_levels(monkeypatch)
    lengths = np.random.default_rng(1).integers(1, 200, 300)
    table = pa.table({"x": column(lengths, "int32", 1, 500)})
    path = write(tmp_path / "d" / "0.parquet", table, "parquet", 100, data_page_version=version, data_page_size=page)
    check(path, table, 100)
    assert seen == [True] * 3


@pytest.mark.parametrize("why", ["an empty list", "a null list", "a null number", "short lists"])
def test_others_go_the_ordinary_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    seen = reads_without_levels(monkeypatch)
    rows: list[Any] = [list(range(100)), list(range(64))]
    rows += {
        "an empty list": [[]],
        "a null list": [None],
        "a null number": [[1, None] * 20],
        "short lists": [[1]] * 20,
    }[why]
    table = pa.table({"x": pa.array(rows, pa.list_(pa.int32()))})
    path = write(tmp_path / "d" / "0.parquet", table, "parquet")
    if why == "a null number":
        with pytest.raises(DataError, match="null elements"):
            check(path, table, len(rows))
    else:
        check(path, table, len(rows))
    assert seen == [False]


def test_a_flipped_bit_anywhere_is_an_error_or_changes_nothing(tmp_path: Path) -> None:
    """Page checksums, or the ordinary way's own error: never other values."""
    table = pa.table({"x": column(np.array([70, 33, 150]), "int32", 3, 40)})
    path = write(tmp_path / "d" / "0.parquet", table, "parquet", write_page_checksum=True, compression="none")
    manifest, whole = index(path.parent), path.read_bytes()
    columns = delivered_columns(manifest, ())
    meta = pq.read_metadata(path).row_group(0).column(0)
    wanted = None
    for at in range(4, 4 + meta.total_compressed_size):
        raw = bytearray(whole)
        raw[at] ^= 1 << at % 8
        path.write_bytes(raw if wanted is not None else whole)
        reader = open_shard(manifest, 0, columns)
        try:
            part = reader.read(0).columns[0]
        except DataError:
            continue
        finally:
            reader.close()
        assert isinstance(part, RaggedChunk)
        got = part.values.tobytes(), part.offsets.tolist()
        wanted = wanted or got
        assert got == wanted, f"byte {at}"
    assert wanted is not None


# ---- levels ---------------------------------------------------------------------------------------------------------


def _runs(bits: list[int], cuts: list[int]) -> bytes:
    """Levels as a writer may spell them: at each cut the next run begins, packed or repeated as the bits allow."""
    out, at = bytearray(), 0
    for cut in [*cuts, len(bits)]:
        part = bits[at:cut]
        if not part:
            continue
        if len(set(part)) == 1:
            out += _number(len(part) << 1) + bytes(part[:1])
        elif len(part) % 8 == 0 or cut == len(bits):
            padded = part + [1] * (-len(part) % 8)
            out += _number((len(padded) // 8) << 1 | 1)
            out += np.packbits(np.array(padded, np.uint8), bitorder="little").tobytes()
        else:
            for bit in part:
                out += _number(2) + bytes([bit])
        at = cut
    return bytes(out)


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    assert unsigned(bytes(out), 0)[1] == len(out)
    return bytes(out)


@given(st.lists(st.integers(0, 1), min_size=1, max_size=200), st.lists(st.integers(0, 200), max_size=6))
def test_starts_are_the_zeros(bits: list[int], cuts: list[int]) -> None:
    data = _runs(bits, sorted(min(cut, len(bits)) for cut in cuts))
    wanted = [at for at, bit in enumerate(bits) if not bit]
    assert levels.starts(data, len(bits), len(wanted)) == wanted
    if wanted:
        assert levels.starts(data, len(bits), len(wanted) - 1) is None
    assert levels.starts(data + b"\x02\x01", len(bits), len(wanted)) is None


@given(st.binary(max_size=40), st.integers(1, 300))
def test_any_bytes_give_what_decoding_gives_or_nothing(data: bytes, count: int) -> None:
    decoded = levels.decode(data, count, 1)
    try:
        found = levels.starts(data, count, count)
    except (IndexError, ValueError):
        found = None
    if found is not None:
        assert decoded is not None
        assert found == np.flatnonzero(decoded == 0).tolist()


def test_a_run_of_a_billion_starts_takes_no_memory() -> None:
    assert levels.starts(_number(1 << 31) + b"\x00", 1 << 30, 1000) is None


def test_tooth_a_start_that_is_off_by_one_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"x": column(np.array([70, 33, 150]), "int32", 3, 40)})
    path = write(tmp_path / "d" / "0.parquet", table, "parquet")
    check(path, table, 3)
    real = levels.starts
    monkeypatch.setattr(levels, "starts", lambda *a: [at + (at > 0) for at in real(*a) or []])
    with pytest.raises(AssertionError):
        check(path, table, 3)
