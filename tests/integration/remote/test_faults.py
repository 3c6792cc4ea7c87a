"""Frames of remote shards are exact whatever the store and the network do; each failure is counted by its kind."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lanefeed_core.manifest import Manifest
from lanefeed_core.stream import StreamSpec
from lanefeed_sidecar.errors import DataError
from lanefeed_sidecar.formats import remote
from lanefeed_sidecar.index import build_manifest
from lanefeed_sidecar.pipeline import Engine, Stats
from support.fault_proxy import FaultProxy, Seen
from support.frames_oracle import Reader, Slot, config, drain
from support.s3 import S3Server

SPEC = StreamSpec(seed=5, global_batch_size=8, lanes=4, window=32)


@pytest.fixture
def manifest(s3: S3Server) -> Manifest:
    return build_manifest(["s3://data/train"]).manifest


@pytest.fixture(autouse=True)
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shards are small: else all of them came with the footer."""
    monkeypatch.setattr(remote, "TAIL_BYTES", 2048)


@contextmanager
def reading(manifest: Manifest, **more: object) -> Iterator[tuple[Engine, Slot, Stats]]:
    stats = Stats()
    engine = Engine(config(SPEC, epochs=2, **more), manifest, stats=stats)
    try:
        engine.seek(0, 0)
        engine.start()
        yield engine, Slot(engine.slot_bytes), stats
    finally:
        engine.close()


def some(rng: random.Random, share: float, *faults: str) -> Callable[[Seen], str]:
    """Faults for a share of the reads of data; never twice in a row, so that every read succeeds."""
    last: dict[str, str] = {}
    lock = threading.Lock()

    def plan(seen: Seen) -> str:
        if not seen.range:
            return ""
        with lock:
            place = seen.path.split("?")[0] + seen.range
            fault = rng.choice(faults) if rng.random() < share and not last.get(place) else ""
            last[place] = fault
            return fault

    return plan


@pytest.mark.parametrize("threads", [1, 3])
def test_two_epochs_are_exact(s3: S3Server, manifest: Manifest, threads: int) -> None:
    with reading(manifest, decode_threads=threads) as (engine, slot, stats):
        assert drain(engine, 0, slot, Reader(engine, 1)) == engine.total_steps
        counts = stats.snapshot().counts
    assert counts["remote_bytes"] > 0
    assert not stats.snapshot().failures


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("reset", "reset"),
        ("truncate", "short"),
        ("range", "range"),
        ("whole", "range"),
        ("503", "throttled"),
        ("500", "server"),
    ],
)
def test_each_fault_is_counted_and_harmless(
    s3: S3Server, manifest: Manifest, monkeypatch: pytest.MonkeyPatch, fault: str, kind: str
) -> None:
    with FaultProxy(s3.port, plan=some(random.Random(1), 0.4, fault), retry_after=0) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        with reading(manifest) as (engine, slot, stats):
            assert drain(engine, 0, slot, Reader(engine, 1)) == engine.total_steps
            found = stats.snapshot()
        assert proxy.counts()[fault] > 0
    # A reset of a kept connection may look like one that was closed while idle; a whole small object is its range too.
    assert 0 < found.failures[kind] <= proxy.counts()[fault]
    assert set(found.failures) == {kind}
    assert not found.errors


