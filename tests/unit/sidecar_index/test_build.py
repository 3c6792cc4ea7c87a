"""The indexer: what a manifest holds, whatever the order and the threads, and what users are told of bad files."""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lanefeed_core import manifest_codec
from lanefeed_sidecar.errors import DataError
from lanefeed_sidecar.formats import identity
from lanefeed_sidecar.index import build, build_manifest, cli, lint
from support.shards import flip, index, read_all, write

FORMATS = ["parquet", "arrow"]


def refused(folder: Path, **more: object) -> str:
    with pytest.raises(DataError) as error:
        index(folder, **more)
    return str(error.value)


@pytest.mark.parametrize("kind", FORMATS)
def test_manifest(tmp_path: Path, kind: str) -> None:
    for at, rows in enumerate((7, 3, 12)):
        write(
            tmp_path / "sub" / f"{at}.{kind}",
            pa.table({"x": np.arange(rows), "n": [None] * (rows - 1) + ["a"]}),
            kind,
            5,
        )
    result = build_manifest(["sub"], base=str(tmp_path), digest="Always", threads=3)
    manifest = result.manifest
    assert [(s.path, s.row_groups) for s in manifest.shards] == [
        (f"0.{kind}", (5, 2)),
        (f"1.{kind}", (3,)),
        (f"2.{kind}", (5, 5, 2)),
    ]
    assert (manifest.format, manifest.root) == (kind, str(tmp_path / "sub"))
    assert [(f.name, f.type, f.nullable) for f in manifest.fields] == [("x", "int64", False), ("n", "string", True)]
    for shard in manifest.shards:
        path = tmp_path / "sub" / shard.path
        assert shard.size == path.stat().st_size
        assert shard.etag == str(path.stat().st_mtime_ns)
        assert shard.content == identity.content_digest(str(path))
        assert len(shard.fingerprint) == 32
        assert len(shard.row_group_bytes) == len(shard.row_groups)
        assert all(size >= 8 * rows for size, rows in zip(shard.row_group_bytes, shard.row_groups, strict=True))
    again = build_manifest(
        [str(tmp_path / "sub" / f"{n}.{kind}") for n in (2, 0, 1)], digest="Always", threads=1
    ).manifest
    assert manifest_codec.encode(again) == manifest_codec.encode(manifest)


def test_the_digest_is_of_the_data_and_not_of_place_or_time(tmp_path: Path) -> None:
    write(tmp_path / "a" / "x.parquet", pa.table({"x": [1, 2]}), "parquet")
    before = index(tmp_path / "a", digest="Always")
    os.rename(tmp_path / "a", tmp_path / "b")
    os.utime(tmp_path / "b" / "x.parquet", ns=(1, 1))
    after = index(tmp_path / "b", digest="Never")
    assert after.digest == before.digest
    write(tmp_path / "b" / "x.parquet", pa.table({"x": [1, 3]}), "parquet")
    assert index(tmp_path / "b").digest != before.digest


def test_auto_digest_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.parquet", pa.table({"x": [1, 2]}), "parquet")
    assert index(tmp_path, digest="Auto").shards[0].content == identity.content_digest(str(path))
    monkeypatch.setattr(build, "AUTO_DIGEST_BYTES", path.stat().st_size - 1)
    assert index(tmp_path, digest="Auto").shards[0].content == ""


def test_nullable_is_what_shards_hold(tmp_path: Path) -> None:
    """By statistics; without them unknown is true, unless the schema itself forbids nulls."""
    no_nulls = pa.field("q", pa.int64(), nullable=False)
    table = pa.table([pa.array([1, 2]), pa.array([1, 2])], pa.schema([("p", pa.int64()), no_nulls]))
    write(tmp_path / "a.parquet", table, "parquet")
    assert [f.nullable for f in index(tmp_path).fields] == [False, False]
    write(tmp_path / "b.parquet", table, "parquet", write_statistics=False)
    assert [f.nullable for f in index(tmp_path).fields] == [True, False]


