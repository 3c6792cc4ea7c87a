"""What ends a job, revives it or changes its size without anybody's fault: the spec's own fields, and an autoscaler."""

import time
from contextlib import ExitStack

from e2e.cluster import Cluster, Object, wait
from e2e.job import Job
from e2e.lifetime import job
from e2e.scenarios import scenario
from lanefeed_operator.api.status import from_time

MIDDLE = 42
#: The third one is taken away meanwhile, by other scenarios.
NODES = ("node1", "node2")
#: A node of the job's own choice: taken away without touching anybody else on it.
MARK = "e2e.lanefeed.dev/room"

#: Two ranks in a pod, as torchrun would start them: each finds its own by LOCAL_RANK. 75 and failures are handed on.
TWO_RANKS = """
import os, signal, subprocess, sys
run = [sys.executable, "/e2e/trainer.py"]
ranks = [subprocess.Popen(run, env={**os.environ, "LOCAL_RANK": str(rank)}) for rank in (0, 1)]
signal.signal(signal.SIGTERM, lambda *_: [rank.terminate() for rank in ranks])
codes = [rank.wait() for rank in ranks]
sys.exit(max(128 - code if code < 0 else code for code in codes))
"""


def here(made: Job, **env: str) -> Job:
    """On the nodes that stay; variables for its trainers."""
    made.spec["template"] = {"spec": made.pod(nodes=NODES, env=env)}
    return made


def running(made: Job) -> Job:
    """Train to the middle of the first epoch."""
    made.apply()
    made.reaches(MIDDLE, seconds=120)
    return made


def fails(made: Job, reason: str) -> Object:
    """Until the job has Failed for this reason, and none of its pods is left; its condition."""
    wait(lambda: made.status().get("state") == "Failed", 90, f"{made.name} to fail with {reason}")
    wait(lambda: not made.living(), 60, f"the pods of {made.name} to end")
    status = made.status()
    found: Object = next(c for c in status["conditions"] if c["type"] == "Failed")
    assert (found["reason"], status["reason"]) == (reason, reason), found
    made.look("get", "stj", made.name)
    return found


def revived(made: Job, token: str, **spec: object) -> Object:
    """Change restartToken, and let the job run to its end from its last commit; its status."""
    at = made.step()
    made.patch(restartToken=token, **spec)
    wait(lambda: made.status()["state"] != "Failed", 60, f"{made.name} to go on")
    status = made.completes()
    assert status["plan"]["start"] == at, f"it went on from step {status['plan']['start']}, its last commit was {at}"
    return status


@scenario("calm")
def test_an_autoscaler_raises_it(cluster: Cluster) -> None:
    """`kubectl autoscale` of the scale subresource: minReplicas above the job's size needs no metric to act on."""
    with job(cluster, "autoscaled", epochs=2) as made:
        running(here(made))
        made.look("autoscale", f"stj/{made.name}", "--min=3", "--max=4", "--cpu-percent=80")
        made.leaves(90)
        made.seen(MIDDLE + 20, generation=2, seconds=90)
        path = f"/apis/autoscaling/v2/namespaces/{made.namespace}/horizontalpodautoscalers/{made.name}"

        def read() -> Object | None:
            status: Object = cluster.get(path)["status"]
            able = [c for c in status.get("conditions", ()) if c["type"] == "AbleToScale" and c["status"] == "True"]
            return status if able and status.get("currentReplicas") == 3 else None

        scaler = made.wait(read, 90, "the autoscaler to read 3 replicas from the scale subresource")
        made.look("describe", "hpa", made.name)
        assert scaler["desiredReplicas"] == 3, scaler
        status = made.completes()
        assert (status["planGeneration"], status["replicas"], status["restarts"]["resizes"]) == (2, 3, 1)


@scenario("calm")
def test_a_job_that_has_failed_is_revived(cluster: Cluster) -> None:
    """Two side by side: one whose budget (maxRestarts 0) is spent, one that ran for too long. Both then complete."""
    with ExitStack() as stack:
        spent = stack.enter_context(job(cluster, "spent", epochs=1, maxRestarts=0))
        late = stack.enter_context(job(cluster, "late", epochs=1))
        here(spent).apply()
        running(here(late))
        spent.reaches(MIDDLE, seconds=120)
        cluster.kill(spent.living()[1], "trainer")
        seconds = int(time.time() - from_time(late.status()["startTime"])) + 5
        late.patch(activeDeadlineSeconds=seconds)
        said = fails(late, "DeadlineExceeded")["message"]
        assert f"spec.activeDeadlineSeconds ({seconds} s)" in said
        assert "restartToken" in said
        said = fails(spent, "TooManyRestarts")["message"]
        assert "failed 1 times and spec.maxRestarts is 0" in said
        assert "restartToken" in said
        revived(late, "again", activeDeadlineSeconds=None)
        status = revived(spent, "again", maxRestarts=5)
        assert status["restarts"]["failures"] == 1, status["restarts"]


