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
