"""How long a recovery takes (design G9), measured alone on the machine; the numbers go to .e2e/times.json.

On two idle cores they are 0.8, 2 and 7 s. Half of the promise and more is what a machine takes to start containers and
Python: where that is slower, a figure fails only above twice of what is promised.
"""

import calendar
import time
from itertools import pairwise

from e2e.cluster import RELEASE, SYSTEM, Cluster
from e2e.job import Job
from e2e.lifetime import job, took
from e2e.scenarios import scenario

MIDDLE = 42
ROOM = 2.0
FAR = 10**9


def stamp(text: str) -> float:
    """A time of the API server, in whole seconds."""
    return calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ"))


def scheduling(made: Job) -> float:
    """Seconds that pods of the present plan waited for a node: the slowest."""
    slowest = 0.0
    for pod in made.living():
        for condition in pod["status"]["conditions"]:
            if condition["type"] == "PodScheduled":
                waited = stamp(condition["lastTransitionTime"]) - stamp(pod["metadata"]["creationTimestamp"])
                slowest = max(slowest, waited)
    return slowest


@scenario("control")
def test_a_sidecar_is_back_within_three_seconds(cluster: Cluster) -> None:
    """The longest time without a batch on its rank, from the kill on: what the trainer saw of it."""
    with job(cluster, "fast-sidecar", epochs=8) as made:
        made.apply()
        made.reaches(MIDDLE, seconds=120)
        victim = made.living()[1]
        made.allow(FAR)
        time.sleep(0.5)
        at = cluster.kill(victim, "lanefeed-sidecar")
        made.wait(lambda: made.sidecar_restarts(victim) == 1, 30, "the sidecar's restart")
        made.completes()
        times = [t for t, _, _, rank in made.times() if rank == 1]
        took("sidecar killed -> next batch", max(b - a for a, b in pairwise(times) if b > at), 3, room=ROOM)


@scenario("control")
def test_an_operator_is_back_within_ten_seconds(cluster: Cluster) -> None:
    """SIGKILL of the operator, then `kubectl scale`: until the new operator has looked at the change."""
    with job(cluster, "fast-operator", epochs=4) as made:
        made.apply()
        made.reaches(MIDDLE, seconds=120)
        # The kubelet waits before the second restart of one pod; its patience is not what is measured.
        cluster.kubectl("-n", SYSTEM, "rollout", "restart", f"deployment/{RELEASE}")
        cluster.kubectl("-n", SYSTEM, "rollout", "status", f"deployment/{RELEASE}", "--timeout=170s")
        at = cluster.kill(cluster.operator_pod(), "operator")
        made.scale(3)
        made.wait(lambda: made.status()["observedGeneration"] == made.object()["metadata"]["generation"], 60, "a look")
        took("operator killed -> first reconcile", time.time() - at, 10, room=ROOM)
        made.leaves()
        made.seen(MIDDLE + 40, generation=2)
        made.completes()


@scenario("control")
def test_a_resize_takes_fifteen_seconds_at_most(cluster: Cluster) -> None:
    """From `kubectl scale` to the first batch of the new plan, less what the scheduler took."""
    with job(cluster, "fast-resize", epochs=4) as made:
        made.apply()
        made.reaches(MIDDLE, seconds=120)
        at = made.scale(3)
        made.leaves()
        made.seen(MIDDLE + 10, generation=2)
        first = min(t for t, _, generation, _ in made.times() if generation == 2)
        took("kubectl scale 2 -> 3 -> first batch, less scheduling", first - at - scheduling(made), 15, room=ROOM)
        made.completes()
