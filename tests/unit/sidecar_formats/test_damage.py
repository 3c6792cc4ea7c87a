"""Shards that are gone, replaced, damaged or hostile: a clear error that names the file, never wrong data."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lanefeed_sidecar.errors import DataError
from lanefeed_sidecar.formats import delivered_columns, identity, open_shard
from support.shards import flip, index, read_all, row_bytes, write

REMEDY = "restore the file, or make a new manifest with `lanefeed index` and start a new job"
FORMATS = ["parquet", "arrow"]


def table(rows: int = 64, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "x": rng.standard_normal(rows),
            "t": pa.FixedSizeListArray.from_arrays(pa.array(rng.integers(0, 999, 4 * rows), pa.int32()), 4),
            "s": [f"text {v}" for v in rng.integers(0, 9, rows)],
        }
    )


def message(folder: Path, manifest: object) -> str:
    with pytest.raises(DataError) as error:
        read_all(manifest)  # type: ignore[arg-type]
    assert str(folder) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("kind", FORMATS)
def test_replaced_by_another_size(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"a.{kind}", table(), kind)
    manifest = index(tmp_path)
    size = path.stat().st_size
    write(path, table(200), kind)
    text = message(path, manifest)
    assert (
        f"was replaced since the manifest was made: it has {path.stat().st_size} bytes and had {size} (written " in text
    )
    assert text.endswith(REMEDY)


@pytest.mark.parametrize("kind", FORMATS)
def test_replaced_by_the_same_size(tmp_path: Path, kind: str) -> None:
    """The footer of a Parquet file tells; an Arrow file of equal layout has an equal footer, its content tells."""
    path = write(tmp_path / f"a.{kind}", pa.table({"x": [1, 2]}), kind)
    manifest = index(tmp_path, digest="Always")
    size = path.stat().st_size
    write(path, pa.table({"x": [3, 4]}), kind)
    os.utime(path, ns=(0, 0))
    assert path.stat().st_size == size
    text = message(path, manifest)
    if kind == "parquet":
        assert "was replaced since the manifest was made: its footer is" in text
        assert "written 1970-01-01 00:00:00 UTC" in text
    else:
        assert f"is corrupt: its digest is {identity.content_digest(str(path))} and the manifest says " in text
    assert text.endswith(REMEDY)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_copied_dataset_is_accepted(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"a.{kind}", table(), kind)
    manifest = index(tmp_path)
    before = read_all(manifest)
    shutil.copyfile(path, tmp_path / "copy")
    os.replace(tmp_path / "copy", path)
    assert str(path.stat().st_mtime_ns) != manifest.shards[0].etag
    assert read_all(manifest) == before


def test_gone(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", table(), "parquet")
    manifest = index(tmp_path)
    path.unlink()
    assert message(path, manifest) == f"shard {path} cannot be read: No such file or directory; {REMEDY}"


@pytest.mark.parametrize("kind", FORMATS)
def test_content_is_checked_once_and_caught(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / f"a.{kind}", table(), kind)
    manifest = index(tmp_path, digest="Always")
    assert manifest.shards[0].content == identity.content_digest(str(path))
    reads = []
    monkeypatch.setattr(identity, "content_digest", lambda p: reads.append(p) or manifest.shards[0].content)
    read_all(manifest)
    read_all(manifest)
    assert reads == [str(path)]
    monkeypatch.undo()
    other = write(tmp_path / "sub" / f"b.{kind}", table(seed=1), kind)
    manifest = index(other.parent, digest="Always")
    flip(other, 40, 3)
    assert "is corrupt: its digest is" in message(other, manifest)


def test_every_bit_flip_of_a_file_with_page_checksums_is_seen(tmp_path: Path) -> None:
    """No content digest, no change of size or time: wrong rows are never delivered.

    CRCs cover pages, the fingerprint covers the footer; page headers have neither, so all of their bits are tried too.
    """
    source = table(32)
    path = write(tmp_path / "a.parquet", source, "parquet", rows=16, write_page_checksum=True, compression="zstd")
    manifest = index(tmp_path)
    want = read_all(manifest)
    whole = path.read_bytes()
    rng = np.random.default_rng(3)
    places = [(o, int(rng.integers(8))) for o in range(4, len(whole))]
    texts = []
    for offset, bit in places:
        flip(path, offset, bit)
        try:
            assert read_all(manifest) == want, f"bit {bit} of byte {offset} gave other rows"
        except DataError as error:
            texts.append(str(error))
        flip(path, offset, bit)
    assert path.read_bytes() == whole
    assert len(texts) > 0.8 * len(places)
    assert all(str(path) in text and REMEDY in text for text in texts)


def test_bit_flips_of_an_arrow_file_are_seen_with_digests(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", table(16), "arrow")
    manifest = index(tmp_path, digest="Always")
    for offset in range(0, path.stat().st_size, 7):
        flip(path, offset, offset % 8)
        with pytest.raises(DataError):
            read_all(manifest)
        flip(path, offset, offset % 8)
    identity._verified.clear()
    read_all(manifest)


def test_hostile_arrow_files_never_crash(tmp_path: Path) -> None:
    """Without digests a flipped Arrow file gives rows or an error, but the process lives; run apart to see it die."""
    write(tmp_path / "a.arrow", table(16), "arrow")
    script = (
        "import sys; from pathlib import Path; from support.shards import index, flip, read_all\n"
        "from lanefeed_sidecar.errors import SidecarError\n"
        "from lanefeed_sidecar.index import build_manifest\n"
        "path = Path(sys.argv[1]); manifest = index(path.parent)\n"
        "for offset in range(path.stat().st_size):\n"
        "    flip(path, offset, offset % 8)\n"
        "    try: read_all(manifest)\n"
        "    except (SidecarError, AssertionError): pass\n"
        "    try: index(path.parent)\n"
        "    except SidecarError: pass\n"
        "    flip(path, offset, offset % 8)\n"
        "print('lived')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "a.arrow")], capture_output=True, text=True, timeout=100,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=False,
    )  # fmt: skip
    assert done.stdout == "lived\n", done.stderr[-2000:]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("fixed", [False, True])
def test_null_elements_in_lists_are_refused(tmp_path: Path, kind: str, fixed: bool) -> None:
    array = pa.array([[1, 2], [None, 3], None], pa.list_(pa.int32(), 2) if fixed else pa.list_(pa.int32()))
    path = write(tmp_path / f"a.{kind}", pa.table({"t": array}), kind)
    text = message(path, index(tmp_path))
    assert "column t has null elements inside its lists, which no tensor can hold: fill them when writing" in text
    assert "0 cannot be decoded" in text


def test_null_lists_inside_fixed_lists_are_refused(tmp_path: Path) -> None:
    inner = pa.list_(pa.int32(), 2)
    array = pa.array([[[1, 2], None]], pa.list_(inner, 2))
    path = write(tmp_path / "a.arrow", pa.table({"t": array}), "arrow")
    assert "column t has null elements inside its lists" in message(path, index(tmp_path))


@pytest.mark.parametrize("kind", FORMATS)
def test_case_48_empty_row_groups_and_files(tmp_path: Path, kind: str) -> None:
    schema = pa.schema([("x", pa.int64())])
    full, empty = pa.table({"x": [1, 2, 3]}, schema), schema.empty_table()
    write(tmp_path / f"a.{kind}", empty, kind)
    for name, order in (("b", [empty, full]), ("c", [full, empty, full]), ("d", [full, empty])):
        path = tmp_path / f"{name}.{kind}"
        if kind == "parquet":
            with pq.ParquetWriter(path, schema) as writer:
                for part in order:
                    writer.write_table(part)
        else:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
                for part in order:
                    writer.write_batch(part.combine_chunks().to_batches()[0] if part.num_rows else _empty(schema))
    manifest = index(tmp_path)
    assert [s.path for s in manifest.shards] == [f"{n}.{kind}" for n in "bcd"]
    assert [s.row_groups for s in manifest.shards] == [(0, 3), (3, 0, 3), (3, 0)]
    want = [v.to_bytes(8, "little") for v in (1, 2, 3)]
    for batch in (0, 2):
        assert read_all(manifest, batch=batch) == {"x": want * 4}


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def test_a_small_file_that_decodes_to_a_gigabyte_is_bounded(tmp_path: Path) -> None:
    """100 KB that decode to 1 GB (1,000 rows of 1 MB): batches are bounded, whatever the row group holds."""
    big = pa.array(["x" * (1 << 20)], pa.string())
    array = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1000, np.int32)), big)
    path = write(tmp_path / "a.parquet", pa.table({"s": array}), "parquet", compression="zstd")
    assert path.stat().st_size < 110_000
    manifest = index(tmp_path)
    columns = delivered_columns(manifest, ())
    reader = open_shard(manifest, 0, columns)
    pool = pa.default_memory_pool()
    base, rows, peak = pool.bytes_allocated(), 0, 0
    for chunk in reader.stream(0, 16):
        rows += chunk.rows
        peak = max(peak, pool.bytes_allocated() - base)
        assert chunk.columns[0].values.nbytes == chunk.rows << 20
    reader.close()
    assert rows == 1000
    assert peak < 100 << 20


@pytest.mark.skipif(shutil.disk_usage("/tmp").free < 1 << 30, reason="needs 1 GiB")
def test_case_33_a_column_above_2_gib(tmp_path: Path) -> None:
    """A dictionary column that decodes to 2.2 GiB in one row group: offsets are 64 bits wide, nothing overflows."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if available < 8 << 30:
        pytest.skip(f"needs 8 GiB of free memory, there are {available >> 30}")
    values = pa.array(["a" * (1 << 20), "b" * (1 << 20)])
    ids = np.arange(2200, dtype=np.int32) % 2
    path = write(
        tmp_path / "a.parquet", pa.table({"s": pa.DictionaryArray.from_arrays(pa.array(ids), values)}), "parquet"
    )
    manifest = index(path.parent)
    reader = open_shard(manifest, 0, delivered_columns(manifest, ()))
    column = reader.read(0).columns[0]
    assert int(column.offsets[-1]) == 2200 << 20
    assert bytes(column.values[(2199 << 20) : (2199 << 20) + 2]) == b"bb"
    reader.close()


