"""Entries: every value comes back bit for bit, and no damaged file is ever taken for one."""

import os
from pathlib import Path

import numpy as np
import pytest

from lanefeed_core.layout import Column
from lanefeed_sidecar.cache.entry import EntryError, chunk_bytes, read_entry, write_entry
from lanefeed_sidecar.cache.form import form_of
from lanefeed_sidecar.formats.chunk import Chunk, FixedChunk, RaggedChunk

ROWS = 5
COLUMNS = (
    Column("x", "float64"),
    Column("m", "int32", (3, 2)),
    Column("t", "uint8", kind="ragged", nullable=True, logical="string"),
    Column("empty", "int64", (0,)),
)


def chunk() -> Chunk:
    odd = np.array([np.nan, -0.0, np.inf, 1.5, -np.nan])
    odd.view(np.uint64)[0] = 0x7FF8DEADBEEF0001  # a NaN with a payload
    offsets = np.array([0, 3, 3, 3, 9, 10], np.int64)
    valid = np.array([1, 0, 1, 1, 1], np.uint8)
    return Chunk(
        ROWS,
        [
            FixedChunk(odd),
            FixedChunk(np.arange(30, dtype=np.int32).reshape(5, 3, 2)),
            RaggedChunk(np.arange(10, dtype=np.uint8), offsets, valid),
            FixedChunk(np.zeros((5, 0), np.int64)),
        ],
    )


def put(path: Path, data: Chunk) -> int:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        return write_entry(fd, data)
    finally:
        os.close(fd)


def get(
    path: Path,
    columns: tuple[Column, ...] = COLUMNS,
    rows: int = ROWS,
    limit: int = 1 << 20,
    into: dict[int, np.ndarray] | None = None,
) -> Chunk:
    fd = os.open(path, os.O_RDONLY)
    try:
        return read_entry(fd, os.fstat(fd).st_size, columns, rows, limit, into)
    finally:
        os.close(fd)


def places(*indices: int) -> dict[int, np.ndarray]:
    """Memory for columns, as rows 2..6 of something larger."""
    return {i: np.full((9, *COLUMNS[i].shape), 77, COLUMNS[i].dtype)[2:7] for i in indices}


INTO = [(), (0,), (1,), (3, 1), (0, 1, 3)]


@pytest.mark.parametrize("into", INTO)
def test_every_bit_comes_back(into: tuple[int, ...], tmp_path: Path) -> None:
    assert put(tmp_path / "e", chunk()) == (tmp_path / "e").stat().st_size <= chunk_bytes(chunk())
    given = places(*into)
    got = get(tmp_path / "e", into=given)
    for index, values in given.items():
        assert got.columns[index].values is values
        assert values.base is not None
        assert (values.base[[0, 1, 7, 8]] == 77).all(), "only its own rows are written"
    for wanted, found in zip(chunk().columns, got.columns, strict=True):
        assert type(found) is type(wanted)
        assert found.values.tobytes() == wanted.values.tobytes()
        assert (found.values.dtype, found.values.shape) == (wanted.values.dtype, wanted.values.shape)
        assert (found.validity is None) == (wanted.validity is None)
        if isinstance(wanted, RaggedChunk) and isinstance(found, RaggedChunk):
            assert found.offsets.tolist() == wanted.offsets.tolist()
            assert found.validity is not None
            assert found.validity.tolist() == [1, 0, 1, 1, 1]


@pytest.mark.parametrize("into", [(), (1,)])
def test_tooth_one_flipped_bit_anywhere_is_seen(into: tuple[int, ...], tmp_path: Path) -> None:
    put(tmp_path / "e", chunk())
    data = (tmp_path / "e").read_bytes()
    for at in range(len(data)):
        if 24 <= at < 64:
            continue  # the header's padding says nothing
        (tmp_path / "e").write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        with pytest.raises(EntryError):
            get(tmp_path / "e", into=places(*into))


@pytest.mark.parametrize("into", [(), (1,)])
def test_a_file_cut_at_any_byte_is_seen(into: tuple[int, ...], tmp_path: Path) -> None:
    put(tmp_path / "e", chunk())
    data = (tmp_path / "e").read_bytes()
    for size in range(len(data)):
        (tmp_path / "e").write_bytes(data[:size])
        with pytest.raises(EntryError):
            get(tmp_path / "e", into=places(*into))


PLAIN = COLUMNS[:2]


def plain(value: int = 0, valid: np.ndarray | None = None) -> Chunk:
    """Columns without lists: the next entry is taken to be described as the last one."""
    return Chunk(ROWS, [FixedChunk(np.full(5, value, COLUMNS[0].dtype), valid), chunk().columns[1]])


@pytest.mark.parametrize("into", [(), (1,)])
def test_tooth_a_bit_or_a_cut_in_an_entry_like_the_last_one_is_seen(into: tuple[int, ...], tmp_path: Path) -> None:
    put(tmp_path / "e", plain(7))
    data = (tmp_path / "e").read_bytes()
    assert get(tmp_path / "e", PLAIN, into=places(*into)).columns[0].values.tolist() == [7] * 5
    for at in (at for at in range(len(data)) if not 24 <= at < 64):
        (tmp_path / "e").write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        with pytest.raises(EntryError):
            get(tmp_path / "e", PLAIN, into=places(*into))
        (tmp_path / "e").write_bytes(data[:at])
        with pytest.raises(EntryError):
            get(tmp_path / "e", PLAIN, into=places(*into))


