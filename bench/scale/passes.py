"""Very many jobs through the production Controller: how long a pass takes, what idling writes, what memory it needs.

`python -m bench.scale.passes [--jobs 1000] [--pods 64]`. The operator runs in this process with everything imported
that the real one imports; the API server is another process (`server`). Times of passes include its answers.
"""

import argparse
import multiprocessing
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.scale.planning import FIELDS
from bench.scale.results import record
from bench.scale.server import ApiServer, RemoteApi
from lanefeed_core import manifest_codec
from lanefeed_core.ledger import Ledger
from lanefeed_core.manifest import Manifest, Shard
from lanefeed_operator.coordinator.reports import PodReport, RankCommit, RankReport
from lanefeed_operator.kube.api import JOBS, NODES, PODS, STJS, Object
from lanefeed_operator.render import Settings
from lanefeed_operator.runtime.controller import Controller
from lanefeed_operator.runtime.registry import Registry
from lanefeed_operator.runtime.view import JobKey, View

__all__ = ["Operator", "main", "make_jobs"]

GOALS = {"pass_p99_ms": 100.0, "idle_writes": 0.0, "rss_mib": 300.0}
IDLE_SECONDS = 60
SHARDS = 64


def make_jobs(count: int, pods: int) -> list[Object]:
    """What users applied, eight to a namespace."""
    template = {
        "spec": {"containers": [{"name": "trainer", "image": "example/train", "command": ["torchrun", "t.py"]}]}
    }
    spec = {"replicas": pods, "data": {"uri": "s3://bucket/data"}, "epochs": 10, "template": template}
    spec["batching"] = {"globalBatchSize": 4 * pods}
    meta = [{"name": f"job-{n:04}", "namespace": f"team-{n // 8:03}"} for n in range(count)]
    return [
        {"apiVersion": "lanefeed.dev/v1alpha1", "kind": "ShardedTrainingJob", "metadata": m, "spec": spec} for m in meta
    ]


def dataset() -> Manifest:
    """Small: how many shards a dataset has is `planning`'s affair."""
    return Manifest(
        tuple(Shard(f"part-{n:04}", 1 << 26, (8000,), (8000 * 520,), f"{n:016x}") for n in range(SHARDS)), FIELDS
    )


