"""Many jobs on a real API server with simulated nodes, looked after by the real operator process.

    bench/scale/plane.sh up /tmp/scale /tmp/kube/bin 12        # a control plane and nodes of its own
    KUBECONFIG=/tmp/scale/admin.conf python -m bench.scale.cluster [--jobs 200] [--pods 16]

Makes the jobs and their manifests (no trainer runs, so nobody indexes and nobody reports), starts the operator, waits
until every job runs, lets it idle for a minute, resizes all jobs at once, and kills and starts the operator again.
Figures: its own metrics, its memory, and how long each took. Leaves the cluster as it is: `plane.sh down /tmp/scale`.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.scale.passes import dataset
from bench.scale.results import record
from lanefeed_core import manifest_codec
from lanefeed_operator.api.crd import definition
from lanefeed_operator.api.spec import Job
from lanefeed_operator.kube.api import CONFIG_MAPS, JOBS, PODS, SECRETS, STJS, AlreadyExists, Kind
from lanefeed_operator.kube.client import Client, connect
from lanefeed_operator.render import manifest_maps

__all__ = ["main"]

GOALS = {"decision_p99_ms": 100.0, "idle_writes": 0.0, "rss_mib": 300.0, "restart_seconds": 10.0}
NAMESPACE = "scale"
PORTS = {"REPORT_PORT": "23543", "METRICS_PORT": "23505", "HEALTH_PORT": "23580"}
NAMESPACES = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
CRDS = Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
IDLE_SECONDS = 60
OWN = "lanefeed_operator_decision_seconds"
WAIT_SECONDS = 900.0


class Operator:
    """The real process."""

    def __init__(self, log: Path) -> None:
        """Start it."""
        settings = {"SIDECAR_IMAGE": "example/lanefeed", "COORDINATOR": "127.0.0.1:23543", "NAMESPACE": NAMESPACE}
        settings |= {"CERT_SECRET": "report-tls", "BIND": "127.0.0.1", **PORTS}
        environment = {**os.environ, **{f"LANEFEED_OPERATOR_{name}": value for name, value in settings.items()}}
        self.begun = time.monotonic()
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lanefeed_operator"], env=environment, stdout=out, stderr=out
            )

    def metrics(self) -> str:
        """Text of /metrics, "" while nobody listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORTS['METRICS_PORT']}/metrics", timeout=10) as reply:
                return str(reply.read().decode())
        except OSError:
            return ""

    def rss_mib(self) -> float:
        """Memory that it has now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", status)
        return round(int(found[1]) / 1024, 1) if found else 0.0

    def stop(self, number: int) -> None:
        """End it."""
        self.process.send_signal(number)
        self.process.wait(30)


def samples(text: str, name: str) -> Iterator[tuple[str, float]]:
    """(labels, value) of one metric."""
    for line in text.splitlines():
        if line.startswith((name + "{", name + " ")):
            head, _, value = line.rpartition(" ")
            yield head[len(name) :], float(value)


def total(text: str, name: str, wanted: str = "") -> int:
    """Sum over all label sets that match the pattern."""
    return int(sum(value for labels, value in samples(text, name) if re.search(wanted, labels)))


def p_of(text: str, name: str, share: float) -> float:
    """Upper edge, in ms, of the histogram's bucket in which the share lies."""
    buckets: dict[float, float] = {}
    for labels, value in samples(text, f"{name}_bucket"):
        edge = re.search(r'le="([^"]+)"', labels)
        if edge:
            buckets[float(edge[1].replace("+Inf", "inf"))] = (
                buckets.get(float(edge[1].replace("+Inf", "inf")), 0.0) + value
            )
    whole = buckets.get(float("inf"), 0.0)
    return round(1000.0 * next((e for e, n in sorted(buckets.items()) if n >= share * whole), 0.0), 1)


def writes(text: str) -> int:
    """API calls of the operator that write objects; reads, TokenReviews and the Lease do not count."""
    return total(text, "lanefeed_operator_api_requests_total", r'verb="(create|patch|put|post|delete|replace)')


def wait(what: str, done: Callable[[], bool], seconds: float = WAIT_SECONDS) -> float:
    """Seconds until it is so. Raises TimeoutError."""
    begun = time.monotonic()
    while not done():
        if time.monotonic() - begun > seconds:
            raise TimeoutError(f"{what}: not after {seconds:.0f} s")
        time.sleep(0.5)
    return round(time.monotonic() - begun, 1)


