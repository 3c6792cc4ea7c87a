"""Images of a store: fetched encoded, decoded where they are put; whole row groups, and such as are read in pieces."""

from pathlib import Path

import pytest

from lanefeed_core.images import ImageColumn
from lanefeed_core.stream import StreamSpec
from lanefeed_sidecar.index import build_manifest
from lanefeed_sidecar.pipeline import Engine, Stats, store
from support.frames_oracle import config
from support.images import Checker, read, write_images
from support.s3 import S3Server

SPEC = StreamSpec(seed=5, global_batch_size=8, lanes=4, window=16)
IMAGE = ImageColumn(column="image", height=20, width=20)


@pytest.mark.parametrize(("kind", "share"), [("parquet", 0), ("parquet", 1 << 20), ("arrow", 0)])
def test_pixels_of_a_store(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, share: int
) -> None:
    if share:
        monkeypatch.setattr(store, "_STREAM_SHARE", share)
    local = write_images(tmp_path, [(40, 10), (23, 23)], kind)
    s3.put_folder(tmp_path, kind, bucket="pictures")
    manifest = build_manifest([f"s3://pictures/{kind}"]).manifest
    assert manifest.digest == local.digest
    engine = Engine(config(SPEC, epochs=2, images=(IMAGE,), columns=("image",)), manifest, stats=Stats())
    engine.start()
    try:
        assert read(engine, Checker(engine, 1, IMAGE), 0) == engine.total_steps
    finally:
        engine.close()
