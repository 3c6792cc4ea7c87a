"""What all jobs need goes away: the operator, the API server, etcd. Pods train on, and the end is as ever."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.cluster import RELEASE, SYSTEM, Cluster, wait
from e2e.job import Job
from e2e.lifetime import job
from e2e.scenarios import scenario

MIDDLE = 42
OUTAGE_SECONDS = 60


def running(made: Job) -> set[str]:
    """Train to the middle of the first epoch; UIDs of the pods."""
    made.apply()
    made.reaches(MIDDLE, seconds=120)
    return {pod["metadata"]["uid"] for pod in made.living()}


@contextmanager
def no_operator(cluster: Cluster) -> Iterator[None]:
    """The operator is scaled to zero, and back."""
    deployment = f"deployment/{RELEASE}"
    cluster.kubectl("-n", SYSTEM, "scale", deployment, "--replicas=0")
    cluster.kubectl(
        "-n", SYSTEM, "wait", "--for=delete", "pod", "-l", "app.kubernetes.io/name=lanefeed", "--timeout=170s"
    )
    try:
        yield
    finally:
        cluster.kubectl("-n", SYSTEM, "scale", deployment, "--replicas=1")
        cluster.kubectl("-n", SYSTEM, "rollout", "status", deployment, "--timeout=170s")


@scenario("control")
def test_the_operator_is_killed_in_a_resize(cluster: Cluster) -> None:
    """SIGKILL right after the scale, at the stop, and at the new plan: one resize, exactly one plan more."""
    with job(cluster, "opkill", epochs=3) as made:
        running(made)
        made.scale(3)
        for _ in range(3):
            cluster.kill(wait(cluster.operator_pod, 60, "the operator"), "operator")
            time.sleep(1.5)
            wait(lambda: operator_runs(cluster), 60, "the operator's next life")
        made.leaves(60)
        made.seen(MIDDLE + 40, generation=2, seconds=120)
        status = made.completes(180)
        assert (status["planGeneration"], status["restarts"]["resizes"]) == (2, 1), status["restarts"]


def operator_runs(cluster: Cluster) -> bool:
    """Whether its container runs; the kubelet backs off longer and longer."""
    states = cluster.operator_pod()["status"]["containerStatuses"]
    return all("running" in state["state"] for state in states)


@scenario("control")
def test_the_operator_is_away_but_at_start_and_end(cluster: Cluster) -> None:
    """From the first commits to the last step there is no operator; a trainer is killed meanwhile and comes back."""
    with job(cluster, "opdown", epochs=2) as made:
        before = running(made)
        with no_operator(cluster):
            cluster.kill(made.living()[1], "trainer")
            made.allow(10**9)
            wait(lambda: finished(made), 120, "both pods to end their stream with no operator")
            assert made.status()["state"] == "Running", "nobody was there to say otherwise"
        status = made.completes()
        assert status["planGeneration"] == 1
        assert status["restarts"]["failures"] == 1, status["restarts"]
        assert len({pod["metadata"]["uid"] for pod in made.pods()} - before) == 1, "the Job controller replaced one pod"


def finished(made: Job) -> bool:
    """Whether the Indexed Job is done with every index."""
    path = f"/apis/batch/v1/namespaces/{made.namespace}/jobs/{made.name}-1"
    return int(made.cluster.get(path)["status"].get("succeeded", 0)) == 2


@scenario("control")
def test_the_api_server_is_down_for_a_minute(cluster: Cluster) -> None:
    """Training goes on, also through a dead sidecar and a dead trainer of that time; commits arrive afterwards."""
    with job(cluster, "apidown", epochs=6) as made:
        # As users have it. After an outage a node is marked unreachable for a minute although its kubelet is well, and
        # Kubernetes itself evicts what tolerates that for less; our own patience (nodeLostSeconds) stays short.
        made.spec["template"]["spec"].pop("tolerations")
        before = running(made)
        pods = made.living()
        start = cluster.halt("kube-apiserver")
        at = time.monotonic()
        with made.moving():
            try:
                cluster.kill(pods[0], "lanefeed-sidecar")
                made.seen(MIDDLE + 100, rank=0)
                made.seen(MIDDLE + 100, rank=1)
                time.sleep(max(0.0, OUTAGE_SECONDS - (time.monotonic() - at)))
            finally:
                start()
            made.reaches(made.allowed + 10, seconds=90)
        status = made.completes(180)
        assert {pod["metadata"]["uid"] for pod in made.pods()} == before, "no pod was replaced"
        assert (status["planGeneration"], status["restarts"]["failures"]) == (1, 0)


@scenario("control")
def test_etcd_is_restarted(cluster: Cluster) -> None:
    """SIGKILL of etcd while a resize is under way, and back after five seconds."""
    with job(cluster, "etcd", epochs=3) as made:
        running(made)
        made.scale(3)
        start = cluster.halt("etcd")
        try:
            time.sleep(5)
        finally:
            start()
        made.leaves(60)
        made.seen(MIDDLE + 40, generation=2, seconds=120)
        status = made.completes(180)
        assert (status["planGeneration"], status["restarts"]["resizes"]) == (2, 1), status["restarts"]
