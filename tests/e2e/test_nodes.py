"""Nodes are lost: crashed, cut off, drained. Jobs have pods on node2 and node3; node3 is the one that goes."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from e2e.cluster import Cluster, Object, wait
from e2e.job import Job
from e2e.lifetime import job
from e2e.scenarios import scenario

MIDDLE = 42
LOST = 3
NODES = ("node2", f"node{LOST}")


def running(made: Job) -> Object:
    """Train to the middle of the first epoch; the pod on the node that goes."""
    made.spec["template"] = {"spec": made.pod(nodes=NODES)}
    made.apply()
    made.reaches(MIDDLE, seconds=120)
    return next(pod for pod in made.living() if pod["spec"]["nodeName"] == f"node{LOST}")


@contextmanager
def taken(cluster: Cluster, away: str, back: str) -> Iterator[None]:
    """Take the node away, and give it back whatever happens."""
    cluster.node(away, LOST)
    try:
        yield
    finally:
        cluster.node(back, LOST)


def ready(cluster: Cluster, *, wanted: bool = True) -> None:
    """Until the node is there for the next scenario; or until it is marked as lost."""

    def look() -> bool:
        conditions = cluster.get(f"/api/v1/nodes/node{LOST}")["status"]["conditions"]
        return any(c["type"] == "Ready" and (c["status"] == "True") == wanted for c in conditions)

    wait(look, 60, f"node{LOST} to be {'ready again' if wanted else 'marked as lost'}")


def replaced(made: Job, victim: Object, seconds: float = 90) -> None:
    """Until another pod runs at the victim's index."""
    index = victim["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]

    def look() -> bool:
        found = [
            p for p in made.living() if p["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] == index
        ]
        return any(p["metadata"]["uid"] != victim["metadata"]["uid"] for p in found)

    made.wait(look, seconds, f"another pod at index {index}")


@scenario("nodes")
def test_a_node_crashes_and_comes_back(cluster: Cluster) -> None:
    """Its pod cannot say that it is gone: the operator fences and frees it, and the index goes on elsewhere."""
    with job(cluster, "crashed", epochs=2) as made:
        victim = running(made)
        with taken(cluster, "crash", "restore"):
            replaced(made, victim)
            made.reaches(MIDDLE + 40)
        ready(cluster)
        status = made.completes()
        assert status["restarts"]["lost"] == 1, status["restarts"]
        assert status["restarts"]["failures"] == 0, "a lost node is no failure of the program"


@scenario("nodes")
def test_a_zombie_trains_on_behind_a_cut(cluster: Cluster) -> None:
    """A node is cut off while its pod trains on: fenced, replaced; what it says when it is back changes nothing."""
    with job(cluster, "zombie", epochs=3) as made:
        victim = running(made)
        rank = int(victim["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"])
        # Its kubelet hears only afterwards that the pod has to go: at once, it might not get to a report.
        with taken(cluster, "freeze", "thaw"):
            with taken(cluster, "cut", "join"):
                time.sleep(1)
                at = time.time()
                made.seen(MIDDLE + 60, rank=rank)
                assert max(t for t, _, _, r in made.times() if r == rank) > at, "it trains on while it is cut off"
                replaced(made, victim)
                made.reaches(MIDDLE + 70)
            # It is back.
            wait(lambda: fenced(cluster) > 0, 60, "a report of the zombie that is refused and counted")
        ready(cluster)
        made.wait(lambda: victim["metadata"]["uid"] not in uids(made), 60, "the zombie's end")
        status = made.completes()
        assert status["restarts"]["lost"] == 1
        assert status["restarts"]["failures"] == 0, "a lost node is no failure of the program"


@scenario("nodes")
def test_a_node_is_marked_while_its_pod_trains_on(cluster: Cluster) -> None:
    """A kubelet hangs for longer than nodeLostSeconds: the pod's reports say that it lives, so nothing is replaced."""
    with job(cluster, "frozen", epochs=2) as made:
        pod = made.pod(nodes=NODES)
        # As users have it: Kubernetes itself evicts after 300 s.
        pod.pop("tolerations")
        made.spec["template"] = {"spec": pod}
        made.apply()
        made.reaches(MIDDLE, seconds=120)
        before = uids(made)
        with taken(cluster, "freeze", "thaw"):
            with made.moving():
                ready(cluster, wanted=False)
                time.sleep(made.spec["elastic"]["nodeLostSeconds"] + 5)
            made.reaches(made.allowed + 20)
        ready(cluster)
        status = made.completes()
        assert uids(made) == before, "no pod was replaced"
        assert (status["planGeneration"], status["restarts"]["lost"]) == (1, 0), status["restarts"]


def uids(made: Job) -> set[str]:
    """UIDs of the job's pods."""
    return {pod["metadata"]["uid"] for pod in made.pods()}


def fenced(cluster: Cluster) -> float:
    """Reports that the operator refused as those of a pod that is no more, from its /metrics."""
    address = cluster.operator_pod()["status"]["podIP"]
    said = cluster.run(["curl", "-sf", f"http://{address}:9405/metrics"])
    lines = [
        line for line in said.splitlines() if line.startswith("lanefeed_operator_reports_total") and "fenced" in line
    ]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


@scenario("nodes")
def test_a_node_is_drained(cluster: Cluster) -> None:
    """`kubectl drain`: ranks make a checkpoint in the grace time, so the steps until then are not trained again."""
    with job(cluster, "drained", epochs=2) as made:
        victim = running(made)
        drain = [
            "drain",
            f"node{LOST}",
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            "--timeout=170s",
            "--pod-selector=lanefeed.dev/job=drained",
        ]
        try:
            with ThreadPoolExecutor(1) as pool:
                drained = pool.submit(cluster.kubectl, *drain)
                made.leaves()
                drained.result()
            replaced(made, victim)
            made.reaches(MIDDLE + 60)
        finally:
            cluster.kubectl("uncordon", f"node{LOST}")
        status = made.completes()
        assert status["restarts"]["failures"] == 0, status["restarts"]
        assert repeated(made) == 0, "a drain loses no step"


def repeated(made: Job) -> int:
    """Steps that some rank has trained more than once."""
    steps = [(step, rank) for _, step, _, rank in made.times()]
    return len(steps) - len(set(steps))
