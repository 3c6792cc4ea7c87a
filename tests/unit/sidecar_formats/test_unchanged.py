"""A shard that is written to while a reader has it open."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lanefeed_sidecar.errors import DataError
from lanefeed_sidecar.formats import delivered_columns, open_shard
from lanefeed_sidecar.formats import reader as reader_module
from lanefeed_sidecar.index import build_manifest


@pytest.mark.parametrize("digest", ["Always", "Never"])
def test_a_shard_that_is_written_to_while_it_is_read(digest: str, tmp_path: Path) -> None:
    """In place, page for page: plain numbers without checksums, so that nothing else would show. Other rows: an error.

    With digests no byte of them gets out. Without, those that were read before the write, and no others.
    """
    file = tmp_path / "a.parquet"
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False, "row_group_size": 64}
    count = 64 * 400

    def write(first: int) -> bytes:
        x = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(np.arange(count) + first, 64).astype(np.float32)), 64)
        pq.write_table(pa.table({"x": x}), tmp_path / "new", **plain)
        return (tmp_path / "new").read_bytes()

    old, new = write(0), write(7)
    assert old[-2000:] == new[-2000:], "the footers are to be the same"
    file.write_bytes(old)
    manifest = build_manifest([str(file)], digest=digest).manifest
    reader = open_shard(manifest, 0, delivered_columns(manifest, ()))
    assert reader.read(0).columns[0].values[:, 0].tolist() == list(range(64))
    with file.open("r+b") as out:
        out.write(new)
    os.utime(file, ns=(1, 1))
    for read in (lambda: reader.read(1), lambda: next(reader.stream(1, 8)), lambda: list(reader.stream(2, 8))):
        with pytest.raises(DataError, match=r"a.parquet was changed in place while it was read: .*; restore") as found:
            read()
        assert isinstance(found.value.__cause__, OSError), "it is tried again, with the shard opened anew"
    if digest == "Always":
        with pytest.raises(DataError, match="is corrupt: its digest is"):
            open_shard(manifest, 0, delivered_columns(manifest, ()))
    reader.close()


def test_a_shard_that_is_written_to_while_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes it anew has cut it short when it is opened, after it was found to be the one of the manifest."""
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": np.arange(640)}), file)
    manifest = build_manifest([str(file)], digest="Never").manifest
    real = reader_module.ParquetReader

    def opened(path: str, *more: object) -> object:
        os.truncate(path, 100)
        return real(path, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(reader_module, "ParquetReader", opened)
    with pytest.raises(DataError, match=r"a\.parquet was changed in place while it was read") as found:
        open_shard(manifest, 0, delivered_columns(manifest, ()))
    assert isinstance(found.value.__cause__, OSError), "it is tried again"
    with pytest.raises(DataError, match="was replaced since the manifest was made: it has 100 bytes"):
        open_shard(manifest, 0, delivered_columns(manifest, ()))


@pytest.mark.parametrize("digest", ["Always", "Never"])
@pytest.mark.parametrize("fate", ["replaced", "removed"])
def test_a_shard_that_is_renamed_over_while_it_is_opened(
    fate: str, digest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old file was hashed, the new one is opened: nobody has looked at its bytes."""
    file, new = tmp_path / "a.parquet", tmp_path / "new"
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(pa.table({"x": np.arange(640)}), file, **plain)
    manifest = build_manifest([str(file)], digest=digest).manifest
    pq.write_table(pa.table({"x": np.arange(640) + 7}), new, **plain)
    closed: list[str] = []

    class Opened(reader_module.ParquetReader):
        def __init__(self, path: str, *more: object) -> None:
            if fate == "replaced":
                new.replace(path)
            super().__init__(path, *more)  # type: ignore[arg-type]
            if fate == "removed":
                file.unlink()

        def close(self) -> None:
            closed.append(fate)
            super().close()

    monkeypatch.setattr(reader_module, "ParquetReader", Opened)
    with pytest.raises(
        DataError, match=r"a\.parquet was replaced while it was opened: it had \d+ bytes and is "
    ) as found:
        open_shard(manifest, 0, delivered_columns(manifest, ()))
    assert isinstance(found.value.__cause__, OSError), "it is tried again"
    assert closed == [fate]


def test_a_shard_that_is_renamed_over_before_it_is_opened_a_second_time(tmp_path: Path) -> None:
    """What is read in pieces or weighed is opened once more, by its path; the reader that is open may go on."""
    file, new = tmp_path / "a.parquet", tmp_path / "new"
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False, "row_group_size": 320}
    pq.write_table(pa.table({"x": np.arange(640)}), file, **plain)
    manifest = build_manifest([str(file)], digest="Always").manifest
    reader = open_shard(manifest, 0, delivered_columns(manifest, ()))
    going_on = reader.stream(0, 64)
    first = next(going_on)
    pq.write_table(pa.table({"x": np.arange(640) + 7}), new, **plain)
    assert new.stat().st_size == file.stat().st_size, "the footers are to be the same"
    new.replace(file)
    for read in (lambda: next(reader.stream(1, 64)), lambda: reader.weigh(1, 1 << 30)):
        with pytest.raises(DataError, match=r"was replaced while it was opened: .* is another file of") as found:
            read()
        assert isinstance(found.value.__cause__, OSError), "it is tried again"
    rows = [first, *going_on, reader.read(1)]
    assert np.concatenate([c.columns[0].values for c in rows]).ravel().tolist() == list(range(640))
    reader.close()