@pytest.mark.parametrize("into", [(), (1,)])
def test_an_entry_that_is_not_like_the_last_one_is_read_too(into: tuple[int, ...], tmp_path: Path) -> None:
    valid = np.array([1, 0, 1, 1, 0], np.uint8)
    for number, nulls in enumerate((None, valid, valid, None, valid)):
        put(tmp_path / "e", plain(number, nulls))
        got = get(tmp_path / "e", PLAIN, into=places(*into))
        assert got.columns[0].values.tolist() == [number] * 5
        assert got.columns[1].values.tolist() == chunk().columns[1].values.tolist()
        found = got.columns[0].validity
        assert (None if found is None else found.tolist()) == (None if nulls is None else valid.tolist())


def test_entries_that_differ_are_read_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it is known that some have nulls and some have none, nobody guesses, and reads twice, any more."""
    columns = (Column("x", "float64", nullable=True), COLUMNS[1])
    valid = np.array([1, 0, 1, 1, 0], np.uint8)
    read: list[int] = []
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *args: read.append(1) or real(*args))
    counts = []
    for nulls in (None, None, valid, None, valid, valid, None):
        put(tmp_path / "e", plain(1, nulls))
        read.clear()
        get(tmp_path / "e", columns)
        counts.append(len(read))
    assert counts == [1, 1, 2, 1, 1, 1, 1]


def test_more_columns_than_one_call_reads(tmp_path: Path) -> None:
    columns = tuple(Column(f"w{i}", "int16", (4,)) for i in range(700))
    values = [np.full((ROWS, 4), i, np.int16) for i in range(700)]
    put(tmp_path / "e", Chunk(ROWS, [FixedChunk(v) for v in values]))
    for _ in range(2):
        into = {i: np.zeros((ROWS, 4), np.int16) for i in range(700)}
        got = get(tmp_path / "e", columns, into=into)
        assert all((got.columns[i].values == i).all() and got.columns[i].values is into[i] for i in range(700))


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        (COLUMNS, ROWS + 1),
        (COLUMNS[:3], ROWS),
        ((Column("x", "int64"), *COLUMNS[1:]), ROWS),
        ((COLUMNS[0], Column("m", "int32", (2, 3)), *COLUMNS[2:]), ROWS),
        ((COLUMNS[0], Column("m", "int32", kind="ragged"), *COLUMNS[2:]), ROWS),
    ],
)
def test_an_entry_of_other_columns_is_none_of_ours(tmp_path: Path, columns: tuple[Column, ...], rows: int) -> None:
    put(tmp_path / "e", chunk())
    with pytest.raises(EntryError):
        get(tmp_path / "e", columns, rows)


def test_a_file_larger_than_the_cache_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "e").write_bytes(b"")
    os.truncate(tmp_path / "e", 1 << 40)
    with pytest.raises(EntryError, match="1099511627776 bytes"):
        get(tmp_path / "e")


@pytest.mark.parametrize("rows", [1, 5, 16, 33])
def test_neighbours_of_one_type_come_back_as_a_block(tmp_path: Path, rows: int) -> None:
    """The same memory as the columns; none where a column has nulls, or is alone."""
    rng = np.random.default_rng(rows)
    columns = (
        *(Column(f"f{i}", "float32", nullable=True) for i in range(3)),
        *(Column(f"i{i}", "int64") for i in range(2)),
        Column("alone", "int32"),
        *(Column(f"n{i}", "int16", nullable=True) for i in range(2)),
    )
    made = [FixedChunk(rng.integers(0, 256, rows * c.itemsize, np.uint8).view(c.dtype)) for c in columns]
    made[-1].validity = np.arange(rows, dtype=np.uint8) % 2
    put(tmp_path / "e", Chunk(rows, list(made)))
    found = get(tmp_path / "e", columns, rows)
    assert set(found.blocks) == {0, 3}
    for start, block in found.blocks.items():
        for i, values in enumerate(block):
            assert values.tobytes() == made[start + i].values.tobytes()
            assert np.shares_memory(values, found.columns[start + i].values)


def test_entries_that_say_the_same_share_a_form_and_others_do_not(tmp_path: Path) -> None:
    """What is remembered belongs to these columns: others of the same description are judged by themselves."""
    put(tmp_path / "e", chunk())
    raw = (tmp_path / "e").read_bytes()
    said = raw[72 : 72 + int.from_bytes(raw[64:72], "little")]
    known = form_of(said, COLUMNS, ROWS)
    assert form_of(said, COLUMNS, ROWS) is known
    other = (Column("x", "float32"), *COLUMNS[1:])
    with pytest.raises(EntryError, match="column x"):
        form_of(said, other, ROWS)
    with pytest.raises(EntryError, match="5 rows"):
        form_of(said, COLUMNS, ROWS + 1)
    for number in range(200):
        with pytest.raises(EntryError):
            form_of(said + b"%d" % number, COLUMNS, ROWS)
