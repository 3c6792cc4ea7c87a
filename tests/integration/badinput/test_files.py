"""Files that cannot be used: the user hears which one, why, and what to do. Each through `lanefeed.open`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lanefeed
from support.badinput import SMALL, folder, read, said, shard

#: No word of data.onCorrupt, which only jobs have.
SUFFIX = "remove or rewrite it"


def test_empty_glob_and_wrong_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANEFEED_READ_PATIENCE_SECONDS", "1")
    folder(tmp_path / "d")
    (tmp_path / "none").mkdir()
    text = said(lanefeed.DataError, tmp_path / "d" / "train" / "*.parquet")
    assert f"data.uri {tmp_path}/d/train/*.parquet matches no file" in text
    assert f"the nearest folder that exists is {tmp_path}/d): check the pattern" in text
    text = said(lanefeed.DataError, tmp_path / "none")
    assert text == f"data.uri {tmp_path}/none names no data file (there is no file): check the path"
    text = said(lanefeed.DataError, tmp_path / "d" / "7.parquet")
    assert f"data.uri {tmp_path}/d/7.parquet does not exist" in text
    text = said(lanefeed.DataError, "http://127.0.0.1:9/train.parquet")
    assert "http://127.0.0.1:9/train.parquet cannot be read" in text
    assert "the store cannot be reached: check the endpoint" in text


def test_a_folder_named_like_a_file_is_a_folder_and_a_dead_link_is_named(tmp_path: Path) -> None:
    uri = folder(tmp_path / "d")
    (uri / "9.parquet").mkdir()
    assert read(uri) == 64
    shard(uri / "9.parquet" / "part-0.parquet", range(64, 72))
    assert read(uri) == 72
    (uri / "8.parquet").symlink_to(tmp_path / "gone.parquet")
    text = said(lanefeed.DataError, uri)
    assert text == (
        f"{uri}/8.parquet is a link to {tmp_path}/gone.parquet, which does not exist: restore it or remove the link"
    )


#: Root may read everything; so the process that tries gives that right up first (CAP_DAC_OVERRIDE, _READ_SEARCH).
UNREADABLE = f"""
import ctypes, os, sys
if os.geteuid() == 0 and "again" not in sys.argv:
    if any(ctypes.CDLL(None).prctl(24, capability) for capability in (1, 2)):
        sys.exit(77)
    os.execv(sys.executable, [sys.executable, "-c", sys.orig_argv[2], *sys.argv[1:], "again"])
import lanefeed
for uri in sys.argv[1:3]:
    try:
        with lanefeed.open(uri, **{SMALL!r}) as loader:
            next(iter(loader))
    except lanefeed.DataError as error:
        print(error)