def test_all_faults_at_once(s3: S3Server, manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = ("reset", "truncate", "range", "503", "500", "flip", "stall")
    plan = some(random.Random(2), 0.6, *faults)
    with FaultProxy(s3.port, plan=plan, latency=0.01, retry_after=0, hang=2) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        with reading(manifest, decode_threads=2) as (engine, slot, _):
            assert drain(engine, 0, slot, Reader(engine, 1)) == engine.total_steps
        assert sum(proxy.counts()[fault] for fault in faults) > 5


def test_a_changed_object_is_refused(s3: S3Server, manifest: Manifest) -> None:
    """The same rows written anew: the same size, but not the version that the manifest pins."""
    client = s3.client()
    body = client.get_object(Bucket="data", Key="train/003.parquet")["Body"].read()
    changed = bytearray(body)
    changed[len(body) // 4] ^= 1
    client.put_object(Bucket="data", Key="train/003.parquet", Body=bytes(changed))
    try:
        with reading(manifest) as (engine, slot, stats), pytest.raises(DataError) as error:
            drain(engine, 0, slot, Reader(engine, 1))
        assert "s3://data/train/003.parquet cannot be read" in str(error.value)
        assert "its version is" in str(error.value)
        assert "it was replaced since the manifest was made" in str(error.value)
        assert stats.snapshot().failures["changed"] >= 1
    finally:
        client.put_object(Bucket="data", Key="train/003.parquet", Body=body)
        client.close()


def test_a_stuck_read_is_hedged(s3: S3Server, manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With hedging no batch waits as long as a read hangs; without it one does."""
    waits = {}
    for hedge in (True, False):
        count = iter(range(10_000))
        plan = lambda seen, count=count: "silent" if seen.range and next(count) == 12 else ""  # noqa: E731
        with FaultProxy(s3.port, plan=plan, hang=10) as proxy:
            monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
            monkeypatch.setenv("LANEFEED_READ_HEDGE", str(int(hedge)))
            with reading(manifest) as (engine, slot, stats):
                waits[hedge] = _longest_wait(engine, slot)
                counts = stats.snapshot().counts
            assert counts.get("remote_hedges", 0) >= int(hedge)
            # A few percent of extra requests, and what is there at the start.
            assert counts.get("remote_hedges", 0) <= 6 + 0.07 * counts["remote_requests"]
    assert waits[False] > 6
    assert waits[True] < waits[False] / 2


def _longest_wait(engine: Engine, slot: Slot) -> float:
    at, longest = 0, 0.0
    while True:
        began = time.monotonic()
        meta = engine.fill(0, at, slot.bytes, cancelled=lambda: False)
        longest = max(longest, time.monotonic() - began)
        if meta is None:
            return longest
        at += meta.steps


def test_after_an_outage_nobody_thunders(s3: S3Server, manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the store is away it is asked now and then; when it is back requests rise step by step."""
    with FaultProxy(s3.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        with reading(manifest) as (engine, slot, stats):
            proxy.down = True
            began = time.monotonic()
            reader, done = Reader(engine, 1), []
            thread = threading.Thread(target=lambda: done.append(drain(engine, 0, slot, reader)))
            thread.start()
            time.sleep(4)
            away = [seen for seen in proxy.log if seen.fault == "down" and seen.at > began + 1]
            seconds = time.monotonic() - began - 1
            proxy.down = False
            thread.join(60)
            assert done == [engine.total_steps]
            assert stats.snapshot().failures["reset"] > 0
        # The rate of those that wait together, not of each: 16 row groups and 32 requests want to be read.
        assert len(away) / seconds < 8, f"{len(away)} requests in {seconds:.1f} s of an outage"


def test_credentials_that_rotate(s3: S3Server, manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old key ends in mid-epoch; the new one, which the environment has by then, is found once and used."""
    with FaultProxy(s3.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        with reading(manifest, read_ahead_bytes=64 << 10) as (engine, slot, stats):
            reader = Reader(engine, 1)
            at = drain(engine, 0, slot, reader, stop=8)
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "rotated")
            proxy.accepted_key = "rotated"
            assert drain(engine, 0, slot, reader, start=at) == engine.total_steps
            found = stats.snapshot()
        assert found.failures["expired"] >= 1
        assert found.counts["remote_credentials"] >= 1
        assert {seen.key for seen in proxy.ranged()} == {"test", "rotated"}


def test_credentials_that_end(s3: S3Server, manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANEFEED_READ_PATIENCE_SECONDS", "1")
    with FaultProxy(s3.port, accepted_key="another") as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        with reading(manifest) as (engine, slot, _), pytest.raises(DataError) as error:
            drain(engine, 0, slot, Reader(engine, 1))
    assert "HTTP 403 ExpiredToken" in str(error.value)
    assert "the credentials have ended, and those found since are no newer" in str(error.value)


def test_a_wrong_byte_is_caught(s3: S3Server, manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right headers and one flipped bit, once in each shard: page checksums and fingerprints find it, it is read again.

    Tooth: a store that always flips it is found out too, and no frame holds a wrong value.
    """
    flipped: set[str] = set()

    def plan(seen: Seen) -> str:
        path = seen.path.split("?")[0]
        data = seen.range.startswith("bytes=4-")
        if not seen.range or path in flipped or data == path.endswith("000.parquet"):
            return ""
        flipped.add(path)
        return "flip"

    with FaultProxy(s3.port, plan=plan) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        with reading(manifest) as (engine, slot, stats):
            assert drain(engine, 0, slot, Reader(engine, 1)) == engine.total_steps
            found = stats.snapshot()
        assert found.failures["damaged"] == 1
        assert found.counts["retries"] >= 3
        proxy.plan = lambda seen: "flip" if seen.range.startswith("bytes=4-") else ""
        with reading(manifest) as (engine, slot, _), pytest.raises(DataError, match="CRC checksum verification failed"):
            drain(engine, 0, slot, Reader(engine, 1))


def test_a_restart_reads_the_decoded_cache_and_not_the_store(
    s3: S3Server, manifest: Manifest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What was decoded once is on the local disk: later epochs and restarts need no store, not even a living one."""
    cache = {"cache_dir": str(tmp_path / "cache"), "cache_bytes": 1 << 30}
    with FaultProxy(s3.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        for _ in range(3):
            with reading(manifest, **cache) as (engine, slot, stats):
                assert drain(engine, 0, slot, Reader(engine, 1)) == engine.total_steps
                groups = sum(len(shard.row_groups) for shard in manifest.shards)
                end = time.monotonic() + 60
                while len(list(tmp_path.glob("cache/*/*"))) < groups and time.monotonic() < end:
                    time.sleep(0.05)
            if not stats.snapshot().counts.get("remote_requests"):
                break
        asked = len(proxy.log)
        proxy.down = True
        with reading(manifest, **cache) as (engine, slot, stats):
            assert drain(engine, 0, slot, Reader(engine, 1)) == engine.total_steps
        assert stats.snapshot().counts["disk_cache_hits"] > 0
        assert len(proxy.log) == asked