@pytest.mark.parametrize("kind", ["list", "struct"])
def test_nullable_nested(tmp_path: Path, kind: str) -> None:
    """Fixed-size lists (nested too) and structs beside other columns: each finds its own statistics."""
    square = pa.list_(pa.list_(pa.int8(), 2), 2)
    struct = pa.struct([("a", pa.int8()), ("b", pa.list_(pa.int8(), 1)), ("c", pa.string())])
    of, value = (square, [[1, 2], [3, 4]]) if kind == "list" else (struct, {"a": 1, "b": [2], "c": None})
    write(tmp_path / "a.parquet", pa.table({"m": pa.array([value] * 2, of), "z": pa.array([1, None])}), "parquet")
    fields = {f.name: f.nullable for f in index(tmp_path).fields}
    want = {"m": False, "z": True} if kind == "list" else {"m.a": False, "m.b": False, "m.c": True, "z": True}
    assert fields == want


def test_nullable_behind_a_column_of_several_leaves(tmp_path: Path) -> None:
    """A map takes two Parquet columns, a struct in a struct as many as it has fields."""
    deep = pa.array([{"a": {"b": 1, "c": None}}] * 2)
    pairs = pa.array([[("k", None)]] * 2, pa.map_(pa.string(), pa.int8()))
    table = pa.table({"m": pairs, "d": deep, "yes": [None, 1], "no": [1, 2]})
    write(tmp_path / "a.parquet", table, "parquet")
    fields = {f.name: f.nullable for f in index(tmp_path, columns=("no", "yes")).fields}
    assert (fields["no"], fields["yes"]) == (False, True)


@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_files_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    write(tmp_path / f"a.{kind}", pa.table({"x": [1, 2]}), kind)
    bad = write(tmp_path / f"b.{kind}", pa.table({"x": np.arange(100)}), kind)
    whole = bad.read_bytes()
    half = len(whole) // 2
    wrong_length = (
        whole[:-10] + b"\xff\xff\xff\x7f" + whole[-6:] if kind == "arrow" else whole[:-8] + b"\xff\xff\xff\x7fPAR1"
    )
    for content, why in (
        (whole[:half], f"it does not end like a {kind} file (truncated, or not {kind})"),
        (b"something else", "it is neither Parquet nor an Arrow file by its first bytes"),
        (whole[:6], "it has only 6 bytes"),
        (wrong_length, f"its footer says {0x7FFFFFFF} bytes and the file has {len(whole)} (truncated or corrupt)"),
    ):
        bad.write_bytes(content)
        assert refused(tmp_path) == (
            f"{bad} ({len(content)} bytes) cannot be read: {why}; remove or rewrite it, or set data.onCorrupt to Quarantine"  # noqa: E501
        )
    start = len(whole) - int.from_bytes(whole[-8:-4], "little") - 8 if kind == "parquet" else 8
    bad.write_bytes(whole[:start] + b"\xee" * 12 + whole[start + 12 :])
    if kind == "parquet":
        assert f"{bad} ({len(whole)} bytes) cannot be read: " in refused(tmp_path)


def test_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet", pa.table({"x": [1, 2]}), "parquet")

    def denied(_: str) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    # Tests run as root, whom no mode keeps out.
    monkeypatch.setattr("lanefeed_sidecar.index.scan.sniff", denied)
    assert f"{path} ({path.stat().st_size} bytes) cannot be read: Permission denied; " in refused(tmp_path)


def test_quarantine(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pa.table({"x": [1, 2]}), "parquet")
    write(tmp_path / "c.parquet", pa.table({"x": [3]}), "parquet")
    clean = index(tmp_path)
    for name in ("b", "d"):
        (tmp_path / f"{name}.parquet").write_bytes(b"PAR1 and then nothing good")
    assert refused(tmp_path).endswith("Quarantine (and 1 more files)")
    manifest = index(tmp_path, on_corrupt="Quarantine")
    assert [p for p, _ in manifest.quarantined] == ["b.parquet", "d.parquet"]
    assert "does not end like a parquet file" in manifest.quarantined[0][1]
    assert manifest.shards == clean.shards
    assert [f.code for f in lint(manifest) if f.code == "quarantined"] == ["quarantined"]


def test_nothing_left(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pa.table({"x": pa.array([], pa.int8())}), "parquet")
    (tmp_path / "b.parquet").write_bytes(b"no")
    text = refused(tmp_path, on_corrupt="Quarantine")
    assert f"data.uri {tmp_path} has no row that can be read ({tmp_path}/a.parquet: it has no rows; " in text
    assert f"{tmp_path}/b.parquet (2 bytes) cannot be read" in text


