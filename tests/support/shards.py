"""Shards for tests of the sidecar: written from tables, read back as the bytes of each row."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lanefeed_core.layout import Column
from lanefeed_core.manifest import Manifest
from lanefeed_sidecar.formats import Chunk, ChunkColumn, RaggedChunk, delivered_columns, open_shard, whole_lists
from lanefeed_sidecar.index import build_manifest


def write(path: Path, table: pa.Table, kind: str, rows: int = 1 << 20, **options: object) -> Path:
    """Write a table as one shard with row groups of `rows` rows; `kind` is "parquet" or "arrow"."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=rows, **options)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema, **options) as writer:
            writer.write_table(table, max_chunksize=rows)
    return path


def index(folder: Path, digest: str = "Never", **more: object) -> Manifest:
    """The manifest of a folder."""
    return build_manifest([str(folder)], digest=digest, **more).manifest  # type: ignore[arg-type]


def row_bytes(column: Column, chunk: Chunk, index: int) -> list[bytes | None]:
    """Each row of a column as its bytes; None where it is null. Checks that what lies under a null is nothing."""
    part = chunk.columns[index]
    values = part.values
    assert values.flags.c_contiguous
    assert values.dtype == np.dtype(column.dtype)
    valid = np.ones(chunk.rows, np.uint8) if part.validity is None else part.validity
    assert valid.dtype == np.uint8
    assert valid.shape == (chunk.rows,)
    if isinstance(part, RaggedChunk):
        assert column.ragged
        assert part.offsets.dtype == np.int64
        assert part.offsets.shape == (chunk.rows + 1,)
        assert part.offsets[0] == 0
        assert part.offsets[-1] == len(values)
        rows = [values[a:b].tobytes() for a, b in zip(part.offsets[:-1], part.offsets[1:], strict=True)]
    else:
        assert values.shape == (chunk.rows, *column.shape)
        rows = [values[i].tobytes() for i in range(chunk.rows)]
    assert all(v or not any(r) for v, r in zip(valid, rows, strict=True)), "bytes under a null"
    return [r if v else None for v, r in zip(valid, rows, strict=True)]


def read_all(manifest: Manifest, columns: tuple[str, ...] = (), batch: int = 0) -> dict[str, list[bytes | None]]:
    """All rows of all shards, by `read` or (batch > 0) by `stream`."""
    delivered = delivered_columns(manifest, columns)
    found: dict[str, list[bytes | None]] = {c.name: [] for c in delivered}
    for shard in range(len(manifest.shards)):
        reader = open_shard(manifest, shard, delivered)
        try:
            for group, rows in enumerate(manifest.shards[shard].row_groups):
                chunks = list(reader.stream(group, batch)) if batch else [reader.read(group)]
                assert sum(c.rows for c in chunks) == rows
                assert all(c.rows <= batch for c in chunks if batch)
                for chunk in chunks:
                    for at, column in enumerate(delivered):
                        found[column.name] += row_bytes(column, chunk, at)
        finally:
            reader.close()
    return found


def flip(path: Path, offset: int, bit: int) -> None:
    """Turn one bit of a file over, without a change of its size or time."""
    stat = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ (1 << bit)]))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def reads_without_levels(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """From now on: whether each read of a list column was done without levels."""
    seen: list[bool] = []
    real = whole_lists.WholeLists.read

    def read(self: whole_lists.WholeLists, *args: Any) -> ChunkColumn | None:
        found = real(self, *args)
        seen.append(found is not None)
        return found

    monkeypatch.setattr(whole_lists.WholeLists, "read", read)
    return seen