def test_readers_leave_no_file_open(tmp_path: Path) -> None:
    for kind in FORMATS:
        write(tmp_path / kind / f"a.{kind}", table(), kind)
        manifest = index(tmp_path / kind)
        read_all(manifest)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            read_all(manifest)
        assert len(os.listdir("/proc/self/fd")) == before


def test_readers_in_threads_agree(tmp_path: Path) -> None:
    """A reader per thread on one shard."""
    write(tmp_path / "a.parquet", table(5000), "parquet", rows=500)
    manifest = index(tmp_path, digest="Always")
    want = read_all(manifest)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(read_all(manifest) == want)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [True] * 4


def test_a_file_that_lies_about_its_rows(tmp_path: Path) -> None:
    """The manifest's row counts are what the order is made of: a row group of another size is an error."""
    write(tmp_path / "a.parquet", table(10), "parquet", rows=5)
    manifest = index(tmp_path)
    columns = delivered_columns(manifest, ())
    reader = open_shard(manifest, 0, columns)
    reader._reader._rows = (6, 4)  # type: ignore[attr-defined]
    with pytest.raises(DataError, match=r"row group 0 cannot be decoded: column x has 5 rows where 6 were promised"):
        reader.read(0)
    with pytest.raises(DataError, match="row group 0 cannot be decoded: it has 5 rows and should have 1 more"):
        list(reader.stream(0, 2))
    reader.close()
    assert row_bytes(columns[0], open_shard(manifest, 0, columns).read(1), 0)
