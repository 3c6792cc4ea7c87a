"""The engine with the decoded cache: the very same bytes, fewer decodes, whatever happens to the folder."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from lanefeed_core.manifest import Manifest
from lanefeed_core.podconfig import PodConfig
from lanefeed_core.stream import StreamSpec
from lanefeed_sidecar import formats
from lanefeed_sidecar.cache import Allowance, decoded
from lanefeed_sidecar.formats import Chunk, FixedChunk
from lanefeed_sidecar.pipeline import Engine, Stats, slabs
from lanefeed_sidecar.pipeline.needs import WindowKey
from support.frames_oracle import Reader, Slot, config, drain, write_shards

SPEC = StreamSpec(seed=5, global_batch_size=8, lanes=3, window=16)
SHARDS = [(90, 10), (50, 25), (7, 7), (64, 16)]
#: Small, so that hardly anything is kept in memory and the disk is asked.
BUDGET = 1 << 20


@pytest.fixture(autouse=True, params=[slabs.WIDE_BYTES, 24, 1])
def _wide(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which fixed columns are read straight to where they are gathered from: none, the vectors, all."""
    monkeypatch.setattr(slabs, "WIDE_BYTES", request.param)


@pytest.fixture(autouse=True)
def _always_time_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Allowance, "open", True)


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return write_shards(tmp_path / "d", SHARDS)


class Counting:
    """Opens real shards and remembers what was decoded."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, int]] = []
        self.threads: list[str] = []

    def open_shard(self, manifest: Manifest, shard: int, columns: tuple) -> "Counted":  # type: ignore[type-arg]
        return Counted(self, shard, formats.open_shard(manifest, shard, columns))


class Counted:
    def __init__(self, counting: Counting, shard: int, real: formats.ShardReader) -> None:
        self._counting, self._shard, self._real = counting, shard, real

    def read(self, row_group: int) -> Chunk:
        self._counting.reads.append((self._shard, row_group))
        self._counting.threads.append(threading.current_thread().name)
        return self._real.read(row_group)

    def weigh(self, row_group: int, most: int):  # type: ignore[no-untyped-def]
        return self._real.weigh(row_group, most)

    def stream(self, row_group: int, batch_rows: int) -> Iterator[Chunk]:
        return self._real.stream(row_group, batch_rows)

    def close(self) -> None:
        self._real.close()


def _settings(folder: Path, epochs: int, size: int = 1 << 30) -> PodConfig:
    options = {"decode_threads": 2, "cache_dir": str(folder), "cache_bytes": size, "read_ahead_bytes": BUDGET}
    return config(SPEC, epochs=epochs, **options)


def run(
    manifest: Manifest,
    folder: Path,
    *,
    epochs: int = 3,
    size: int = 1 << 30,
    stop: int = 0,
    start: Callable[[Engine], None] = Engine.start,
) -> tuple[Counting, Stats]:
    """Read all epochs and check every bit against the source."""
    counting, stats = Counting(), Stats()
    settings = config(
        SPEC, epochs=epochs, decode_threads=2, cache_dir=str(folder), cache_bytes=size, read_ahead_bytes=BUDGET
    )
    engine = Engine(settings, manifest, stats=stats, open_shard=counting.open_shard)
    # Row groups kept in memory would hide the disk.
    engine._store._wanted = lambda group: False  # type: ignore[method-assign]
    start(engine)
    try:
        drain(engine, 0, Slot(engine.slot_bytes), Reader(engine, 1), 0, stop)
    finally:
        engine.close()
    return counting, stats


def test_later_epochs_and_restarts_are_read_from_the_cache_bit_for_bit(manifest: Manifest, tmp_path: Path) -> None:
    first, stats = run(manifest, tmp_path / "c")
    groups = sum(len(s.row_groups) for s in manifest.shards)
    assert len(set(first.reads)) == groups
    # A row group may be decoded twice before its first copy is written, not in every epoch.
    assert len(first.reads) <= groups + 4
    assert stats.snapshot().counts["disk_cache_hits"] >= 2 * groups
    again, stats = run(manifest, tmp_path / "c")
    assert again.reads == []
    assert stats.snapshot().counts.get("disk_cache_writes", 0) == 0


def test_damaged_entries_cost_time_and_no_bit(manifest: Manifest, tmp_path: Path) -> None:
    run(manifest, tmp_path / "c", epochs=2)
    entries = sorted(tmp_path.glob("c/*/*"))
    for number, path in enumerate(entries):
        data = bytearray(path.read_bytes())
        if number % 3 == 0:
            data[len(data) // 2] ^= 1
        path.write_bytes(data[: len(data) // 2] if number % 3 == 1 else data)
    again, stats = run(manifest, tmp_path / "c", epochs=2)
    damaged = stats.snapshot().counts["disk_cache_damaged"]
    assert damaged == sum(1 for n in range(len(entries)) if n % 3 < 2)
    assert len(set(again.reads)) == damaged


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this process had read every entry already."""
    monkeypatch.setattr(decoded.DecodedCache, "knows", lambda *_: True)


