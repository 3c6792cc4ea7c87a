"""The engine around the exact part: seeks in the middle of frames, bad shards, budgets, sizes, ends."""

import dataclasses
import re
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lanefeed_core.manifest import Manifest
from lanefeed_core.stream import StreamSpec
from lanefeed_sidecar import formats
from lanefeed_sidecar.errors import BatchTooLarge, ConfigError, DataError
from lanefeed_sidecar.index import build_manifest
from lanefeed_sidecar.pipeline import Engine, Stats
from support.frames_oracle import Reader, Slot, config, drain, until, until_error, write_shards

SPEC = StreamSpec(seed=1, global_batch_size=8, lanes=2, window=16)


class Gate:
    """Wraps real readers: every read waits for the gate, and fails as often as told."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.failures = 0
        self.reads: list[tuple[int, int]] = []

    def open_shard(self, manifest: Manifest, shard: int, columns: tuple) -> "GatedReader":  # type: ignore[type-arg]
        return GatedReader(self, shard, formats.open_shard(manifest, shard, columns))


class GatedReader:
    def __init__(self, gate: Gate, shard: int, real: formats.ShardReader) -> None:
        self._gate, self._shard, self._real = gate, shard, real

    def read(self, row_group: int) -> formats.Chunk:
        assert self._gate.open.wait(60)
        self._gate.reads.append((self._shard, row_group))
        if self._gate.failures:
            self._gate.failures -= 1
            raise DataError("shard x cannot be read: try again") from OSError(5, "Input/output error")
        return self._real.read(row_group)

    def weigh(self, row_group: int, most: int):  # type: ignore[no-untyped-def]
        return self._real.weigh(row_group, most)

    def stream(self, row_group: int, batch_rows: int):  # type: ignore[no-untyped-def]
        return self._real.stream(row_group, batch_rows)

    def close(self) -> None:
        self._real.close()


def waiting() -> tuple[threading.Event, Callable[[], bool]]:
    """An event for when a fill waits, which asks whether it is cancelled then; and what it asks: never."""
    begun = threading.Event()
    return begun, lambda: begun.set() is not None


def test_a_seek_wins_over_the_frame_in_the_making(tmp_path: Path) -> None:
    """A trainer restarts while a frame for its former life is waited for: the new life's frames come all the same."""
    manifest = write_shards(tmp_path / "d", [(200, 10)])
    gate = Gate()
    engine = Engine(config(SPEC, epochs=1), manifest, stats=Stats(), open_shard=gate.open_shard)
    reader, slot, old = Reader(engine, 1), Slot(engine.slot_bytes), Slot(engine.slot_bytes)
    gate.open.clear()
    engine.start()
    former: list[object] = []
    begun, cancelled = waiting()
    thread = threading.Thread(target=lambda: former.append(engine.fill(0, 20, old.bytes, cancelled=cancelled)))
    try:
        thread.start()
        assert begun.wait(60)
        engine.seek(0, 3)
        gate.open.set()
        thread.join(60)
        assert former == [None], "the former life's fill did not return"
        assert drain(engine, 0, slot, reader, 3) == engine.total_steps
    finally:
        gate.open.set()
        engine.close()


def test_a_fill_at_another_step_than_expected_moves_the_rank_there(tmp_path: Path) -> None:
    manifest = write_shards(tmp_path / "d", [(200, 10)])
    engine = Engine(config(SPEC, epochs=1), manifest, stats=Stats())
    reader, slot = Reader(engine, 1), Slot(engine.slot_bytes)
    engine.start()
    try:
        for step in (0, 20, 4):
            meta = engine.fill(0, step, slot.bytes, cancelled=until())
            assert meta is not None
            reader.check(0, step, meta, slot)
            slot.spoil()
    finally:
        engine.close()


def test_frames_grow_from_one_step_and_again_after_a_seek(tmp_path: Path) -> None:
    """The first batch does not wait for a whole frame."""
    manifest = write_shards(tmp_path / "d", [(2000, 500)])
    engine = Engine(config(dataclasses.replace(SPEC, window=512), epochs=1), manifest, stats=Stats())
    slot = Slot(engine.slot_bytes)
    engine.start()
    try:
        for start in (0, 50):
            at, sizes = start, []
            engine.seek(0, start)
            for _ in range(4):
                meta = engine.fill(0, at, slot.bytes, cancelled=until())
                assert meta is not None
                sizes.append(meta.steps)
                at += meta.steps
            assert sizes == [1, 2, 4, 8]
    finally:
        engine.close()


