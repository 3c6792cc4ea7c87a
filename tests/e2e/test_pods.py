"""Pods and containers die; cluster and operator stay. After each every global batch is the uninterrupted run's."""

import json
import time
from itertools import pairwise

from e2e.cluster import Cluster
from e2e.job import Job
from e2e.lifetime import job, took
from e2e.scenarios import scenario

CALM = ("node1", "node2")
#: Later than a commit (every 7 steps), with many steps of the epoch still to come.
MIDDLE = 42


def running(made: Job, step: int = MIDDLE) -> Job:
    """Apply it, and let it train to the middle of its first epoch."""
    made.spec["template"] = {"spec": made.pod(nodes=CALM)}
    made.apply()
    made.reaches(step, seconds=120)
    return made


@scenario("calm")
def test_a_job_runs_to_its_end(cluster: Cluster) -> None:
    """Nothing happens to it: applied, trained for three epochs, Complete."""
    with job(cluster, "happy", epochs=3) as made:
        running(made)
        status = made.completes()
        assert status["restarts"] == {**status["restarts"], "failures": 0, "disruptions": 0, "resizes": 0}
        assert status["planGeneration"] == 1


@scenario("calm")
def test_a_pod_deleted_by_force(cluster: Cluster) -> None:
    """`kubectl delete pod --force`: the same index starts again from the last commit, in the same plan."""
    with job(cluster, "deleted", epochs=2) as made:
        running(made)
        victim = made.living()[1]
        cluster.kubectl(
            "-n", made.namespace, "delete", "pod", victim["metadata"]["name"], "--force", "--grace-period=0"
        )
        made.reaches(MIDDLE + 40)
        assert victim["metadata"]["uid"] not in {pod["metadata"]["uid"] for pod in made.living()}
        status = made.completes()
        assert status["restarts"]["failures"] == 0, "a deleted pod is no failure of the program"


@scenario("calm")
def test_a_trainer_killed(cluster: Cluster) -> None:
    """SIGKILL of a trainer: its pod fails, the Job controller starts the index again, one failure is counted."""
    with job(cluster, "trainer", epochs=2) as made:
        running(made)
        cluster.kill(made.living()[1], "trainer")
        made.reaches(MIDDLE + 40)
        status = made.completes()
        assert status["restarts"]["failures"] == 1, status["restarts"]
        assert status["planGeneration"] == 1


@scenario("calm")
def test_a_sidecar_killed(cluster: Cluster) -> None:
    """SIGKILL of a sidecar: it starts again in place, the trainer goes on with no restart of its own (G9: 3 s)."""
    with job(cluster, "sidecar", epochs=2) as made:
        running(made)
        victim = made.living()[1]
        made.allow(10**9)
        at = cluster.kill(victim, "lanefeed-sidecar")
        made.wait(lambda: sidecar_restarts(made, victim) == 1, 30, "the sidecar's restart")
        status = made.completes()
        times = [t for t, _, _, rank in made.times() if rank == 1]
        gaps = [after - before for before, after in pairwise(times) if after > at]
        took("sidecar killed -> next batch", max(gaps), 3)
        assert status["restarts"]["failures"] == 0, "a sidecar's death is no failure of the program"
        assert len({pod["metadata"]["uid"] for pod in made.pods()}) == 2


def sidecar_restarts(made: Job, pod: dict[str, object]) -> int:
    """How often the sidecar of a pod has begun again."""
    found = next(p for p in made.pods() if p["metadata"]["uid"] == pod["metadata"]["uid"])  # type: ignore[index]
    states = found["status"]["initContainerStatuses"]
    return next(int(s["restartCount"]) for s in states if s["name"] == "lanefeed-sidecar")


@scenario("calm")
def test_scaled_up_and_down_within_an_epoch(cluster: Cluster) -> None:
    """2 -> 3 -> 1 by `kubectl scale`: all ranks leave at one agreed step, the next plan begins there."""
    with job(cluster, "scaled", epochs=2) as made:
        running(made)
        at = made.scale(3)
        made.seen(MIDDLE + 20, generation=2)
        first = min(t for t, _, generation, _ in made.times() if generation == 2)
        took("kubectl scale 2 -> 3 -> first batch, less scheduling", first - at - scheduling(made), 15)
        made.reaches(MIDDLE + 40)
        made.scale(1)
        made.seen(MIDDLE + 60, generation=3)
        status = made.completes()
        assert (status["planGeneration"], status["replicas"], status["restarts"]["resizes"]) == (3, 1, 2)


def scheduling(made: Job) -> float:
    """Seconds that pods of the present plan waited for a node: the slowest."""
    slowest = 0.0
    for pod in made.living():
        begun = stamp(pod["metadata"]["creationTimestamp"])
        for condition in pod["status"]["conditions"]:
            if condition["type"] == "PodScheduled":
                slowest = max(slowest, stamp(condition["lastTransitionTime"]) - begun)
    return slowest


def stamp(text: str) -> float:
    """A time of the API server."""
    return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ")) - time.timezone


@scenario("calm")
def test_suspended_and_resumed(cluster: Cluster) -> None:
    """`spec.suspend`: a checkpoint, then no pod is left; later it goes on where it was."""
    with job(cluster, "suspended", epochs=2) as made:
        running(made)
        made.patch(suspend=True)
        made.wait(lambda: made.status()["state"] == "Suspended" and not made.pods(), 60, "Suspended, without pods")
        at = made.step()
        assert at >= MIDDLE
        made.patch(suspend=False)
        made.reaches(at + 20)
        status = made.completes()
        assert status["restarts"]["suspends"] == 1


@scenario("calm")
def test_a_pod_evicted(cluster: Cluster) -> None:
    """The eviction API, as a drain uses it: ranks make a checkpoint inside the grace time, so no step is lost."""
    with job(cluster, "evicted", epochs=2) as made:
        running(made)
        victim = made.living()[1]
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": victim["metadata"]["name"], "namespace": made.namespace},
        }
        path = f"/api/v1/namespaces/{made.namespace}/pods/{victim['metadata']['name']}/eviction"
        cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(body))
        gone = victim["metadata"]["uid"]
        made.wait(lambda: gone not in {p["metadata"]["uid"] for p in made.living()}, 60, "the pod's end")
        made.reaches(MIDDLE + 40)
        status = made.completes()
        assert status["restarts"]["failures"] == 0, status["restarts"]
