"""Kueue: the queue label is all that a user writes. A job waits, is admitted, preempted, comes back, and is exact."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from e2e.cluster import IMAGES, Cluster, Object, wait
from e2e.job import Job
from e2e.lifetime import job
from e2e.scenarios import scenario

MIDDLE = 42
QUEUE = "lanefeed-e2e"
KUEUE = "kueue.x-k8s.io/v1beta1"


def queue(namespace: str) -> list[Object]:
    """Room for the job of two pods and nothing beside it; who has a higher priority pushes others out."""
    quota = [
        # Two pods of a trainer (10m) and a sidecar (50m) each.
        {"name": "cpu", "nominalQuota": "150m"},
        {"name": "memory", "nominalQuota": "100Gi"},
    ]
    cover = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": QUEUE, "resources": quota}]}
    cluster_queue = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [cover],
    }
    return [
        made("ResourceFlavor", QUEUE),
        made("WorkloadPriorityClass", "lanefeed-low", value=1),
        made("WorkloadPriorityClass", "lanefeed-high", value=1000),
        made("ClusterQueue", QUEUE, spec=cluster_queue),
        made("LocalQueue", "gpus", namespace=namespace, spec={"clusterQueue": QUEUE}),
    ]


def made(kind: str, name: str, namespace: str = "", **fields: Any) -> Object:
    """An object of Kueue's."""
    meta = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": KUEUE, "kind": kind, "metadata": meta, **fields}


def urgent(namespace: str) -> Object:
    """A plain Job that needs the whole queue, for ten seconds."""
    container = {
        "name": "main",
        "image": IMAGES["trainer"],
        "command": ["sleep", "10"],
        "resources": {"requests": {"cpu": "140m", "memory": "16Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod = {
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    labels = {"kueue.x-k8s.io/queue-name": "gpus", "kueue.x-k8s.io/priority-class": "lanefeed-high"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "urgent", "namespace": namespace, "labels": labels},
        "spec": {"suspend": True, "template": {"spec": pod}},
    }


@contextmanager
def queued(cluster: Cluster) -> Iterator[Job]:
    """A job with the queue's label, and the queue."""
    with job(cluster, "queued", epochs=2) as found:
        cluster.apply(*queue(found.namespace))
        found.labels = {"kueue.x-k8s.io/queue-name": "gpus", "kueue.x-k8s.io/priority-class": "lanefeed-low"}
        found.spec["template"] = {"spec": found.pod(nodes=("node1", "node2"))}
        try:
            yield found
        finally:
            found.remove(wait=True)
            cluster.kubectl("delete", "clusterqueue,resourceflavor", QUEUE, "--wait=false", "--ignore-not-found")


@scenario("calm")
def test_preempted_by_kueue_and_admitted_again(cluster: Cluster) -> None:
    """An urgent Job takes the quota: the job leaves with its commit, waits, and goes on when there is room again."""
    with queued(cluster) as found:
        found.apply()
        found.reaches(MIDDLE, seconds=120)
        cluster.apply(urgent(found.namespace))
        found.wait(lambda: found.status()["state"] == "Queued" and not found.living(), 90, "Queued, with no pod")
        at = found.step()
        assert at >= MIDDLE
        path = f"/apis/batch/v1/namespaces/{found.namespace}/jobs/urgent"
        wait(lambda: cluster.get(path)["status"].get("succeeded") == 1, 90, "the urgent Job's end")
        found.reaches(at + 20, seconds=90)
        status = found.completes()
        assert status["restarts"]["failures"] == 0, status["restarts"]