def test_zero_row_files_are_dropped_and_listed(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pa.table({"x": pa.array([], pa.int8())}), "parquet")
    write(tmp_path / "b.parquet", pa.table({"x": [1]}), "parquet")
    result = build_manifest([str(tmp_path)])
    assert [s.path for s in result.manifest.shards] == ["b.parquet"]
    assert result.skipped == ((str(tmp_path / "a.parquet"), "it has no rows"),)


@pytest.mark.parametrize("kind", FORMATS)
def test_two_schemas(tmp_path: Path, kind: str) -> None:
    a = write(tmp_path / f"a.{kind}", pa.table({"x": [1], "y": ["a"]}), kind)
    b = write(tmp_path / f"b.{kind}", pa.table({"x": [1.5], "y": ["a"]}), kind)
    way_out = "as separate datasets"
    assert refused(tmp_path) == (
        f"two schemas in one dataset: column 'x' is int64 in {a} and double in {b}; "
        f"write the shards with one type, or index them {way_out}"
    )
    write(b, pa.table({"x": [1], "z": ["a"]}), kind)
    assert refused(tmp_path) == (
        f"two schemas in one dataset: compared with {a}, {b} lacks 'y' and also has 'z'; "
        f"write the shards alike, or index them {way_out}"
    )
    write(b, pa.table({"y": ["a"], "x": [1]}), kind)
    assert read_all(index(tmp_path))["y"] == [b"a", b"a"]


def test_two_formats(tmp_path: Path) -> None:
    a = write(tmp_path / "a.parquet", pa.table({"x": [1]}), "parquet")
    b = write(tmp_path / "b.arrow", pa.table({"x": [1]}), "arrow")
    assert refused(tmp_path) == (
        f"two formats in one dataset: {a} is parquet and {b} is arrow; index them as separate datasets"
    )


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", pa.table([pa.array([1]), pa.array([2])], names=["x", "x"]), "arrow")
    assert f"{path} " in refused(tmp_path)
    assert "it has two columns of the name 'x': rename one" in refused(tmp_path)


def test_lint(tmp_path: Path) -> None:
    table = pa.table({"t": [[1, 2]] * 40, "d": pa.array([None] * 40, pa.decimal128(5, 1))})
    write(tmp_path / "a.parquet", table, "parquet", 2)
    for at in range(4):
        write(tmp_path / f"b{at}.parquet", table.slice(0, 1), "parquet")
    result = build_manifest([str(tmp_path)], columns=("t",), digest="Never")
    found = {f.code: f for f in lint(result.manifest, without_checksums=result.without_checksums)}
    assert found.keys() == {
        "tiny-row-groups", "few-row-groups", "skewed-shards", "no-page-checksums", "list-column", "unsupported-column",
    }  # fmt: skip
    assert all(f.remedy for f in found.values())
    assert "column d (decimal128(5, 1)): type decimal128(5, 1) is not supported" in found["unsupported-column"].what


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_page_checksums_are_recognized(tmp_path: Path, compression: str, dictionary: bool) -> None:
    options = {"compression": compression, "use_dictionary": dictionary}
    table = pa.table({"x": np.arange(100_000) % 7})
    write(tmp_path / "a" / "a.parquet", table, "parquet", write_page_checksum=True, **options)
    write(tmp_path / "b" / "b.parquet", table, "parquet", **options)
    assert build_manifest([str(tmp_path / "a")], digest="Never").without_checksums == 0
    assert build_manifest([str(tmp_path / "b")], digest="Never").without_checksums == 1


def test_a_flipped_footer_is_another_dataset(tmp_path: Path) -> None:
    """A footer that still parses changes the digest, so a job does not resume on it."""
    path = write(tmp_path / "a.parquet", pa.table({"x": np.arange(9)}), "parquet")
    before = index(tmp_path).digest
    length = int.from_bytes(path.read_bytes()[-8:-4], "little")
    for back in range(9, length + 8, 5):
        flip(path, path.stat().st_size - back, 1)
        try:
            assert index(tmp_path).digest != before
        except DataError:
            pass
        flip(path, path.stat().st_size - back, 1)
    assert index(tmp_path).digest == before


def test_threads_by_waiting() -> None:
    assert [build.threads_for(waited, 1.0) for waited in (0.0, 0.9, 1.1, 6.0, 500.0)] == [1, 1, 2, 7, 16]


