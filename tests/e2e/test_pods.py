"""Pods and containers die; cluster and operator stay. After each every global batch is the uninterrupted run's."""

import json
import re

from e2e.cluster import Cluster
from e2e.job import Job
from e2e.lifetime import job
from e2e.scenarios import scenario

CALM = ("node1", "node2")
OWN = "involvedObject.kind=ShardedTrainingJob"
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
        assert re.search(r"happy +Running +2 +2 +0 +\d+ ", made.look("get", "stj")), (
            "state, replicas, ready, epoch, step"
        )
        made.look("get", "stj,job,pod,configmap,service")
        status = made.completes()
        assert status["restarts"] == {**status["restarts"], "failures": 0, "disruptions": 0, "resizes": 0}
        assert status["planGeneration"] == 1
        assert "Complete" in made.look("get", "stj", "-o", "wide")
        assert "each sample consumed exactly once" in made.look("describe", "stj", made.name)


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
        # Kubernetes counts a pod that somebody deleted as failed: it is one of the index's many.
        assert status["restarts"]["failures"] <= 1
        assert status["planGeneration"] == 1


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
    """SIGKILL of a sidecar: it starts again in place, the trainer goes on with no restart of its own."""
    with job(cluster, "sidecar", epochs=2) as made:
        running(made)
        victim = made.living()[1]
        cluster.kill(victim, "lanefeed-sidecar")
        made.wait(lambda: made.sidecar_restarts(victim) == 1, 60, "the sidecar's restart")
        made.reaches(MIDDLE + 40)
        assert len({pod["metadata"]["uid"] for pod in made.pods()}) == 2
        status = made.completes()
        assert status["restarts"]["failures"] == 0, "a sidecar's death is no failure of the program"


@scenario("calm")
def test_scaled_up_and_down_within_an_epoch(cluster: Cluster) -> None:
    """2 -> 3 -> 1 by `kubectl scale`: all ranks leave at one agreed step, the next plan begins there."""
    with job(cluster, "scaled", epochs=3) as made:
        running(made)
        made.scale(3)
        first = made.leaves()
        made.seen(MIDDLE + 60, generation=2)
        made.reaches(MIDDLE + 80)
        made.scale(1)
        second = made.leaves()
        made.seen(MIDDLE + 120, generation=3)
        status = made.completes()
        assert (status["planGeneration"], status["replicas"], status["restarts"]["resizes"]) == (3, 1, 2)
        told = made.look("get", "events", "--sort-by=.metadata.creationTimestamp", "--field-selector=" + OWN)
        assert f"leave at step {first}" in told
        made.look("get", "stj", "-o", "wide")
        for generation, step, ranks in ((1, first, 2), (2, second, 3)):
            last = [max(s for _, s, g, r in made.times() if (g, r) == (generation, rank)) for rank in range(ranks)]
            assert last == [step] * ranks, f"plan {generation} was to stop at {step}; its ranks left at {last}"


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