def test_ranks_at_any_distance_go_on_within_a_tight_budget(tmp_path: Path) -> None:
    """One rank waits at the end of the epoch with its windows read ahead; the other starts over and still moves."""
    manifest = write_shards(tmp_path / "d", [(900, 50), (800, 40)])
    spec = dataclasses.replace(SPEC, lanes=8, window=32)
    engine = Engine(config(spec, ranks=2, epochs=2, read_ahead_bytes=120_000), manifest, stats=Stats())
    reader, slot = Reader(engine, 2), Slot(engine.slot_bytes)
    engine.start()
    try:
        engine.seek(0, 150)
        engine.seek(1, 0)
        assert drain(engine, 0, slot, reader, 150, 160) >= 160
        assert drain(engine, 1, slot, reader, 0) == engine.total_steps
        assert drain(engine, 0, slot, reader, 5) == engine.total_steps
    finally:
        engine.close()


@pytest.mark.parametrize("budget", [150_000, 400_000, 4 << 20])
def test_memory_stays_in_the_budget(tmp_path: Path, budget: int) -> None:
    """Windows, kept and decoding row groups and pooled buffers together, looked at between any two frames."""
    manifest = write_shards(tmp_path / "d", [(900, 60), (1100, 75)])
    spec = dataclasses.replace(SPEC, lanes=8, window=64)
    made = config(spec, ranks=2, epochs=2, read_ahead_bytes=budget, columns=("id", "vector"), decode_threads=2)
    engine = Engine(made, manifest, stats=Stats())
    reader, slot, peak = Reader(engine, 2), Slot(engine.slot_bytes), 0
    engine.start()
    try:
        at = dict.fromkeys(engine.ranks, 0)
        while any(step < engine.total_steps for step in at.values()):
            for rank in engine.ranks:
                meta = engine.fill(rank, at[rank], slot.bytes, cancelled=until())
                if meta is not None:
                    reader.check(rank, at[rank], meta, slot)
                    at[rank] += meta.steps
                    slot.spoil()
                held = engine.memory()
                peak = max(peak, sum(held[use] for use in ("windows", "chunks", "in_flight", "pool")))
    finally:
        engine.close()
    assert 50_000 < peak <= budget


def test_batches_before_a_bad_row_group_come_first_then_its_error(tmp_path: Path) -> None:
    """The error names file and row group, the rank that does not need it goes on, a restored file is read again."""
    manifest = write_shards(tmp_path / "d", [(400, 20)])
    path = tmp_path / "d" / "000.parquet"
    good = path.read_bytes()
    # Within the data pages of the file's second half; the footer stays whole and size and mtime's footer hash too.
    bad = bytearray(good)
    half = _offset(path, 15)
    bad[half + 40 : half + 120] = bytes(80)
    path.write_bytes(bytes(bad))
    spec = dataclasses.replace(SPEC, shuffle=False, lanes=1, window=20)
    stats = Stats()
    engine = Engine(config(spec, epochs=1), manifest, stats=stats)
    reader, slot = Reader(engine, 1), Slot(engine.slot_bytes)
    engine.start()
    try:
        at, error = until_error(engine, 0, slot, lambda at, meta: reader.check(0, at, meta, slot))
        assert at == 300 // 8, "every batch before the bad row group is delivered"
        assert isinstance(error, DataError)
        assert "000.parquet, row group 15 " in str(error)
        assert "restore the file" in str(error)
        assert stats.snapshot().errors == {"DataError": 1}
        # Whole at once: the other decode thread may open it just now.
        path.with_suffix(".good").write_bytes(good)
        path.with_suffix(".good").replace(path)
        engine.seek(0, at)
        assert drain(engine, 0, slot, reader, at) == engine.total_steps
    finally:
        engine.close()


def _offset(path: Path, group: int) -> int:
    with pq.ParquetFile(path) as file:
        return int(file.metadata.row_group(group).column(0).data_page_offset)


def test_a_read_that_fails_twice_is_retried(tmp_path: Path) -> None:
    manifest = write_shards(tmp_path / "d", [(40, 40)])
    gate, stats = Gate(), Stats()
    gate.failures = 2
    engine = Engine(config(SPEC, epochs=1, decode_threads=1), manifest, stats=stats, open_shard=gate.open_shard)
    engine.start()
    try:
        assert drain(engine, 0, Slot(engine.slot_bytes), Reader(engine, 1)) == engine.total_steps
    finally:
        engine.close()
    assert stats.snapshot().counts["retries"] == 2
    assert not stats.snapshot().errors


def test_a_read_that_keeps_failing_is_the_rank_s_error(tmp_path: Path) -> None:
    manifest = write_shards(tmp_path / "d", [(40, 40)])
    gate = Gate()
    gate.failures = 99
    engine = Engine(config(SPEC, decode_threads=1), manifest, stats=Stats(), open_shard=gate.open_shard)
    engine.start()
    try:
        with pytest.raises(DataError, match="cannot be read"):
            engine.fill(0, 0, Slot(engine.slot_bytes).bytes, cancelled=until())
    finally:
        engine.close()
    assert len(gate.reads) == 3


