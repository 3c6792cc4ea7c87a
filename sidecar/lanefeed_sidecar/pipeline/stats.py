"""What the data plane counts: plain thread-safe numbers. The metrics module turns them into Prometheus text.

Called from decode threads and from the feed's fill threads; no clock and no Prometheus here.
"""

import threading
from collections import Counter
from dataclasses import dataclass

__all__ = ["Snapshot", "Stats"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A consistent copy of all counters and gauges.

    counts: name -> total since start. seconds: name -> seconds since start. waits: (stage, on what) -> seconds.
    gauges: name -> value now. errors: kind -> number.
    """

    counts: dict[str, int]
    seconds: dict[str, float]
    waits: dict[tuple[str, str], float]
    gauges: dict[str, int]
    errors: dict[str, int]


class Stats:
    """Counters and gauges of one engine.

    Counts: bytes_read (stored bytes, by the row group's share of its file), row_groups, rows, frames, batches, samples,
    cache_hits (a decoded row group that was still in memory served another window), decoded_again (a row group that
    had been decoded before and was not kept), windows, retries, quarantined.
    Seconds: read (opening and checking shards), decode (reading and decoding row groups), decode_cpu (CPU time of it),
    scatter, assemble.
    Gauges: windows_open, windows_ready, chunks, window_bytes, pool_bytes, chunk_bytes, decoding_bytes.
    Waits: ("decode", "budget" | "work"), ("assemble", "decode").
    """

    def __init__(self) -> None:
        """Everything is zero."""
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}
        self._waits: dict[tuple[str, str], float] = {}
        self._gauges: dict[str, int] = {}
        self._errors: Counter[str] = Counter()

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

    def set(self, **gauges: int) -> None:
        """Set gauges."""
        with self._lock:
            self._gauges.update(gauges)

    def error(self, kind: str) -> None:
        """Count an error by the name of its class."""
        with self._lock:
            self._errors[kind] += 1

    def snapshot(self) -> Snapshot:
        """A consistent copy."""
        with self._lock:
            return Snapshot(
                dict(self._counts), dict(self._seconds), dict(self._waits), dict(self._gauges), dict(self._errors)
            )