@scenario("calm")
def test_it_shrinks_where_a_pod_finds_no_place(cluster: Cluster) -> None:
    """A pod's node has no room for it any more: after shrinkAfterSeconds the job goes on with the pods that it has."""
    with job(cluster, "shrunk", epochs=2) as made:
        pod = made.pod(nodes=NODES)
        term = {
            "labelSelector": {"matchLabels": {"lanefeed.dev/job": made.name, "lanefeed.dev/role": "pods"}},
            # The indexer has the pod's affinity too, and is not meant.
            "matchLabelKeys": ["batch.kubernetes.io/controller-uid"],
            "topologyKey": "kubernetes.io/hostname",
        }
        apart = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        pod |= {"nodeSelector": {MARK: "yes"}, "affinity": pod["affinity"] | {"podAntiAffinity": apart}}
        made.spec["template"] = {"spec": pod}
        cluster.kubectl("label", "node", *NODES, f"{MARK}=yes", "--overwrite")
        try:
            running(made)
            victim = made.living()[1]
            cluster.kubectl("label", "node", victim["spec"]["nodeName"], f"{MARK}-")
            name = victim["metadata"]["name"]
            cluster.kubectl("-n", made.namespace, "delete", "pod", name, "--force", "--grace-period=0")
            # Not from the start: a busy scheduler may take that long for the first pods.
            made.patch(elastic={"shrinkAfterSeconds": 5})
            made.wait(lambda: made.status()["replicas"] == 1, 90, "a plan of one pod")
            made.seen(MIDDLE + 20, generation=2, seconds=90)
            status = made.completes()
        finally:
            cluster.kubectl("label", "node", *NODES, f"{MARK}-")
        assert (status["plan"]["reason"], status["plan"]["replicas"]) == ("Shrink", 1), status["plan"]
        assert made.spec["replicas"] == made.object()["spec"]["replicas"], "what is wanted stays as it was"


@scenario("calm")
def test_trainers_that_exit_0_in_mid_epoch(cluster: Cluster) -> None:
    """Their Job says Complete, and the stream had not ended: all ranks of one job, one of two of the other."""
    with ExitStack() as stack:
        wrong = {
            "quit-all": f"0:{MIDDLE} 1:{MIDDLE}",
            "quit-one": f"0:{MIDDLE}",
        }
        jobs = []
        for name, quits in wrong.items():
            made = stack.enter_context(job(cluster, name))
            made.allow(10**9)
            jobs.append(here(made, CHAOS_QUITS=quits).apply())
        for made in jobs:
            made.wait(lambda made=made: made.status().get("planGeneration") == 2, 180, "a second plan")
        for made in jobs:
            status = made.completes()
            assert status["restarts"]["interrupted"] == 1, status["restarts"]
            assert status["restarts"]["failures"] == 0, status["restarts"]
            assert 0 < status["plan"]["start"] <= MIDDLE, "it goes on from the last commit before the exit"


@scenario("calm")
def test_two_processes_share_a_sidecar(cluster: Cluster) -> None:
    """ranksPerReplica 2, a process a rank; a pod is deleted by force on the way."""
    with job(cluster, "pairs", ranksPerReplica=2, epochs=2) as made:
        pod = made.pod(nodes=NODES)
        pod["containers"][0]["command"] = ["python", "-c", TWO_RANKS]
        made.spec["template"] = {"spec": pod}
        running(made)
        assert {rank for *_, rank in made.times()} == {0, 1, 2, 3}
        victim = made.living()[1]["metadata"]["name"]
        cluster.kubectl("-n", made.namespace, "delete", "pod", victim, "--force", "--grace-period=0")
        made.reaches(MIDDLE + 40, seconds=90)
        status = made.completes()
        assert status["planGeneration"] == 1
