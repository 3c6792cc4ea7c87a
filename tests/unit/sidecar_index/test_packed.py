"""Indexing documents: sequences are counted exactly, from footers where these can be trusted, else by reading."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lanefeed_core.packing import BEST_FIT, CONCAT, MODES, Packing, PackingRequest
from lanefeed_sidecar.errors import ConfigError, DataError
from lanefeed_sidecar.index import build_manifest, cli
from lanefeed_sidecar.index import packed as index_packed
from support.token_files import Lists, expected, lists, write_documents

GROUP = 16


def made_of(folder: Path, seed: int, kind: str = "parquet", *, empty: bool = True) -> dict[str, Lists]:
    """Three files of documents."""
    files = {f"{n}.{kind}": lists(seed + n, rows, empty=empty) for n, rows in enumerate((50, 16, 33))}
    for name, documents in files.items():
        write_documents(folder / name, documents, group=GROUP, kind=kind)
    return files


def nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a column was read")

    monkeypatch.setattr(index_packed, "open_shard", refuse)


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("eos", [None, 7])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_sequences_are_counted_exactly(tmp_path: Path, kind: str, mode: str, eos: int | None, empty: bool) -> None:
    files = made_of(tmp_path, 1, kind, empty=empty)
    result = build_manifest([str(tmp_path)], packing=PackingRequest(20, "", eos, mode, True))
    packing = Packing("tokens", "int32", 20, eos, mode, True)
    manifest = result.manifest
    assert manifest.packing == packing
    made = expected(manifest, files, GROUP, packing)
    assert [n for s in manifest.shards for n in s.row_groups] == [one.count for one in made]
    assert [s.documents for s in manifest.shards] == [(16, 16, 16, 2), (16,), (16, 16, 1)]
    assert result.tokens == sum(int(one.lengths.sum()) for one in made)
    assert manifest.row_bytes == packing.sequence_bytes


def test_concat_of_full_documents_is_counted_from_footers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = made_of(tmp_path, 2, empty=False)
    nothing_is_read(monkeypatch)
    for eos in (None, 3):
        manifest = build_manifest([str(tmp_path)], packing=PackingRequest(20, eos_token=eos)).manifest
        made = expected(manifest, files, GROUP, Packing("tokens", "int32", 20, eos))
        assert [n for s in manifest.shards for n in s.row_groups] == [one.count for one in made]


@pytest.mark.parametrize("why", ["empty documents", "no statistics", "best fit", "null tokens"])
def test_what_a_footer_cannot_say_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    documents: Lists = [[1, 2], [3], [] if why == "empty documents" else [4]]
    if why == "null tokens":
        documents[0] = [1, None]  # type: ignore[list-item]
    write_documents(tmp_path / "a.parquet", documents, write_statistics=why != "no statistics")
    nothing_is_read(monkeypatch)
    mode = BEST_FIT if why == "best fit" else CONCAT
    with pytest.raises(AssertionError, match="a column was read"):
        build_manifest([str(tmp_path)], packing=PackingRequest(2, mode=mode))


def test_other_writers_footers_are_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others count no empty list as a null: 3 levels would be taken for 3 tokens."""
    path = write_documents(tmp_path / "a.parquet", [[1, 2], [3]])
    raw = path.read_bytes()
    assert raw.count(b"parquet-cpp-arrow") == 1
    path.write_bytes(raw.replace(b"parquet-cpp-arrow", b"parquet-mr arrow!"))
    nothing_is_read(monkeypatch)
    with pytest.raises(AssertionError, match="a column was read"):
        build_manifest([str(tmp_path)], packing=PackingRequest(2))


def test_huge_row_groups_are_counted_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = made_of(tmp_path, 3)
    whole = build_manifest([str(tmp_path)], packing=PackingRequest(20, mode=BEST_FIT)).manifest
    monkeypatch.setattr(index_packed, "_PIECE_BYTES", 200)
    pieces = build_manifest([str(tmp_path)], packing=PackingRequest(20, mode=BEST_FIT)).manifest
    assert pieces == whole
    assert sum(sum(s.documents) for s in pieces.shards) == sum(map(len, files.values()))


