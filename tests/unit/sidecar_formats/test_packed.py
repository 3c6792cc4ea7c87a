"""Readers of packed datasets: what they give is what packing a row group's documents gives, whole or in pieces."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lanefeed_core.layout import Column
from lanefeed_core.manifest import Manifest
from lanefeed_core.pack import Packed
from lanefeed_core.packing import BEST_FIT, CONCAT, MODES, PackingRequest
from lanefeed_sidecar.errors import DataError
from lanefeed_sidecar.formats import Chunk, FixedChunk, delivered_columns, open_shard
from lanefeed_sidecar.index import build_manifest
from support.token_files import Lists, expected, lists, write_documents

GROUP = 16


def pair(folder: Path, packing: PackingRequest, kind: str = "parquet", seed: int = 1) -> tuple[Manifest, list[Packed]]:
    """Two files, and what their row groups must give."""
    files: dict[str, Lists] = {f"{n}.{kind}": lists(seed + n, rows) for n, rows in enumerate((50, 33))}
    for name, documents in files.items():
        write_documents(folder / name, documents, group=GROUP, kind=kind)
    manifest = build_manifest([str(folder)], packing=packing).manifest
    assert manifest.packing is not None
    return manifest, expected(manifest, files, GROUP, manifest.packing)


def same(chunks: list[Chunk], wanted: Packed, columns: tuple[Column, ...]) -> None:
    parts = (wanted.tokens, wanted.lengths, wanted.documents, wanted.positions)
    for number, (column, want) in enumerate(zip(columns, parts, strict=False)):
        found = []
        for chunk in chunks:
            part = chunk.columns[number]
            assert isinstance(part, FixedChunk)
            assert part.values.flags.c_contiguous
            assert part.values.shape == (chunk.rows, *column.shape)
            found.append(part.values)
        joined = np.concatenate(found)
        assert want is not None
        assert joined.dtype == np.dtype(column.dtype)
        assert joined.tolist() == want.tolist(), column.name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("mask", [False, True])
def test_row_groups_whole_and_in_pieces(tmp_path: Path, kind: str, mode: str, mask: bool) -> None:
    manifest, wanted = pair(tmp_path, PackingRequest(20, eos_token=9, mode=mode, cross_document_mask=mask), kind)
    columns = delivered_columns(manifest, ())
    assert len(columns) == (4 if mask else 2)
    at = 0
    for shard, about in enumerate(manifest.shards):
        reader = open_shard(manifest, shard, columns)
        for group in range(len(about.row_groups)):
            reader.weigh(group, 1 << 30)
            same([reader.read(group)], wanted[at], columns)
            for rows in (1, 3, 1000):
                chunks = list(reader.stream(group, rows))
                assert max((chunk.rows for chunk in chunks), default=0) <= rows
                same(chunks or [reader.read(group)], wanted[at], columns)
            at += 1
        reader.close()
    assert at == len(wanted)


def test_a_fixed_list_is_packed_without_its_null_rows(tmp_path: Path) -> None:
    rows = pa.array([[1, 2, 3], None, [4, 5, 6], [7, 8, 9]], pa.list_(pa.int16(), 3))
    pq.write_table(pa.table({"t": rows}), tmp_path / "a.parquet")
    manifest = build_manifest([str(tmp_path)], packing=PackingRequest(4, cross_document_mask=True)).manifest
    reader = open_shard(manifest, 0, delivered_columns(manifest, ()))
    tokens, lengths, documents, positions = (c.values.tolist() for c in reader.read(0).columns)
    reader.close()
    assert tokens == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 0, 0, 0]]
    assert lengths == [4, 4, 1]
    assert documents == [[0, 0, 0, 2], [2, 2, 3, 3], [3, -1, -1, -1]]
    assert positions == [[0, 1, 2, 0], [1, 2, 0, 1], [2, 0, 1, 2]]


@pytest.mark.parametrize("mode", [CONCAT, BEST_FIT])
@pytest.mark.parametrize("off", [-1, 1])
def test_a_row_group_with_other_documents_than_were_counted(tmp_path: Path, mode: str, off: int) -> None:
    """A footer that lied, or a manifest that does: an error before a wrong sequence is delivered."""
    manifest, _ = pair(tmp_path, PackingRequest(20, mode=mode))
    shard = manifest.shards[0]
    groups = (shard.row_groups[0] + off, *shard.row_groups[1:])
    wrong = replace(manifest, shards=(replace(shard, row_groups=groups), *manifest.shards[1:]))
    reader = open_shard(wrong, 0, delivered_columns(wrong, ()))
    said = rf"0\.parquet, row group 0 has documents for .* and the manifest says {groups[0]}; .*make a new manifest"
    with pytest.raises(DataError, match=said):
        reader.read(0)
    with pytest.raises(DataError, match="row group 0 has documents for"):
        list(reader.stream(0, 2))
    reader.close()


def test_other_documents_in_number(tmp_path: Path) -> None:
    manifest, _ = pair(tmp_path, PackingRequest(20))
    shard = manifest.shards[0]
    wrong = replace(manifest, shards=(replace(shard, documents=(17, 15, 16, 2)), *manifest.shards[1:]))
    reader = open_shard(wrong, 0, delivered_columns(wrong, ()))
    with pytest.raises(DataError, match="row group 0 cannot be decoded"):
        reader.read(0)
    reader.close()


def test_tooth_a_reader_that_swaps_two_tokens_is_caught(tmp_path: Path) -> None:
    manifest, wanted = pair(tmp_path, PackingRequest(20))
    columns = delivered_columns(manifest, ())
    reader = open_shard(manifest, 0, columns)
    chunk = reader.read(0)
    same([chunk], wanted[0], columns)
    values = chunk.columns[0].values.copy()
    values[0, [3, 4]] = values[0, [4, 3]]
    chunk.columns[0].values = values
    with pytest.raises(AssertionError, match="tokens"):
        same([chunk], wanted[0], columns)
    reader.close()
