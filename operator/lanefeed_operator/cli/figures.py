"""Two readings of a sidecar's /metrics -> rates, and in words what holds the pod up. Pure."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["Figures", "Reading"]

Labels = tuple[tuple[str, str], ...]

#: Below this share of waiting the trainer is what limits, and nothing has to be done.
KEEPS_UP = 1.0


@dataclass(frozen=True, slots=True)
class Reading:
    """All samples of one scrape; `at` in seconds of a monotonic clock."""

    at: float
    values: Mapping[str, Mapping[Labels, float]]

    @classmethod
    def parse(cls, text: str, at: float) -> "Reading":
        """Read Prometheus text."""
        values: dict[str, dict[Labels, float]] = defaultdict(dict)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                values[sample.name][tuple(sorted(sample.labels.items()))] = float(sample.value)
        return cls(at, values)

    def total(self, name: str, **labels: str) -> float:
        """Sum over all series of a name that have these labels."""
        wanted = set(labels.items())
        return sum(value for found, value in self.values.get(name, {}).items() if wanted <= set(found))

    def all(self, name: str) -> list[float]:
        """The values of a name's series."""
        return list(self.values.get(name, {}).values())


@dataclass(frozen=True, slots=True)
class Figures:
    """What a pod did between two readings (since its start where there is one only)."""

    ranks: int
    step: int
    samples_per_second: float
    read_bytes_per_second: float
    slots_free: int
    #: Share of the trainers' time spent waiting for data.
    stall_percent: float
    verdict: str

    @classmethod
    def between(cls, before: Reading | None, now: Reading) -> "Figures":
        """`before` of another session of the sidecar, or none, counts as its start."""
        session = "lanefeed_session_start_time_seconds"
        if before is not None and before.total(session) != now.total(session):
            before = None
        seconds = max(1e-9, now.at - before.at) if before else 0.0

        def grown(name: str, **labels: str) -> float:
            return max(0.0, now.total(name, **labels) - (before.total(name, **labels) if before else 0.0))

        def rate(name: str) -> float:
            return grown(name) / seconds if seconds else 0.0

        wait, step = grown("lanefeed_trainer_wait_seconds_total"), grown("lanefeed_trainer_step_seconds_total")
        stall = 100.0 * wait / (wait + step) if wait + step > 0 else 0.0
        steps = now.all("lanefeed_total_step")
        return cls(
            ranks=len(steps),
            step=int(min(steps, default=0)),
            samples_per_second=rate("lanefeed_samples_total"),
            read_bytes_per_second=rate("lanefeed_read_bytes_total"),
            slots_free=int(now.total("lanefeed_slots_free")),
            stall_percent=stall,
            verdict=_verdict(now, stall, grown),
        )


def _verdict(now: Reading, stall: float, grown: Callable[..., float]) -> str:
    """The next thing to look at."""
    if now.total("lanefeed_fenced"):
        return "fenced: this pod was replaced and must exit"
    if not now.total("lanefeed_rank_attached"):
        return "no trainer is attached"
    if stall <= KEEPS_UP:
        return "training: the data keeps up"
    decode, cpu = grown("lanefeed_decode_seconds_total"), grown("lanefeed_decode_cpu_seconds_total")
    shares = {
        "decoding: give the sidecar more CPU (sidecar.resources, decodeThreads)": cpu,
        "reading: storage or CPU is not there when wanted": max(0.0, decode - cpu)
        + grown("lanefeed_read_seconds_total"),
        "copying into windows and batches": grown("lanefeed_scatter_seconds_total")
        + grown("lanefeed_assemble_seconds_total"),
        "waiting for room: raise sidecar.readAheadBytes": grown(
            "lanefeed_stage_wait_seconds_total", stage="decode", on="budget"
        ),
    }
    name, most = max(shares.items(), key=lambda item: item[1])
    whole = sum(shares.values())
    if whole <= 0:
        return "nothing: no stage of the sidecar moved"
    return f"{100 * most / whole:.0f} % {name}"
