"""The sidecar's metrics: a table from counters to Prometheus families, each with a help text for a stranger.

Rendered on request from plain counters (`pipeline.stats`, the hub, the reporter), so that counting costs the data plane
next to nothing.
"""

import os
import resource
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from lanefeed_core import ORDER_VERSION
from lanefeed_core.cursor import Cursor
from lanefeed_core.slots import SlotState
from lanefeed_core.wire import PROTOCOL_VERSION
from lanefeed_sidecar.feed.hub import Hub
from lanefeed_sidecar.pipeline.stats import Snapshot, Stats

__all__ = ["ReportCounts", "renderer"]

#: Stats count -> (metric, help).
_COUNTS = {
    "bytes_read": ("lanefeed_read_bytes", "Bytes of shards read from storage, as stored (compressed)."),
    "row_groups": ("lanefeed_row_groups_decoded", "Row groups decoded."),
    "rows": ("lanefeed_rows_decoded", "Rows decoded from shards; more than samples if row groups are decoded again."),
    "frames": ("lanefeed_frames", "Frames put into shared memory; a frame holds several batches of one rank."),
    "batches": ("lanefeed_batches", "Rank batches put into shared memory."),
    "samples": ("lanefeed_samples", "Samples put into shared memory, padding left out."),
    "windows": ("lanefeed_windows", "Shuffle windows completed."),
    "cache_hits": ("lanefeed_cache_hits", "Decoded row groups that were still in memory and served another window."),
    "decoded_again": (
        "lanefeed_row_groups_decoded_again",
        "Row groups decoded once more in an epoch: raise sidecar.readAheadBytes or lower batching.lanes.",
    ),
    "disk_cache_hits": ("lanefeed_disk_cache_hits", "Row groups read back from the decoded cache on disk."),
    "disk_cache_bytes_read": ("lanefeed_disk_cache_read_bytes", "Bytes read back from the decoded cache on disk."),
    "disk_cache_writes": ("lanefeed_disk_cache_writes", "Decoded row groups written to the cache on disk."),
    "disk_cache_evictions": (
        "lanefeed_disk_cache_evictions",
        "Entries of the cache on disk given up for others: many of them mean that sidecar.cache.size is small.",
    ),
    "disk_cache_damaged": (
        "lanefeed_disk_cache_damaged",
        "Entries of the cache on disk whose digest was wrong; they were removed and decoded again.",
    ),
    "retries": ("lanefeed_read_retries", "Row groups that could not be read or decoded and were tried again."),
    "remote_requests": ("lanefeed_remote_requests", "Requests for data to stores (S3, HTTP, ...) that brought it."),
    "remote_bytes": ("lanefeed_remote_read_bytes", "Bytes that these requests brought."),
    "remote_retries": ("lanefeed_remote_retries", "Requests to stores that were made again after a failure."),
    "remote_hedges": (
        "lanefeed_remote_hedges",
        "Second requests for a read that was stuck; at most a few percent of all requests.",
    ),
    "remote_hedges_won": ("lanefeed_remote_hedges_won", "Second requests that were quicker than the stuck one."),
    "remote_credentials": (
        "lanefeed_remote_credentials_renewed",
        "Times that the credentials of a store were read anew because they had ended.",
    ),
}
_SECONDS = {
    "read": ("lanefeed_read_seconds", "Seconds that threads spent opening and checking shards."),
    "decode": ("lanefeed_decode_seconds", "Seconds that threads spent reading and decoding row groups."),
    "decode_cpu": (
        "lanefeed_decode_cpu_seconds",
        "CPU seconds of lanefeed_decode_seconds. The rest of those was waiting: for storage, or for a core.",
    ),
    "scatter": ("lanefeed_scatter_seconds", "Seconds that threads spent copying decoded rows into shuffle windows."),
    "cache_read": ("lanefeed_disk_cache_read_seconds", "Seconds that threads spent reading the cache on disk."),
    "cache_write": ("lanefeed_disk_cache_write_seconds", "Seconds that threads spent writing to the cache on disk."),
    "assemble": ("lanefeed_assemble_seconds", "Seconds that threads spent copying batches into shared memory."),
}
_WAIT_HELP = (
    "Seconds that a stage of the sidecar waited, and on what. fill on slot: the trainer is slower than the data. "
    "assemble on decode: the data is slower than the trainer; on cache: the same, and it reads entries of the decoded "
    "cache meanwhile. decode on budget: read-ahead is full. "
    "decode on fetch: the store is slower than decoding."
)


