"""Packed documents of a store: indexed, fetched ahead, streamed; the sequences of the same files on a disk."""

from pathlib import Path

import pytest

from lanefeed_core.packing import BEST_FIT, CONCAT, PackingRequest
from lanefeed_core.stream import StreamSpec
from lanefeed_sidecar.index import build_manifest
from lanefeed_sidecar.pipeline import Engine, Stats, store
from support.frames_oracle import Slot, config, drain
from support.packed_oracle import PackedOracle, truth, write
from support.s3 import S3Server

SPEC = StreamSpec(seed=5, global_batch_size=8, lanes=2, window=16, last_batch="Partial")


@pytest.mark.parametrize(
    ("kind", "mode", "pieces"),
    [("parquet", CONCAT, False), ("parquet", BEST_FIT, False), ("parquet", BEST_FIT, True), ("arrow", CONCAT, False)],
)
def test_sequences_of_a_store(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, mode: str, pieces: bool
) -> None:
    folder = write(tmp_path / "d", kind=kind)
    prefix = f"packed-{kind}-{mode}-{pieces}".lower()
    s3.put_folder(folder, prefix, bucket="packed")
    request = PackingRequest(50, eos_token=7, mode=mode, cross_document_mask=True)
    manifest = build_manifest([f"s3://packed/{prefix}"], packing=request).manifest
    assert manifest.digest == build_manifest([str(folder)], packing=request, digest="Never").manifest.digest
    if pieces:
        monkeypatch.setattr(store, "_STREAM_SHARE", 1 << 20)
    stats = Stats()
    engine = Engine(config(SPEC, epochs=2), manifest, stats=stats)
    try:
        engine.seek(0, 0)
        engine.start()
        reader = PackedOracle(engine, 1, truth=truth(manifest))
        assert drain(engine, 0, Slot(engine.slot_bytes), reader) == engine.total_steps
    finally:
        engine.close()
    assert stats.snapshot().counts["remote_requests"] > 0