def test_lists_of_one_length_are_documents_too(tmp_path: Path) -> None:
    values = pa.array(np.arange(60, dtype=np.int64))
    pq.write_table(pa.table({"t": pa.FixedSizeListArray.from_arrays(values, 6)}), tmp_path / "a.parquet")
    manifest = build_manifest([str(tmp_path)], packing=PackingRequest(4)).manifest
    assert (manifest.rows, manifest.packing) == (15, Packing("t", "int64", 4))


def test_a_shard_without_tokens_is_left_out(tmp_path: Path) -> None:
    write_documents(tmp_path / "a.parquet", [[], None, []])
    write_documents(tmp_path / "b.parquet", [[1, 2, 3]])
    result = build_manifest([str(tmp_path)], packing=PackingRequest(2))
    assert [s.path for s in result.manifest.shards] == ["b.parquet"]
    assert any("its documents have no tokens" in reason for _, reason in result.skipped)
    (tmp_path / "b.parquet").unlink()
    with pytest.raises(DataError, match=r"no row that can be read .*its documents have no tokens"):
        build_manifest([str(tmp_path)], packing=PackingRequest(2))


def test_null_tokens_are_an_error_that_names_the_row_group(tmp_path: Path) -> None:
    write_documents(tmp_path / "a.parquet", [[1, 2], [3], [4, None]], group=2)  # type: ignore[list-item]
    with pytest.raises(DataError, match=r"a\.parquet, row group 1 cannot be decoded: .*null elements.*fill them"):
        build_manifest([str(tmp_path)], packing=PackingRequest(2))
    write_documents(tmp_path / "b.parquet", [[1, 2]])
    manifest = build_manifest([str(tmp_path)], packing=PackingRequest(2), on_corrupt="Quarantine").manifest
    assert [s.path for s in manifest.shards] == ["b.parquet"]
    assert manifest.quarantined[0][0] == "a.parquet"


TWO = {"a": pa.array([[1]], pa.list_(pa.int32())), "b": pa.array([[2]], pa.list_(pa.int64())), "x": [1.5]}


@pytest.mark.parametrize(
    ("columns", "request_", "said"),
    [
        (TWO, PackingRequest(4), "one column of lists of whole numbers, and it has a, b: name one in packed.column"),
        ({"x": [1.5]}, PackingRequest(4), "and it has none"),
        (TWO, PackingRequest(4, "c"), "packed.column is 'c', which the dataset does not have: it has a, b, x"),
        (TWO, PackingRequest(4, "x"), "packed.column 'x' is double: only lists of whole numbers can be packed"),
        (TWO, PackingRequest(4, "a", 1 << 40), "eosToken is 1099511627776, and column 'a' holds int32"),
    ],
)
def test_requests_that_a_dataset_cannot_meet(
    tmp_path: Path, columns: dict[str, Any], request_: PackingRequest, said: str
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=said):
        build_manifest([str(tmp_path)], packing=request_)


def test_other_columns_cannot_be_delivered(tmp_path: Path) -> None:
    pq.write_table(pa.table(TWO), tmp_path / "a.parquet")
    assert build_manifest([str(tmp_path)], columns=("a",), packing=PackingRequest(4, "a")).manifest.rows == 1
    with pytest.raises(ConfigError, match=r"names x, which cannot be delivered with batching.layout Packed"):
        build_manifest([str(tmp_path)], columns=("a", "x"), packing=PackingRequest(4, "a"))


def test_the_command_says_how_much_is_padding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_documents(tmp_path / "a.parquet", [[1, 2, 3], [4, 5, 6]])
    options = PackingRequest(4, "tokens", 0, BEST_FIT, True).options()
    assert cli.main([str(tmp_path), "--json", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["packing"] == {
        **Packing("tokens", "int32", 4, 0, BEST_FIT, True).to_dict(),
        "documents": 2,
        "tokens": 8,
        "padding": 0.0,
    }
    assert "list-column" not in [one["code"] for one in found["lint"]]
    assert cli.main([str(tmp_path), "--sequence-length", "4"]) == 0
    assert "2 documents, 6 tokens packed as Concat, 25.00% of all places are padding" in capsys.readouterr().out
    assert cli.main([str(tmp_path), "--eos-token=0"]) == 2
    assert "without --sequence-length" in capsys.readouterr().err
    assert cli.main([str(tmp_path), "--sequence-length", "0"]) == 2
    assert "sequenceLength is 0" in capsys.readouterr().err