@dataclass(slots=True)
class ReportCounts:
    """What the supervisor knows besides the hub; callables are asked at each scrape."""

    started: float
    sent: Callable[[], int]
    failed: Callable[[], int]
    commits: Callable[[], int]
    waiting_commits: Callable[[], int]
    quarantined: int = 0


def renderer(hub: Hub, stats: Stats, counts: ReportCounts) -> Callable[[], bytes]:
    """A function that makes the text of /metrics."""
    registry = CollectorRegistry()
    registry.register(_Collector(hub, stats, counts))
    return lambda: generate_latest(registry)


class _Collector:
    def __init__(self, hub: Hub, stats: Stats, counts: ReportCounts) -> None:
        self._hub, self._stats, self._counts = hub, stats, counts

    def describe(self) -> Iterable[Metric]:
        """Nothing at registration: families are made at each scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families."""
        snapshot = self._stats.snapshot()
        yield from self._pipeline(snapshot)
        yield from self._ranks()
        yield from self._pod()

    def _pipeline(self, snapshot: Snapshot) -> Iterator[Metric]:
        for name, (metric, text) in _COUNTS.items():
            yield CounterMetricFamily(metric, text, value=snapshot.counts.get(name, 0))
        for name, (metric, text) in _SECONDS.items():
            yield CounterMetricFamily(metric, text, value=snapshot.seconds.get(name, 0.0))
        waits = CounterMetricFamily("lanefeed_stage_wait_seconds", _WAIT_HELP, labels=["stage", "on"])
        for (stage, on), seconds in sorted(snapshot.waits.items()):
            waits.add_metric([stage, on], seconds)
        yield waits
        errors = CounterMetricFamily("lanefeed_errors", "Errors by kind, as trainers see them.", labels=["kind"])
        for kind, number in sorted(snapshot.errors.items()):
            errors.add_metric([kind], number)
        yield errors
        failures = CounterMetricFamily(
            "lanefeed_remote_failures",
            "Requests to stores that failed, by kind; most are made again, what that does not help becomes an error.",
            labels=["kind"],
        )
        for kind, number in sorted(snapshot.failures.items()):
            failures.add_metric([kind], number)
        yield failures
        yield GaugeMetricFamily(
            "lanefeed_windows_open",
            "Shuffle windows that are held in memory.",
            self._hub.engine.memory().get("open_windows", 0),
        )
        yield GaugeMetricFamily(
            "lanefeed_quarantined_shards",
            "Shards set aside because they cannot be read; none of their samples is used.",
            self._counts.quarantined,
        )

    def _ranks(self) -> Iterator[Metric]:
        ready = GaugeMetricFamily(
            "lanefeed_frames_ready", "Frames that are filled and not yet handed to the rank's trainer.", labels=["rank"]
        )
        free = GaugeMetricFamily(
            "lanefeed_slots_free",
            "Empty slots of shared memory: all of a rank's are empty while it waits for data.",
            labels=["rank"],
        )
        leased = GaugeMetricFamily(
            "lanefeed_slots_leased", "Slots in the trainer's hands: to be read, or still read from.", labels=["rank"]
        )
        attached = GaugeMetricFamily(
            "lanefeed_rank_attached", "1 while a trainer is attached as this rank.", labels=["rank"]
        )
        attaches = CounterMetricFamily(
            "lanefeed_attaches", "Times that a trainer attached as this rank.", labels=["rank"]
        )
        wait = CounterMetricFamily(
            "lanefeed_trainer_wait_seconds",
            "Seconds that the rank's trainer waited for data: the stall.",
            labels=["rank"],
        )
        step = CounterMetricFamily(
            "lanefeed_trainer_step_seconds",
            "Seconds that the rank's trainer spent between batches, waiting left out.",
            labels=["rank"],
        )
        copied = CounterMetricFamily(
            "lanefeed_copied_batches",
            "Batches copied because the trainer keeps tensors and slots ran out.",
            labels=["rank"],
        )
        cursor = GaugeMetricFamily(
            "lanefeed_cursor",
            "The next step that the rank will consume: its epoch, and its step in that epoch.",
            labels=["rank", "what"],
        )
        total = GaugeMetricFamily(
            "lanefeed_total_step",
            "The next step that the rank will consume, counted over all epochs: to compare ranks.",
            labels=["rank"],
        )
        for rank, life in sorted(self._hub.lives().items()):
            label, totals = [str(rank)], self._hub.totals(rank)
            ready.add_metric(label, life.count(SlotState.READY) if life.alive else 0)
            free.add_metric(label, life.count(SlotState.FREE) if life.alive else len(self._hub.slots(rank)))
            leased.add_metric(label, life.count(SlotState.LEASED) if life.alive else 0)
            attached.add_metric(label, int(life.alive))
            attaches.add_metric(label, totals.attaches)
            wait.add_metric(label, totals.figures.wait_seconds)
            step.add_metric(label, totals.figures.step_seconds)
            copied.add_metric(label, totals.figures.copied_batches)
            at = self._cursor(life.consumed)
            cursor.add_metric([*label, "epoch"], at.epoch)
            cursor.add_metric([*label, "step"], at.step)
            total.add_metric(label, life.consumed)
        yield from (ready, free, leased, attached, attaches, wait, step, copied, cursor, total)

    def _cursor(self, total: int) -> Cursor:
        lanes = self._hub.engine.lanes
        return Cursor.from_total(total, lanes.steps_per_epoch, aligned=lanes.spec.aligned)

    def _pod(self) -> Iterator[Metric]:
        counts, hub = self._counts, self._hub
        yield CounterMetricFamily(
            "lanefeed_commits", "Commits of checkpoints taken from this pod's ranks.", counts.commits()
        )
        yield GaugeMetricFamily(
            "lanefeed_commits_waiting",
            "Commits that the control plane has not acknowledged yet.",
            counts.waiting_commits(),
        )
        yield CounterMetricFamily("lanefeed_reports", "Reports that the control plane answered.", counts.sent())
        yield CounterMetricFamily(
            "lanefeed_report_failures",
            "Reports that did not reach the control plane; training goes on meanwhile.",
            counts.failed(),
        )
        yield GaugeMetricFamily(
            "lanefeed_fenced", "1 if this pod was replaced and may not train any more.", int(hub.fenced)
        )
        yield GaugeMetricFamily("lanefeed_arena_bytes", "Bytes of shared memory reserved for frames.", hub.arena.bytes)
        yield from self._tmpfs()
        memory = GaugeMetricFamily(
            "lanefeed_memory_bytes",
            "Bytes of memory by use; rss_peak is the whole process, shared memory included.",
            labels=["use"],
        )
        for use, size in sorted(self._memory().items()):
            memory.add_metric([use], size)
        yield memory
        yield GaugeMetricFamily(
            "lanefeed_session_start_time_seconds", "When this sidecar started, in seconds since 1970.", counts.started
        )
        yield InfoMetricFamily("lanefeed_build", "Versions, and what this sidecar serves.", self._build())

    def _tmpfs(self) -> Iterator[Metric]:
        try:
            found = os.statvfs(self._hub.arena.path.parent)
        except OSError:
            return
        text = "Bytes of the file system that holds shared memory, commits and socket: its size, and what is free."
        family = GaugeMetricFamily("lanefeed_tmpfs_bytes", text, labels=["what"])
        family.add_metric(["size"], found.f_blocks * found.f_frsize)
        family.add_metric(["free"], found.f_bavail * found.f_frsize)
        yield family

    def _memory(self) -> dict[str, int]:
        uses = {name: size for name, size in self._hub.engine.memory().items() if name != "open_windows"}
        return {**uses, "arena": self._hub.arena.bytes, "rss": _rss(), "rss_peak": _rss_peak()}

    def _build(self) -> dict[str, str]:
        config = self._hub.config
        return {
            "version": _version(),
            "protocol": str(PROTOCOL_VERSION),
            "order": str(ORDER_VERSION),
            "job": config.job,
            "pod": str(config.pod_index),
            "plan_generation": str(config.plan.generation),
            "manifest": self._hub.digest,
            "session": self._hub.session,
        }


def _rss() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _rss_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _version() -> str:
    try:
        return metadata.version("lanefeed")
    except metadata.PackageNotFoundError:
        return "unknown"