"""


def test_unreadable_files_and_folders(tmp_path: Path) -> None:
    """chmod 000."""
    uri, closed = folder(tmp_path / "d"), folder(tmp_path / "closed")
    (uri / "1.parquet").chmod(0)
    closed.chmod(0)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", UNREADABLE, str(uri), str(closed)]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    finally:
        closed.chmod(0o755)
    if done.returncode == 77:
        pytest.skip("root, and its right to read everything cannot be given up here")
    size = (uri / "1.parquet").stat().st_size
    assert done.stdout.splitlines() == [
        f"{uri}/1.parquet ({size} bytes) cannot be read: Permission denied; {SUFFIX}",
        f"folder {closed} cannot be listed: Permission denied; make it readable",
    ], done.stderr


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda data: data[:-40], "it does not end like a parquet file (truncated, or not parquet)"),
        (lambda data: data[:2], "it is neither Parquet nor an Arrow file by its first bytes"),
        (lambda data: b"", "it is empty"),
        (lambda data: b"<html>" + data[6:], "it is neither Parquet nor an Arrow file by its first bytes"),
    ],
    ids=["cut", "two bytes", "nothing", "another file"],
)
def test_truncated_and_foreign_files(tmp_path: Path, damage, why: str) -> None:  # type: ignore[no-untyped-def]
    uri = folder(tmp_path / "d")
    bad = uri / "1.parquet"
    bad.write_bytes(damage(bad.read_bytes()))
    size = bad.stat().st_size
    assert said(lanefeed.DataError, uri) == f"{bad} ({size} bytes) cannot be read: {why}; {SUFFIX}"


@pytest.mark.parametrize("checksums", [True, False])
def test_corrupt_pages_end_the_stream_by_name(tmp_path: Path, checksums: bool) -> None:
    uri = folder(tmp_path / "d")
    bad = shard(uri / "1.parquet", range(32, 64), write_page_checksum=checksums, compression="zstd")
    data = bytearray(bad.read_bytes())
    at = pq.ParquetFile(bad).metadata.row_group(1).column(0).data_page_offset
    data[at : at + 48] = bytes(48)
    bad.write_bytes(bytes(data))
    text = said(lanefeed.DataError, uri)
    assert text.startswith(f"shard {bad}, row group 1 cannot be decoded: ")
    assert "restore the file, or make a new manifest with `lanefeed index`" in text


@pytest.mark.parametrize("in_place", [False, True])
def test_a_shard_that_changes_under_a_running_stream(in_place: bool, tmp_path: Path) -> None:
    """The dataset is five times as large as what is read ahead, so that most of it is read after it has changed."""
    uri = tmp_path / "d"
    uri.mkdir()

    def write(first: int) -> None:
        for number in range(40):
            ids = np.arange(number * 1024, (number + 1) * 1024) + first
            x = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(ids, 256).astype(np.float32)), 256)
            file = uri / f"{number:02}.parquet"
            pq.write_table(pa.table({"id": ids, "x": x}), file if in_place else tmp_path / "new", row_group_size=64)
            if not in_place:
                (tmp_path / "new").replace(file)

    write(0)
    options = SMALL | {"slot_bytes": 1 << 16, "read_ahead_bytes": 8 << 20}

    def rest(loader: lanefeed.Loader) -> None:
        for batch in loader:
            assert batch["id"].tolist() == batch.ids.tolist()

    with lanefeed.open(uri, **options) as loader:
        next(iter(loader))
        write(7)
        with pytest.raises(lanefeed.DataError, match=f"{uri}/.*(changed|replaced)"):
            rest(loader)


def test_a_shard_that_is_touched_or_replaced_while_it_is_read_is_read_on(tmp_path: Path) -> None:
    """A rename leaves the open file as it was; what was written to and is the same is opened again by the pipeline."""
    uri = tmp_path / "d"
    uri.mkdir()
    for number in range(8):
        ids = np.arange(number * 512, (number + 1) * 512)
        pq.write_table(pa.table({"id": ids}), uri / f"{number}.parquet", row_group_size=16)
    with lanefeed.open(str(uri), **SMALL) as loader:
        seen: list[int] = []
        for step, batch in enumerate(loader):
            assert batch["id"].tolist() == batch.ids.tolist()
            seen += batch.ids.tolist()
            shard = uri / f"{step % 8}.parquet"
            if step % 2:
                shard.touch()
            else:
                shutil.copyfile(shard, tmp_path / "copy")
                (tmp_path / "copy").replace(shard)
    assert len(seen) == len(set(seen)) > 4000


def test_zero_rows(tmp_path: Path) -> None:
    uri = folder(tmp_path / "d")
    shard(uri / "0-first.parquet", [])
    shard(uri / "9.parquet", [])
    assert read(uri) == 64
    only = tmp_path / "only"
    shard(only / "a.parquet", [])
    assert said(lanefeed.DataError, only) == (
        f"data.uri {only} has no row that can be read ({only}/a.parquet: it has no rows): check the files"
    )
    shard(only / "b.parquet", range(5))
    text = said(lanefeed.UsageError, only)
    assert text.startswith("the dataset has 5 samples, fewer than batching.globalBatchSize 8: with lastBatch Drop no")
    assert read(only, last_batch="Partial") == 5


def test_two_schemas(tmp_path: Path) -> None:
    uri = folder(tmp_path / "d")
    pq.write_table(pa.table({"id": ["a"], "x": np.zeros(1, np.float32)}), uri / "9.parquet")
    text = said(lanefeed.DataError, uri)
    assert text == (
        f"two schemas in one dataset: column 'id' is int64 in {uri}/0.parquet and string in {uri}/9.parquet; write the "
        "shards with one type, or index them as separate datasets"
    )
    pq.write_table(pa.table({"id": np.arange(4)}), uri / "9.parquet")
    text = said(lanefeed.DataError, uri)
    assert f"compared with {uri}/0.parquet, {uri}/9.parquet lacks 'x'; write the shards alike" in text


def test_columns_that_do_not_exist(tmp_path: Path) -> None:
    uri = folder(tmp_path / "d")
    assert said(lanefeed.UsageError, uri, columns=["idd"]) == (
        "data.columns names 'idd', which the dataset does not have: did you mean 'id'? It has id, x"
    )
    assert said(lanefeed.UsageError, uri, columns="id") == (
        "columns is the text 'id': give a list of names, such as columns=['id']"
    )
    with lanefeed.open(uri, **SMALL) as loader, pytest.raises(KeyError, match="this batch has the columns id, x"):
        next(iter(loader))["y"]
