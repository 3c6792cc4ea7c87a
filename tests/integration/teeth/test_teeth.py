"""Planted faults that the end-to-end oracle must catch: real Parquet, the real engine, every rank of a world.

Each test runs clean first, then with the fault. The oracle compares whole global batches with `Lanes.batch`.
"""

import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from lanefeed_core import expected, ledger, slices
from lanefeed_core.cursor import Cursor
from lanefeed_core.errors import LedgerMismatch, ManifestError
from lanefeed_core.lanes import Lanes
from lanefeed_core.manifest import Manifest
from lanefeed_core.plan import Plan
from lanefeed_core.podconfig import PodConfig
from lanefeed_core.stream import StreamSpec
from lanefeed_sidecar.index import build, build_manifest
from lanefeed_sidecar.pipeline import Engine, Stats
from lanefeed_sidecar.sources import Found
from support.shards import write
from support.worlds import make_rows

SPEC = StreamSpec(seed=4, global_batch_size=12, lanes=4, window=32, last_batch="Partial")
WORLD = 3


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return build_manifest([str(make_rows(tmp_path / "d", [70, 41, 90]))]).manifest


def epoch(manifest: Manifest) -> tuple[list[list[int]], ledger.Ledger, Lanes]:
    """Global batches of an epoch as a pod with three ranks delivers them, with the sums that travel with frames."""
    plan = Plan(1, 1, WORLD, Cursor())
    config = PodConfig(
        job="j",
        job_uid="u",
        pod_index=0,
        pod_uid="p",
        plan=plan,
        spec=SPEC,
        manifest_path="",
        run_dir="",
        decode_threads=1,
    )
    engine = Engine(config, manifest, stats=Stats())
    batches: list[list[int]] = [[] for _ in range(engine.total_steps)]
    book = ledger.Ledger()
    end = time.monotonic() + 100
    engine.start()
    try:
        for rank in engine.ranks:
            step, slot = 0, np.zeros(engine.slot_bytes, np.uint8)
            engine.seek(rank, 0)
            while meta := engine.fill(rank, step, slot, cancelled=lambda: time.monotonic() > end):
                raw = slot[meta.ids_offset : meta.ids_offset + 8 * meta.steps * meta.rows]
                for k, ids in enumerate(raw.view(np.int64).reshape(meta.steps, meta.rows).tolist()):
                    batches[step + k] += ids
                    book.add(0, meta.samples, meta.sums[k])
                step += meta.steps
    finally:
        engine.close()
    return batches, book, engine.lanes


def want(lanes: Lanes) -> list[list[int]]:
    return [lanes.batch(0, step)[0].tolist() for step in range(lanes.steps_per_epoch)]


def test_an_off_by_one_in_a_rank_slice_is_caught(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 begins one row late: the list differs, and the ledger says that samples were never used."""
    batches, book, lanes = epoch(manifest)
    assert batches == want(lanes)
    book.check(0, expected.epoch_entry(lanes, 0))
    right = slices.rank_slice

    def wrong(rows: int, world: int, rank: int) -> tuple[int, int]:
        low, high = right(rows, world, rank)
        return (low + 1, high) if rank == 1 and high - low > 1 else (low, high)

    monkeypatch.setattr(slices, "rank_slice", wrong)
    monkeypatch.setattr("lanefeed_sidecar.pipeline.engine.rank_slice", wrong)
    batches, book, _ = epoch(manifest)
    assert batches != want(lanes)
    with pytest.raises(LedgerMismatch, match="never used"):
        book.check(0, expected.epoch_entry(lanes, 0))


def test_a_frame_whose_sums_are_not_added_is_caught(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that forgets one addition does not come out right, though the order does."""
    added: list[int] = []
    right = ledger.Ledger.add

    def forgetful(self: ledger.Ledger, at: int, count: int, total: int) -> None:
        added.append(count)
        if len(added) != 5:
            right(self, at, count, total)

    monkeypatch.setattr(ledger.Ledger, "add", forgetful)
    batches, book, lanes = epoch(manifest)
    monkeypatch.undo()
    assert batches == want(lanes)
    with pytest.raises(LedgerMismatch, match="never used"):
        book.check(0, expected.epoch_entry(lanes, 0))


def test_an_unsorted_listing_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing in another order cannot change the manifest; an indexer that does not sort cannot make one."""
    folder = make_rows(tmp_path / "d", [10, 20, 30])
    right = build.list_shards
    first = build_manifest([str(folder)]).manifest

    def backwards(uris: list[str], *, base: str | None = None, stores: object = None) -> Found:
        found = right(uris, base=base)
        return Found(found.root, tuple(reversed(found.paths)), found.skipped)

    monkeypatch.setattr(build, "list_shards", backwards)
    assert build_manifest([str(folder)]).manifest.digest == first.digest
    with pytest.raises(ManifestError, match="out of order"):
        Manifest(tuple(reversed(first.shards)), first.fields)


def test_rows_of_a_shard_with_other_content_are_caught(tmp_path: Path) -> None:
    """A shard that was replaced by one of the same size and shape: its footer differs, and no batch holds its rows."""
    folder = make_rows(tmp_path / "d", [64, 64])
    manifest = build_manifest([str(folder)]).manifest
    table = pq.read_table(folder / "0001.parquet")
    write(folder / "0001.parquet", table.take(np.arange(63, -1, -1)), "parquet", rows=50)
    with pytest.raises(Exception, match=r"0001\.parquet.* (replaced|corrupt)"):
        epoch(manifest)
