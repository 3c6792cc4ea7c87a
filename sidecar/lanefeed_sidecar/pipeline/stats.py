"""What the data plane counts: plain thread-safe numbers. The metrics module turns them into Prometheus text.

Called from decode threads and from the feed's fill threads; no clock and no Prometheus here.
"""

import threading
from collections import Counter
from dataclasses import dataclass, field

__all__ = ["Snapshot", "Stats"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A consistent copy of all counters.

    counts: name -> total since start. seconds: name -> seconds since start. waits: (stage, on what) -> seconds.
    errors: kind -> number. failures: kind -> tries to read from a store that failed.
    """

    counts: dict[str, int]
    seconds: dict[str, float]
    waits: dict[tuple[str, str], float]
    errors: dict[str, int]
    failures: dict[str, int] = field(default_factory=dict)


class Stats:
    """Counters of one engine.

    Counts: bytes_read (stored bytes, by the row group's share of its file), row_groups, rows, frames, batches, samples,
    cache_hits (a decoded row group that was still in memory served another window), decoded_again (a row group that
    had been decoded before in the same epoch and was not kept), windows, retries; of the decoded cache on disk:
    disk_cache_hits, disk_cache_bytes_read, disk_cache_writes, disk_cache_evictions, disk_cache_damaged; of stores:
    remote_requests and remote_bytes (that came whole), remote_retries, remote_hedges, remote_hedges_won,
    remote_credentials (read anew).
    Seconds: read (opening and checking shards), decode (reading and decoding row groups), decode_cpu (CPU time of it),
    scatter, assemble, cache_read, cache_write (the decoded cache on disk).
    Waits: ("decode", "budget" | "work" | "fetch"), ("assemble", "decode" | "cache").
    """

    def __init__(self) -> None:
        """Everything is zero."""
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}
        self._waits: dict[tuple[str, str], float] = {}
        self._errors: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()

    def add(self, **counts: int) -> None:
        """Add to counts."""
        with self._lock:
            self._counts.update(counts)

    def spend(self, **seconds: float) -> None:
        """Add to seconds."""
        with self._lock:
            for name, value in seconds.items():
                self._seconds[name] = self._seconds.get(name, 0.0) + value

    def wait(self, stage: str, on: str, seconds: float) -> None:
        """A stage waited for something."""
        with self._lock:
            self._waits[stage, on] = self._waits.get((stage, on), 0.0) + seconds

    def error(self, kind: str) -> None:
        """Count an error by the name of its class."""
        with self._lock:
            self._errors[kind] += 1

    def failure(self, kind: str) -> None:
        """A try to read from a store failed, of a kind of `sources.objects.KINDS`."""
        with self._lock:
            self._failures[kind] += 1

    def snapshot(self) -> Snapshot:
        """A consistent copy."""
        with self._lock:
            counts, errors, failures = dict(self._counts), dict(self._errors), dict(self._failures)
            return Snapshot(counts, dict(self._seconds), dict(self._waits), errors, failures)