def prepare(api: Client, jobs: int, pods: int) -> None:
    """CRD, namespace, Secret, jobs with their manifests."""
    for kind, body in ((NAMESPACES, {"metadata": {"name": NAMESPACE}}), (CRDS, definition())):
        try:
            api.create(kind, "", {"apiVersion": f"{kind.group}/{kind.version}".lstrip("/"), "kind": kind.kind, **body})
        except AlreadyExists:
            pass
    wait("the CRD", lambda: _answers(api), 60)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "report-tls", "namespace": NAMESPACE}}
    try:
        api.create(SECRETS, NAMESPACE, secret)
    except AlreadyExists:
        pass
    data = dataset()
    encoded = manifest_codec.encode(data)
    spec: dict[str, Any] = {"replicas": pods, "data": {"uri": "s3://bucket/data"}, "epochs": 10}
    spec["batching"] = {"globalBatchSize": 4 * pods, "uneven": "Allow"}
    spec["elastic"] = {"stopGraceSeconds": 5}
    spec["template"] = {"spec": {"containers": [{"name": "trainer", "image": "example/train", "command": ["x"]}]}}
    for number in range(jobs):
        body = {"apiVersion": "lanefeed.dev/v1alpha1", "kind": STJS.kind, "spec": spec}
        made = api.create(STJS, NAMESPACE, {**body, "metadata": {"name": f"job-{number:03}", "namespace": NAMESPACE}})
        for chunk in manifest_maps(Job.model_validate(made), encoded, data.digest):
            api.create(CONFIG_MAPS, NAMESPACE, chunk)


def _answers(api: Client) -> bool:
    try:
        api.list(STJS, NAMESPACE)
    except Exception:
        return False
    return True


def running(api: Client, generation: int, pods: int) -> bool:
    """Whether every job runs this plan with all pods."""
    found = [o.get("status") or {} for o in api.list(STJS, NAMESPACE)]
    return all(
        s.get("planGeneration") == generation and s.get("readyReplicas") == pods and s.get("state") == "Running"
        for s in found
    )


def measure(api: Client, operator: Operator, log: Path, jobs: int, pods: int) -> tuple[dict[str, Any], Operator]:
    """The phases."""
    created = wait("every job has its Job", lambda: len(api.list(JOBS, NAMESPACE)) == jobs)
    begin = created + wait("every job runs", lambda: running(api, 1, pods))
    begun = operator.metrics()
    # After 20 s it is said of each job that its trainers have not connected; from then on nothing changes.
    time.sleep(30)
    before = operator.metrics()
    time.sleep(IDLE_SECONDS)
    idle = operator.metrics()
    rss_idle = operator.rss_mib()
    for number in range(jobs):
        api.patch(STJS, NAMESPACE, f"job-{number:03}", {"spec": {"replicas": pods - 4}})
    resize = wait("every job is resized", lambda: running(api, 2, pods - 4))
    after = operator.metrics()
    rss = max(rss_idle, operator.rss_mib())
    operator.stop(signal.SIGKILL)
    again = Operator(log)
    restart = wait(
        "the operator is back", lambda: total(again.metrics(), "lanefeed_operator_reconcile_total") >= jobs, 120
    )
    name = "lanefeed_operator_reconcile_seconds"
    return {
        "jobs": jobs,
        "pods": jobs * pods,
        "jobs_made_seconds": created,
        # Simulated kubelets included, which are most of it where cores are few.
        "running_seconds": round(begin, 1),
        "begin_writes_per_job": round(writes(begun) / jobs, 2),
        "idle_writes": writes(idle) - writes(before),
        "idle_passes": total(idle, "lanefeed_operator_reconcile_total")
        - total(before, "lanefeed_operator_reconcile_total"),
        "resize_seconds": resize,
        "resize_writes_per_job": round((writes(after) - writes(idle)) / jobs, 2),
        "passes": total(after, "lanefeed_operator_reconcile_total"),
        "passes_failed": total(
            after, "lanefeed_operator_reconcile_total", r'result="(error|crash|refused|unreachable)"'
        ),
        # A pass waits for an API server that shares the cores with 3,200 simulated pods: what is ours is the rest.
        "decision_p50_ms": p_of(after, OWN, 0.5),
        "decision_p99_ms": p_of(after, OWN, 0.99),
        "pass_p50_ms": p_of(after, name, 0.5),
        "pass_p99_ms": p_of(after, name, 0.99),
        "rss_mib": rss,
        "restart_seconds": restart,
        "children": len(api.list(JOBS, NAMESPACE)) + len(api.list(PODS, NAMESPACE)),
    }, again


def main() -> int:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--pods", type=int, default=16)
    parser.add_argument("--log", type=Path, default=Path("/tmp/lanefeed-scale.log"))
    given = parser.parse_args()
    api = connect()
    prepare(api, given.jobs, given.pods)
    operator = Operator(given.log)
    try:
        figures, operator = measure(api, operator, given.log, given.jobs, given.pods)
    finally:
        if operator.process.poll() is None:
            operator.stop(signal.SIGTERM)
    command = f"python -m bench.scale.cluster --jobs {given.jobs} --pods {given.pods}"
    return 0 if record("cluster", command, figures, GOALS) else 1


if __name__ == "__main__":
    sys.exit(main())