def test_a_batch_larger_than_a_slot_names_both_sizes_and_the_field(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    pq.write_table(
        pa.table({"text": ["x" * (100_000 if i == 33 else 5) for i in range(64)]}), tmp_path / "d" / "a.parquet"
    )
    manifest = build_manifest([str(tmp_path / "d")]).manifest
    engine = Engine(config(SPEC, slot_bytes=32_768), manifest, stats=Stats())
    slot = Slot(engine.slot_bytes)
    engine.start()
    try:
        at, error = until_error(engine, 0, slot, lambda _at, _meta: slot.check_guard())
    finally:
        engine.close()
    assert isinstance(error, BatchTooLarge)
    assert re.search(
        r"takes 10\d{4} bytes and a slot holds 32768: raise sidecar.slotBytes to at least 10\d{4}", str(error)
    )
    lanes = engine.lanes
    assert at == lanes.position(0, 33)[0], "every batch before it is delivered"  # type: ignore[index]


def test_ragged_frames_use_the_slot_however_rows_differ(tmp_path: Path) -> None:
    """Rows a hundred times larger than the mean take fewer steps to a frame, never an error."""
    (tmp_path / "d").mkdir()
    rows = [b"z" * (20_000 if i % 97 == 0 else 50) for i in range(2000)]
    pq.write_table(pa.table({"blob": rows}), tmp_path / "d" / "a.parquet", row_group_size=300)
    manifest = build_manifest([str(tmp_path / "d")]).manifest
    spec = dataclasses.replace(SPEC, window=128)
    engine = Engine(config(spec, slot_bytes=200_000), manifest, stats=Stats())
    slot = Slot(engine.slot_bytes)
    engine.start()
    at, frames = 0, 0
    try:
        while meta := engine.fill(0, at, slot.bytes, cancelled=until()):
            slot.check_guard()
            ids, _ = zip(*(engine.lanes.batch(0, at + k) for k in range(meta.steps)), strict=True)
            (block,) = meta.blocks
            lengths = np.diff(slot.bytes[block.offsets :][: 8 * meta.steps * 9].view(np.int64).reshape(meta.steps, 9))
            assert lengths.tolist() == [[len(rows[i]) for i in step] for step in ids]
            at += meta.steps
            frames += 1
    finally:
        engine.close()
    assert at == 250
    assert frames < 60


def test_a_budget_that_cannot_hold_the_open_windows_is_refused_with_numbers(tmp_path: Path) -> None:
    manifest = write_shards(tmp_path / "d", [(400, 20)])
    with pytest.raises(ConfigError, match=r"readAheadBytes is 1000 .* 2 lanes.* take \d+ bytes.*shuffle\.window"):
        Engine(config(SPEC, read_ahead_bytes=1000), manifest, stats=Stats())


def test_the_stream_s_own_errors_are_configuration_errors(tmp_path: Path) -> None:
    manifest = write_shards(tmp_path / "d", [(4, 4)])
    with pytest.raises(ConfigError, match="globalBatchSize 8"):
        Engine(config(SPEC), manifest, stats=Stats())


def test_close_ends_a_waiting_fill_and_all_threads(tmp_path: Path) -> None:
    manifest = write_shards(tmp_path / "d", [(400, 20)])
    gate = Gate()
    gate.open.clear()
    before = threading.active_count()
    engine = Engine(config(SPEC), manifest, stats=Stats(), open_shard=gate.open_shard)
    engine.start()
    result: list[object] = []
    slot = Slot(engine.slot_bytes)
    begun, cancelled = waiting()
    thread = threading.Thread(target=lambda: result.append(engine.fill(0, 0, slot.bytes, cancelled=cancelled)))
    thread.start()
    assert begun.wait(60)
    closer = threading.Thread(target=engine.close)
    closer.start()
    thread.join(60)
    assert result == [None]
    gate.open.set()
    closer.join(60)
    engine.close()
    assert threading.active_count() == before
    assert sum(v for k, v in engine.memory().items() if k != "in_flight") == 0


def test_fill_returns_none_when_cancelled_and_at_the_end(tmp_path: Path) -> None:
    manifest = write_shards(tmp_path / "d", [(40, 40)])
    gate = Gate()
    gate.open.clear()
    engine = Engine(config(SPEC), manifest, stats=Stats(), open_shard=gate.open_shard)
    slot = Slot(engine.slot_bytes)
    engine.start()
    try:
        assert engine.fill(0, 0, slot.bytes, cancelled=until(0.2)) is None
        assert engine.fill(0, engine.total_steps, slot.bytes, cancelled=until()) is None
    finally:
        gate.open.set()
        engine.close()
