"""The operator's own metrics, `lanefeed_operator_*`: made by `main`, told by workers and the API client.

Counters and the histogram are kept here; everything that is a state is asked for at each scrape, so a job that is gone
takes its gauges with it. The label of a ShardedTrainingJob is `stj`: `job` belongs to Prometheus.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics
from prometheus_client import Counter as Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from lanefeed_core import ORDER_VERSION
from lanefeed_core.wire import PROTOCOL_VERSION
from lanefeed_operator.coordinator.pace import Pacer
from lanefeed_operator.coordinator.rejected import RESULTS as REPORT_RESULTS
from lanefeed_operator.kube.api import ApiError, Conflict
from lanefeed_operator.runtime.facts import KNOWN_STATES, JobFacts, Seen
from lanefeed_operator.runtime.http import Answer
from lanefeed_operator.runtime.workers import QueueState

__all__ = ["RESULTS", "Metrics", "version"]

#: What a pass can end with (workers): shown from the start with 0, as what a report can.
RESULTS = ("ok", "conflict", "unreachable", "refused", "error", "crash")
#: The promise is p99 < 100 ms.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
P = "lanefeed_operator_"

# A series more for each counter, which says nothing that Prometheus asks.
disable_created_metrics()

Families = Iterator[CounterMetricFamily | GaugeMetricFamily]


def version() -> str:
    """The release that this is."""
    try:
        return metadata.version("lanefeed")
    except metadata.PackageNotFoundError:
        return "unknown"


class Metrics:
    """See the module. Thread safe. The callables are asked at each scrape; `main` sets them as it makes the parts."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Nothing has happened yet."""
        self._clock = clock
        self.facts = JobFacts()
        self.queue: Callable[[], QueueState] = lambda: QueueState(0, 0.0, 0.0, 0)
        #: Resource -> seconds since its watch was last heard of.
        self.watches: Callable[[], Mapping[str, float]] = dict
        #: Reports by result.
        self.reports: Callable[[], Mapping[str, int]] = dict
        self.pacer: Pacer | None = None
        self.leader: Callable[[], bool] = lambda: False
        self._registry = CollectorRegistry()
        self._seconds = Histogram(
            P + "reconcile_seconds",
            "Seconds that one look at one job took, API calls included.",
            buckets=BUCKETS,
            registry=self._registry,
        )
        self._own_seconds = Histogram(
            P + "decision_seconds",
            "Seconds of such a look that the operator itself took: all but its requests to the API server.",
            buckets=BUCKETS,
            registry=self._registry,
        )
        #: Seconds that a thread's requests have taken since its last pass.
        self._waited = threading.local()
        self._passes = Metric(
            P + "reconcile", "Looks at jobs, by how they ended.", labelnames=["result"], registry=self._registry
        )
        self._requests = Metric(
            P + "api_requests",
            "Requests to the API server by verb and HTTP status; 0: no answer came.",
            labelnames=["verb", "code"],
            registry=self._registry,
        )
        self._api_seconds = Metric(
            P + "api_seconds",
            "Seconds spent waiting for the API server.",
            labelnames=["verb"],
            registry=self._registry,
        )
        for result in RESULTS:
            self._passes.labels(result)
        self._lock = threading.Lock()
        self._writes: Counter[str] = Counter({"ok": 0, "conflict": 0, "error": 0})
        self._registry.register(_State(self))

    # ---- what happens ----------------------------------------------------------------------------------------------

    def passed(self, result: str, seconds: float) -> None:
        """One look at one job is over; called by the thread that made it."""
        self._seconds.observe(seconds)
        self._own_seconds.observe(max(0.0, seconds - getattr(self._waited, "seconds", 0.0)))
        self._waited.seconds = 0.0
        self._passes.labels(result).inc()

    def request(self, verb: str, code: int, seconds: float) -> None:
        """One request to the API server was answered (code 0: it was not); called by the thread that made it."""
        self._requests.labels(verb, str(code)).inc()
        self._waited.seconds = getattr(self._waited, "seconds", 0.0) + max(0.0, seconds)
        self._api_seconds.labels(verb).inc(max(0.0, seconds))

    def wrote_status(self, error: ApiError | None) -> None:
        """One write of a job's status."""
        with self._lock:
            self._writes["ok" if error is None else "conflict" if isinstance(error, Conflict) else "error"] += 1

    def page(self) -> Answer:
        """/metrics."""
        return 200, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self._registry)

    # ---- what is ---------------------------------------------------------------------------------------------------

    def state(self) -> Families:
        """All families that are asked for at a scrape."""
        queue = self.queue()
        yield _gauge("queue_depth", "Jobs that are due and wait for a worker.", queue.depth)
        yield _gauge("queue_oldest_seconds", "Seconds that the head of the queue has waited.", queue.oldest)
        yield _gauge("leader", "1 if this replica acts, 0 if it stands by.", int(self.leader()))
        watches = GaugeMetricFamily(
            P + "watch_age_seconds", "Seconds since the watch was last heard of.", labels=["resource"]
        )
        for resource, age in sorted(self.watches().items()):
            watches.add_metric([resource], age)
        yield watches
        reports = dict.fromkeys(REPORT_RESULTS, 0) | dict(self.reports())
        yield _counter("reports", "Reports of sidecars by what became of them.", reports)
        pods, slowing = (self.pacer.pods, self.pacer.slowing) if self.pacer is not None else (0, 1.0)
        yield _gauge("reporting_pods", "Pods whose sidecars reported lately.", pods)
        yield _gauge("report_slowing", "How much less often pods report as it is busy; 1: not.", slowing)
        with self._lock:
            writes = dict(self._writes)
        yield _counter("status_writes", "Writes of jobs' status.", writes)
        yield from self._jobs()
        yield _counter(
            "restarts", "Restarts of jobs by reason, since this process began.", self.facts.restarts(), "reason"
        )
        build = GaugeMetricFamily(P + "build_info", "1; the release.", labels=["version", "protocol", "order"])
        build.add_metric([version(), str(PROTOCOL_VERSION), str(ORDER_VERSION)], 1)
        yield build

    def _jobs(self) -> Families:
        seen = self.facts.all(self._clock())
        states = Counter(dict.fromkeys(KNOWN_STATES, 0))
        states.update(job.state for job in seen)
        jobs = GaugeMetricFamily(P + "jobs", "Jobs by state.", labels=["state"])
        for state, number in sorted(states.items()):
            jobs.add_metric([state], number)
        yield jobs
        yield _per_job("plan_generation", "The job's present plan generation.", seen, lambda j: j.plan_generation)
        yield _per_job(
            "commit_age_seconds",
            "Seconds since a running job's last commit, or since its plan began.",
            seen,
            lambda j: j.commit_age,
        )
        yield _per_job(
            "restart_budget_left",
            "Restarts that the pod index that failed most has left in this plan; the job fails below 0.",
            seen,
            lambda j: j.budget_left,
        )


class _State(Collector):
    """Hands `Metrics.state` to the registry, which must not ask for it before there is any."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[Any]:
        """Nothing at registration: families are made at each scrape."""
        return ()

    def collect(self) -> Iterable[Any]:
        """All families."""
        return self._metrics.state()


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(P + name, text, value=value)


def _counter(name: str, text: str, values: Mapping[str, int], label: str = "result") -> CounterMetricFamily:
    family = CounterMetricFamily(P + name, text, labels=[label])
    for result, number in sorted(values.items()):
        family.add_metric([result], number)
    return family


def _per_job(name: str, text: str, seen: Iterable[Seen], value: Callable[[Seen], float | None]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(P + name, text, labels=["namespace", "stj"])
    for job in seen:
        number = value(job)
        if number is not None:
            family.add_metric([job.namespace, job.name], number)
    return family
