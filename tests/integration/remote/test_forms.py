"""The other ways in: through pyarrow.fs and fsspec, Arrow files, row groups too large to be held. All exact."""

from pathlib import Path

import fsspec
import pytest

from lanefeed_core.manifest import Manifest
from lanefeed_core.stream import StreamSpec
from lanefeed_sidecar.errors import DataError
from lanefeed_sidecar.index import build_manifest
from lanefeed_sidecar.pipeline import Engine, Stats, store
from support.frames_oracle import Reader, Slot, config, drain, write_shards
from support.s3 import S3Server

SPEC = StreamSpec(seed=5, global_batch_size=8, lanes=4, window=32)


def exact(manifest: Manifest) -> dict[str, int]:
    stats = Stats()
    engine = Engine(config(SPEC, epochs=2), manifest, stats=stats)
    try:
        engine.seek(0, 0)
        engine.start()
        assert drain(engine, 0, Slot(engine.slot_bytes), Reader(engine, 1)) == engine.total_steps
    finally:
        engine.close()
    return stats.snapshot().counts


def test_through_pyarrows_file_systems(s3: S3Server, local: Manifest) -> None:
    """The way of gs:// and abfs://; s3a:// goes it too, and has a server here."""
    uri = f"s3a://data/train?endpoint_override=127.0.0.1:{s3.port}&scheme=http&region=us-east-1"
    manifest = build_manifest([uri]).manifest
    assert manifest.digest == local.digest
    assert exact(manifest)["remote_requests"] > 0
    with pytest.raises(DataError, match=r"s3a://nope/x.*(does not exist|cannot be read)"):
        build_manifest([uri.replace("data/train", "nope/x")])


def test_through_fsspec(tmp_path: Path) -> None:
    local = write_shards(tmp_path / "d", [(90, 30), (41, 20)])
    memory = fsspec.filesystem("memory")
    try:
        for path in (tmp_path / "d").iterdir():
            memory.pipe_file(f"/set/{path.name}", path.read_bytes())
        manifest = build_manifest(["memory://set/*.parquet"]).manifest
        assert manifest.digest == local.digest
        assert exact(manifest)["remote_requests"] > 0
    finally:
        memory.rm("/set", recursive=True)


def test_arrow_files(s3: S3Server, tmp_path: Path) -> None:
    local = write_shards(tmp_path / "d", [(90, 30), (41, 20)], kind="arrow")
    s3.put_folder(tmp_path / "d", "arrow", bucket="forms")
    manifest = build_manifest(["s3://forms/arrow"]).manifest
    assert manifest.digest == local.digest
    exact(manifest)


def test_row_groups_that_are_read_in_pieces(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_STREAM_SHARE", 1 << 20)
    exact(build_manifest(["s3://data/train"]).manifest)


def test_a_list_of_two_buckets(s3: S3Server, tmp_path: Path) -> None:
    write_shards(tmp_path / "d", [(250, 50)])
    s3.put_folder(tmp_path / "d", "more", bucket="other")
    manifest = build_manifest(["s3://data/train/001.parquet", "s3://other/more"]).manifest
    assert [s.path for s in manifest.shards] == ["s3://data/train/001.parquet", "s3://other/more/000.parquet"]
    assert manifest.root == ""