def test_many_files_and_progress(tmp_path: Path) -> None:
    """More files than one batch; the progress ends with all of them."""
    first = write(tmp_path / "000.parquet", pa.table({"x": [1, 2]}), "parquet")
    for at in range(1, 150):
        (tmp_path / f"{at:03}.parquet").write_bytes(first.read_bytes() if at != 77 else b"bad")
    for threads in (0, 1, 5):
        seen: list[tuple[int, int]] = []
        manifest = index(
            tmp_path,
            on_corrupt="Quarantine",
            threads=threads,
            progress=lambda done, of, seen=seen: seen.append((done, of)),
        )
        assert [s.path for s in manifest.shards] == [f"{at:03}.parquet" for at in range(150) if at != 77]
        assert [path for path, _ in manifest.quarantined] == ["077.parquet"]
        assert seen == sorted(seen)
        assert seen[-1] == (150, 150)


# ---- the command -----------------------------------------------------------------------------------------------


def test_command_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "d" / "a.parquet", pa.table({"x": [1, 2, 3], "s": ["a", None, "c"]}), "parquet", 2)
    (tmp_path / "d" / "b.parquet").write_bytes(b"bad")
    out = tmp_path / "m.lfm"
    arguments = [
        "d",
        "--base",
        str(tmp_path),
        "--out",
        str(out),
        "--json",
        "--on-corrupt",
        "Quarantine",
        "--digest",
        "Always",
    ]
    assert cli.main(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    manifest = manifest_codec.decode(out.read_bytes())
    assert document["digest"] == manifest.digest
    assert (document["rows"], document["shards"], document["row_groups"]) == (3, 1, 2)
    assert document["bytes"] == (tmp_path / "d" / "a.parquet").stat().st_size
    assert document["columns"] == [
        {"name": "x", "type": "int64", "nullable": False},
        {"name": "s", "type": "string", "nullable": True},
    ]
    assert [q["path"] for q in document["quarantined"]] == ["b.parquet"]
    assert {"code", "what", "remedy"} == document["lint"][0].keys()
    assert [p.name for p in tmp_path.iterdir() if "tmp" in p.name] == []


def test_command_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a.parquet", pa.table({"x": [1, 2, 3]}), "parquet")
    write(tmp_path / "e.parquet", pa.table({"x": pa.array([], pa.int64())}), "parquet")
    assert cli.main([str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "3 samples in 1 shards, 1 row groups" in text
    assert "  x: int64\n" in text
    assert "few-row-groups: the dataset has 1 row groups; " in text
    assert f"left out: {tmp_path}/e.parquet: it has no rows" in text


@pytest.mark.parametrize(
    ("arguments", "last"),
    [
        (["nothing/*.parquet"], "DataError: data.uri nothing/*.parquet matches no file (current folder {0}; the nearest folder that exists is {0}): check the pattern"),  # noqa: E501
        (["d", "--columns", "lable"], "ConfigError: data.columns names 'lable', which the dataset does not have: did you mean 'label'? It has label"),  # noqa: E501
        (["d", "--out", "no/such/m"], "ConfigError: --out no/such/m cannot be written: No such file or directory; make room there, or name another folder"),  # noqa: E501
    ],
)  # fmt: skip
def test_command_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], last: str) -> None:
    write(tmp_path / "d" / "a.parquet", pa.table({"label": [1]}), "parquet")
    assert cli.main([*arguments, "--base", str(tmp_path)]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == last.format(tmp_path)


def test_statistics_of_other_writers_lists_are_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether null_count counts null lists differs between writers; validity is delivered rather than an error."""
    path = write(tmp_path / "a.parquet", pa.table({"t": [[1], [2]], "x": [1, 2]}), "parquet")
    assert [f.nullable for f in index(tmp_path).fields] == [False, False]
    raw = path.read_bytes()
    assert raw.count(b"parquet-cpp-arrow") == 1
    path.write_bytes(raw.replace(b"parquet-cpp-arrow", b"parquet-xyz-wrong"))
    assert pq.ParquetFile(path).metadata.created_by.startswith("parquet-xyz-wrong")
    assert [f.nullable for f in index(tmp_path).fields] == [True, False]
    assert read_all(index(tmp_path))["t"] == [(1).to_bytes(8, "little"), (2).to_bytes(8, "little")]