def rss_mib() -> float:
    """Memory that this process has now."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmRSS"))
    return round(int(line.split()[1]) / 1024, 1)


class Operator:
    """View, Registry and Controller, stepped by hand in virtual time."""

    def __init__(self, api: RemoteApi) -> None:
        self.api, self.now = api, 1_800_000_000.0
        self.view = View()
        self.registry = Registry(api, self.view)
        settings = Settings(sidecar_image="example/lanefeed", coordinator="lanefeed.lanefeed-system.svc:9443")
        self.controller = Controller(api, self.view, self.registry, settings, lambda: self.now)
        #: Passes to come, by when they are due.
        self.due: dict[JobKey, float] = {}
        self.registry.on_change = lambda key: self.wake((key,))
        self.wall: list[float] = []
        self.cpu: list[float] = []
        #: Job UID -> number of its first pod (the server counts them): little, since this process is weighed.
        self.pods: dict[str, int] = {}
        self.indexers: dict[str, str] = {}
        for kind in (STJS, JOBS, PODS, NODES):
            self.view.synced(kind)

    def wake(self, keys: Any) -> None:
        for key in keys:
            self.due[key] = self.now

    def events(self) -> None:
        """All that the API server has to tell."""
        while chunk := self.api.ask("events"):
            for event, kind, o in chunk:
                self.wake(self.view.remove(kind, o) if event == "DELETED" else self.view.put(kind, o))
                if kind == PODS:
                    self.remember(o)

    def remember(self, pod: Object) -> None:
        """Who will report (the operator itself keeps less of a pod)."""
        notes, labels = pod["metadata"]["annotations"], pod["metadata"]["labels"]
        if labels["lanefeed.dev/role"] == "indexer":
            self.indexers[pod["metadata"]["ownerReferences"][0]["uid"]] = pod["metadata"]["uid"]
        else:
            number = int(pod["metadata"]["uid"].removeprefix("pod-")) - int(
                notes["batch.kubernetes.io/job-completion-index"]
            )
            self.pods[notes["lanefeed.dev/job-uid"]] = number

    def passes(self) -> None:
        """Until nothing is due now."""
        while ready := [key for key, at in self.due.items() if at <= self.now]:
            for key in ready:
                del self.due[key]
                wall, cpu = time.perf_counter(), time.process_time()
                again = self.controller.run_pass(key)
                self.wall.append(time.perf_counter() - wall)
                self.cpu.append(time.process_time() - cpu)
                if again is not None:
                    self.due[key] = min(self.due.get(key, self.now + again), self.now + again)
            self.events()

    def second(self) -> None:
        """A virtual second."""
        self.now += 1.0
        self.api.ask("clock", self.now)
        self.events()
        self.passes()

    def upload(self, data: bytes, digest: str) -> None:
        """What indexers hand over."""
        for key in list(self.view.keys()):
            member = self.registry.find(self.view.job_uid(key))
            jobs = [job for job in self.view.jobs_of(key) if job.role == "indexer"]
            if member is not None and jobs:
                refused = self.registry.put_manifest(member.uid, self.indexers[jobs[0].uid], digest, data)
                assert not refused, refused

    def reports(self, step: int, *, commit: bool, sequence: int) -> Iterator[float]:
        """One report of every pod; the seconds that each took."""
        for member in self.registry.members():
            assert member.coordinator is not None
            for index in range(member.coordinator.snapshot(self.now).book["world"]):
                uid = f"pod-{self.pods[member.uid] + index:08}"
                rank = RankReport(index, 0, False, step, True, False, 0.1, 1.0)
                commits = (RankCommit(index, 0, step, f"s{step}", Ledger()),) if commit else ()
                report = PodReport(member.uid, index, uid, 1, f"{uid}/0", sequence, (rank,), commits, ready=True)
                begun = time.process_time()
                reply = member.coordinator.report(report, self.now)
                yield time.process_time() - begun
                assert not reply.reason, reply.reason

    def states(self) -> set[str]:
        return {str((self.view.job(key) or {}).get("status", {}).get("state")) for key in list(self.view.keys())}

    def take_times(self) -> tuple[list[float], list[float]]:
        found = sorted(self.wall), sorted(self.cpu)
        self.wall, self.cpu = [], []
        return found


def percentile(values: list[float], share: float) -> float:
    """In ms."""
    return round(1000.0 * values[min(len(values) - 1, int(share * len(values)))], 2)


def measure(op: Operator, jobs: int, pods: int) -> dict[str, Any]:
    """The phases: begin, train, idle."""
    data = dataset()
    encoded = manifest_codec.encode(data)
    op.events()
    op.passes()
    op.upload(encoded, data.digest)
    for _ in range(3):
        op.second()
    begin_wall, begin_cpu = op.take_times()
    api_begin = op.api.ask("writes")
    spent, count = 0.0, 0
    for step in range(1, 31):
        # Added up as they come: this process is weighed.
        for seconds in op.reports(step, commit=False, sequence=step):
            spent, count = spent + seconds, count + 1
        op.second()
    assert op.states() == {"Running"}, op.states()
    train_wall, train_cpu = op.take_times()
    api_train = op.api.ask("writes")
    for _ in range(15):
        op.second()
    op.api.ask("writes")
    op.take_times()
    for second in range(IDLE_SECONDS):
        if second % 20 == 0:
            # What a resync does on top.
            op.wake(op.view.keys())
        op.second()
    idle_wall, idle_cpu = op.take_times()
    idle_writes, idle_calls = op.api.ask("writes")
    both = sorted([*begin_wall, *train_wall])
    return {
        "jobs": jobs,
        "pods": jobs * pods,
        "passes": len(both),
        "pass_p50_ms": percentile(both, 0.5),
        "pass_p99_ms": percentile(both, 0.99),
        "pass_max_ms": percentile(both, 1.0),
        "begin_pass_cpu_p50_ms": percentile(begin_cpu, 0.5),
        "begin_pass_cpu_p99_ms": percentile(begin_cpu, 0.99),
        "train_pass_cpu_p50_ms": percentile(train_cpu, 0.5),
        "train_pass_cpu_p99_ms": percentile(train_cpu, 0.99),
        "idle_pass_cpu_p50_ms": percentile(idle_cpu, 0.5),
        "idle_passes": len(idle_wall),
        "idle_writes": idle_writes,
        "idle_calls": idle_calls,
        "begin_writes_per_job": round(api_begin[0] / jobs, 2),
        "train_writes_per_job_second": round(api_train[0] / jobs / 30, 3),
        "reports_per_cpu_second": int(count / spent),
        "rss_mib": rss_mib(),
        "rss_peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def run(jobs: int, pods: int) -> dict[str, Any]:
    """Start the API server beside this process and measure."""
    mine, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs, jobs, pods), daemon=True)
    server.start()
    theirs.close()
    try:
        return measure(Operator(RemoteApi(mine)), jobs, pods)
    finally:
        mine.close()
        server.join(10)


def _serve(connection: Any, jobs: int, pods: int) -> None:
    ApiServer(connection, make_jobs(jobs, pods)).serve()


def main() -> int:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=64)
    given = parser.parse_args()
    # What the real process carries besides: kopf, the client, gRPC, Prometheus.
    import lanefeed_operator.runtime.main  # noqa: F401 -- only its memory is wanted

    figures = run(given.jobs, given.pods)
    command = f"python -m bench.scale.passes --jobs {given.jobs} --pods {given.pods}"
    return 0 if record("passes", command, figures, GOALS) else 1


if __name__ == "__main__":
    sys.exit(main())
