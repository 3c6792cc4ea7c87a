"""Every byte of every frame is what the pure order says, whatever the sizes, threads, speeds and seeks."""

import random
from pathlib import Path

import numpy as np
import pytest

from lanefeed_core.stream import StreamSpec
from lanefeed_sidecar.pipeline import Engine, Stats, slabs, store
from lanefeed_sidecar.pipeline.window import Window
from support.frames_oracle import Case, Reader, Slot, config, drain, until, write_shards


@pytest.mark.parametrize("seed", range(60))
def test_all_ranks_together_get_the_reference_order(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random datasets and worlds; ranks at speeds of their own that seek back and forth while others go on.

    With every other seed all fixed columns, or those of 24 bytes, are gathered as wide ones are.
    """
    rng = random.Random(seed)
    monkeypatch.setattr(slabs, "WIDE_BYTES", (slabs.WIDE_BYTES, 1, slabs.WIDE_BYTES, 24)[seed % 4])
    case = Case.draw(rng)
    manifest = write_shards(tmp_path / "data", case.shards, rng.choice(["parquet", "arrow"]))
    for pod in range(case.replicas):
        stats = Stats()
        engine = case.engine(manifest, pod, stats)
        reader, slot = Reader(engine, case.world), Slot(engine.slot_bytes)
        seen = {rank: set() for rank in engine.ranks}
        at = dict.fromkeys(engine.ranks, 0)
        engine.start()
        try:
            while any(len(steps) < engine.total_steps for steps in seen.values()):
                rank = rng.choice(list(engine.ranks))
                if rng.random() < 0.08:
                    at[rank] = rng.randint(0, engine.total_steps)
                    engine.seek(rank, at[rank])
                slot.spoil()
                meta = engine.fill(rank, at[rank], slot.bytes, cancelled=until())
                if meta is None:
                    assert at[rank] >= engine.total_steps, f"{case}: rank {rank} is stuck at step {at[rank]}"
                    at[rank] = min(set(range(engine.total_steps)) - seen[rank], default=0)
                    engine.seek(rank, at[rank])
                    continue
                reader.check(rank, at[rank], meta, slot)
                seen[rank] |= set(range(at[rank], at[rank] + meta.steps))
                at[rank] += meta.steps
        finally:
            engine.close()
        assert not stats.snapshot().errors


def test_a_row_group_larger_than_windows_and_budget_is_streamed(tmp_path: Path) -> None:
    """One file, one row group, of which the budget holds less than a quarter: exact, and never decoded whole."""
    manifest = write_shards(tmp_path / "data", [(6000, 6000)])
    spec = StreamSpec(seed=3, global_batch_size=12, lanes=4, window=64, last_batch="Partial")
    stats = Stats()
    made = config(spec, epochs=1, decode_threads=2, read_ahead_bytes=200_000, columns=("id", "vector"))
    engine = Engine(made, manifest, stats=stats)
    assert engine._store.streams(next(iter(_groups(manifest))))
    engine.start()
    try:
        assert drain(engine, 0, Slot(engine.slot_bytes), Reader(engine, 1)) == engine.total_steps == 500
    finally:
        engine.close()


def _groups(manifest) -> list:  # type: ignore[no-untyped-def]
    from lanefeed_sidecar.pipeline.pieces import RowGroupKey

    return [RowGroupKey(s, g) for s, shard in enumerate(manifest.shards) for g in range(len(shard.row_groups))]


def test_fewer_rows_than_ranks_in_the_last_batch(tmp_path: Path) -> None:
    """Partial: ranks without a sample get a frame of no rows, so that all see the same number of steps."""
    manifest = write_shards(tmp_path / "data", [(18, 7)])
    for last in ("Partial", "Pad"):
        spec = StreamSpec(seed=5, global_batch_size=8, lanes=8, window=4, last_batch=last)
        engine = Engine(config(spec, ranks=8, epochs=2), manifest, stats=Stats())
        engine.start()
        try:
            for rank in engine.ranks:
                assert drain(engine, rank, Slot(engine.slot_bytes), Reader(engine, 8)) == 6
        finally:
            engine.close()


def test_a_seek_to_any_step_gives_the_frame_of_that_step(tmp_path: Path) -> None:
    """Each step of two epochs is entered directly, backwards: the bytes do not depend on how one came there."""
    manifest = write_shards(tmp_path / "data", [(70, 20), (45, 45)])
    spec = StreamSpec(seed=9, global_batch_size=7, lanes=3, window=16, last_batch="Partial")
    engine = Engine(config(spec, ranks=2, epochs=2), manifest, stats=Stats())
    reader, slot = Reader(engine, 2), Slot(engine.slot_bytes)
    engine.start()
    try:
        for step in reversed(range(engine.total_steps)):
            for rank in engine.ranks:
                engine.seek(rank, step)
                meta = engine.fill(rank, step, slot.bytes, cancelled=until())
                assert meta is not None
                reader.check(rank, step, meta, slot)
                slot.spoil()
    finally:
        engine.close()


def test_row_groups_across_windows_are_decoded_once(tmp_path: Path) -> None:
    """No row group lies within one window; with room to keep them each is decoded once per lane that reads it."""
    manifest = write_shards(tmp_path / "data", [(500, 90), (700, 130), (400, 70)])
    spec = StreamSpec(seed=2, global_batch_size=16, lanes=4, window=64)
    stats = Stats()
    engine = Engine(config(spec, epochs=1, decode_threads=1), manifest, stats=stats)
    engine.start()
    try:
        drain(engine, 0, Slot(engine.slot_bytes), Reader(engine, 1))
    finally:
        engine.close()
    seconds = stats.snapshot().seconds
    assert seconds["read"] > 0
    assert 0 < seconds["decode_cpu"] <= seconds["decode"] + 0.02, "the clocks have different grains"
    decoded = stats.snapshot().counts["row_groups"]
    assert manifest.num_row_groups <= decoded <= manifest.num_row_groups + spec.lanes - 1


@pytest.mark.parametrize("every", [1, 2, 3])
def test_windows_that_find_no_block_of_the_slabs(every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of windows with and without: all, every other and every third finds none."""
    real, asked = slabs.Slabs.take, [0]

    def take(self: slabs.Slabs) -> slabs.Block | None:
        asked[0] += 1
        return None if asked[0] % every == 0 else real(self)

    monkeypatch.setattr(slabs, "WIDE_BYTES", 24)
    monkeypatch.setattr(slabs.Slabs, "take", take)
    _one_epoch(tmp_path)
    assert asked[0] > 6


def test_a_system_that_gives_no_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(slabs, "WIDE_BYTES", 24)
    monkeypatch.setattr(slabs.mmap, "mmap", refuse)
    _one_epoch(tmp_path)
    assert caplog.text.count("no addresses for") == 1


# ---- the oracle can fail ---------------------------------------------------------------------------------------


def _one_epoch(tmp_path: Path) -> None:
    manifest = write_shards(tmp_path / "data", [(120, 50), (90, 30)])
    spec = StreamSpec(seed=4, global_batch_size=10, lanes=4, window=32)
    engine = Engine(config(spec, epochs=1), manifest, stats=Stats())
    engine.start()
    try:
        drain(engine, 0, Slot(engine.slot_bytes), Reader(engine, 1))
    finally:
        engine.close()


def test_the_oracle_passes_without_a_fault(tmp_path: Path) -> None:
    _one_epoch(tmp_path)


def test_an_off_by_one_in_the_shuffle_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Window.order
    monkeypatch.setattr(Window, "order", lambda self: np.roll(real(self), 1))
    with pytest.raises(AssertionError, match="other samples or another order"):
        _one_epoch(tmp_path)


def test_two_swapped_rows_of_one_column_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids and sums stay right: only the comparison of values sees it."""
    real = Window.finish

    def swapped(self: Window) -> None:
        real(self)
        values = self.columns[1].values
        values[[0, 1]] = values[[1, 0]]

    monkeypatch.setattr(Window, "finish", swapped)
    with pytest.raises(AssertionError, match="column vector"):
        _one_epoch(tmp_path)


def test_two_swapped_rows_of_a_gather_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide columns: ids and sums stay right, and the rows that are gathered are others."""
    real = Window.finish

    def swapped(self: Window) -> None:
        real(self)
        self.marks[[0, 1], 1] = self.marks[[1, 0], 1]

    monkeypatch.setattr(slabs, "WIDE_BYTES", 24)
    _one_epoch(tmp_path / "right")
    monkeypatch.setattr(Window, "finish", swapped)
    with pytest.raises(AssertionError, match="column vector"):
        _one_epoch(tmp_path / "wrong")


@pytest.mark.parametrize("wide", [slabs.WIDE_BYTES, 24])
def test_a_released_window_that_is_reused_too_early_is_caught(
    wide: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window given back to the pool while it is still to be read: its next owner overwrites it."""
    monkeypatch.setattr(slabs, "WIDE_BYTES", wide)
    real = store.Store.done

    def early(self, task, chunk):  # type: ignore[no-untyped-def]
        real(self, task, chunk)
        for window in task.windows:
            if window.whole:
                window.close(self.pool)

    monkeypatch.setattr(store.Store, "done", early)
    with pytest.raises(AssertionError):
        _one_epoch(tmp_path)