def test_a_damaged_entry_that_cannot_be_removed_costs_time_alone(
    manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk became read-only, say, or the entry is another user's."""
    run(manifest, tmp_path / "c", epochs=2)
    for path in tmp_path.glob("c/*/*"):
        path.write_bytes(path.read_bytes()[:-9])

    def refuse(_: object, name: str) -> int:
        raise PermissionError(13, "Permission denied", name)

    monkeypatch.setattr(decoded.DiskCache, "remove", refuse)
    again, stats = run(manifest, tmp_path / "c", epochs=1)
    assert stats.snapshot().counts["disk_cache_damaged"] >= len(set(again.reads)) > 0


def test_what_is_remembered_does_not_grow_with_each_use(
    manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = []
    remember = decoded.DecodedCache._remember

    def watch(self: decoded.DecodedCache, *arguments: object) -> None:
        remember(self, *arguments)  # type: ignore[arg-type]
        most.append((len(self._heap), len(self._known)))

    monkeypatch.setattr(decoded.DecodedCache, "_remember", watch)
    monkeypatch.setattr(decoded, "_STALE", 2)
    run(manifest, tmp_path / "c", epochs=8)
    assert len(most) > 3 * max(known for _, known in most)
    assert all(heap <= 2 * known + 2 for heap, known in most)


@pytest.mark.usefixtures("known")
def test_a_fill_thread_that_would_wait_reads_out_of_the_cache(manifest: Manifest, tmp_path: Path) -> None:
    """There is not even a decode thread: it delivers every epoch alone, and leaves nothing behind."""
    run(manifest, tmp_path / "c", epochs=2)
    counting, stats = run(manifest, tmp_path / "c", start=lambda _engine: None)
    assert counting.reads == []
    assert stats.snapshot().waits["assemble", "cache"] > 0


@pytest.mark.usefixtures("known")
def test_what_a_fill_thread_does_not_find_is_decoded_by_the_others(
    manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decode threads begin when it has looked in vain, and entries that were there are torn."""
    run(manifest, tmp_path / "c", epochs=2)
    for path in sorted(tmp_path.glob("c/*/*"))[::2]:
        path.write_bytes(b"torn")
    looked = threading.Event()
    real = decoded.DecodedCache.get

    def get(cache: decoded.DecodedCache, *args: object) -> Chunk | None:
        found = real(cache, *args)  # type: ignore[arg-type]
        if found is None:
            looked.set()
        return found

    def start(engine: Engine) -> None:
        threading.Thread(target=lambda: looked.wait(60) and engine.start(), daemon=True).start()

    monkeypatch.setattr(decoded.DecodedCache, "get", get)
    counting, stats = run(manifest, tmp_path / "c", epochs=2, start=start)
    assert looked.is_set()
    assert counting.threads
    assert all(name.startswith("decode") for name in counting.threads)
    assert stats.snapshot().counts["disk_cache_damaged"] > 0
    assert not stats.snapshot().errors


def test_a_fill_thread_whose_rank_was_moved_stops_helping(manifest: Manifest, tmp_path: Path) -> None:
    run(manifest, tmp_path / "c", epochs=2)
    engine = Engine(_settings(tmp_path / "c", 2), manifest, stats=Stats())
    engine.seek(0, 4)
    assert engine._help is not None
    engine._help.until(0, 0, [WindowKey(0, 0, 0)], lambda: False)
    assert engine._stats.snapshot().counts.get("disk_cache_hits", 0) == 0
    engine.close()


def test_the_folder_stays_within_its_size_and_keeps_what_is_needed_first(manifest: Manifest, tmp_path: Path) -> None:
    run(manifest, tmp_path / "whole", epochs=2)
    whole = sum(p.stat().st_size for p in tmp_path.glob("whole/*/*"))
    counting, stats = run(manifest, tmp_path / "half", epochs=6, size=whole // 2)
    assert sum(p.stat().st_size for p in tmp_path.glob("half/*/*")) <= whole // 2
    counts = stats.snapshot().counts
    assert counts["disk_cache_evictions"] > 0
    # Every epoch is in another order: who throws out what was used least recently would hit next to nothing.
    assert counts["disk_cache_hits"] > len(counting.reads) / 4


def test_two_sidecars_share_a_folder(manifest: Manifest, tmp_path: Path) -> None:
    found: list[tuple[Counting, Stats]] = []
    threads = [threading.Thread(target=lambda: found.append(run(manifest, tmp_path / "c"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 2, "a sidecar's frames were wrong, see above"
    assert run(manifest, tmp_path / "c")[0].reads == []


def test_a_full_disk_is_counted_and_training_goes_on(
    manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int, _chunk: Chunk) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(decoded, "write_entry", full)
    counting, stats = run(manifest, tmp_path / "c", epochs=1)
    # Once a decode thread at most: then the cache is left alone for a while.
    assert 1 <= stats.snapshot().errors["CacheWriteFailed"] <= 4
    assert not list(tmp_path.glob("c/*/*"))
    assert counting.reads


def test_a_shard_that_was_written_anew_is_not_served_from_the_cache(tmp_path: Path) -> None:
    run(write_shards(tmp_path / "d", SHARDS), tmp_path / "c", epochs=2)
    again, _ = run(write_shards(tmp_path / "d", [(90, 10), (50, 25), (8, 8), (64, 16)]), tmp_path / "c", epochs=1)
    assert {shard for shard, _ in again.reads} >= {2}


def test_tooth_a_cache_that_swaps_two_rows_is_caught(
    manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = decoded.read_entry

    def swapped(*args: object) -> Chunk:
        chunk = real(*args)  # type: ignore[arg-type]
        column = next(c for c in chunk.columns if isinstance(c, FixedChunk) and c.values.size)
        column.values = np.concatenate([column.values[1::-1], column.values[2:]])
        return chunk

    run(manifest, tmp_path / "c", epochs=2)
    monkeypatch.setattr(decoded, "read_entry", swapped)
    with pytest.raises(AssertionError):
        run(manifest, tmp_path / "c", epochs=1)
