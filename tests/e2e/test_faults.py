"""What a user got wrong in a job that the API server took: each is said in `kubectl get` and `describe`, soon.

Five jobs side by side, none of which ever trains. How long it takes is counted from the cluster's own times: when the
scheduler, the kubelet or the container itself first showed the cause, until `status.reason` says it. That number goes
to .e2e/times.json beside what is promised; it fails only at several times of that, since a busy machine is slow.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime

from e2e.cluster import Cluster, Object, wait
from e2e.job import Job
from e2e.lifetime import job, took
from e2e.scenarios import scenario

#: Design of the API: what is wrong is said within that.
PROMISED = 30
#: A machine of two cores that runs eight pods beside these may be that much slower.
ROOM = 3.0

#: A process 1 that goes when it is asked to.
IDLE = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); signal.pause()"

Cause = Callable[["Fault"], float | None]


@dataclass
class Fault:
    """One wrong job. `shown`: when the cluster first knew; `said`: when `status.reason` said it."""

    name: str
    #: What is wrong, put into the pod's spec.
    plant: Callable[[Object], None]
    #: When the cluster first knew, None before.
    cause: Cause
    #: REASON of `kubectl get`.
    reason: str
    #: The condition's message: which pod, and what to do.
    told: str
    made: Job = field(init=False)
    shown: float | None = None
    said: float | None = None

    def look(self) -> bool:
        """Whether it is said; notes when."""
        self.shown = self.shown or self.cause(self)
        if self.said is None and self.made.status().get("reason") == self.reason:
            self.said = time.time()
        return self.said is not None

    @property
    def seconds(self) -> float:
        """From cause to word. Times of the cluster are whole seconds."""
        self.shown = self.shown or self.cause(self)
        assert self.said, f"{self.name} was not said"
        assert self.shown, f"{self.name}: the cluster did not know when it was said"
        return max(0.0, self.said - self.shown)


def stamp(text: str) -> float:
    """A time of the API server."""
    return datetime.fromisoformat(text).timestamp()


# ---- what is wrong -------------------------------------------------------------------------------------------------


def trainer(pod: Object) -> Object:
    """The container that trains."""
    found: Object = pod["containers"][0]
    return found


def too_large(pod: Object) -> None:
    """No node is that large."""
    trainer(pod)["resources"]["requests"]["cpu"] = "1000"


def no_image(pod: Object) -> None:
    """An image that nobody built."""
    trainer(pod)["image"] = "kube.test/nobody-built-this:1"


def no_secret(pod: Object) -> None:
    """A variable from a Secret that is not there."""
    reference = {"secretKeyRef": {"name": "bucket-key", "key": "token"}}
    trainer(pod)["env"].append({"name": "TOKEN", "valueFrom": reference})


def exits(pod: Object) -> None:
    """A trainer that is done before it begins."""
    trainer(pod)["command"] = ["python", "-c", "print('nothing to do')"]


def idles(pod: Object) -> None:
    """A trainer that never calls connect()."""
    trainer(pod)["command"] = ["python", "-c", IDLE]


# ---- when the cluster knew -----------------------------------------------------------------------------------------


def unplaced(fault: Fault) -> float | None:
    """The scheduler's word, in the pod's conditions."""
    found = [c for pod in fault.made.pods() for c in pod["status"].get("conditions", ()) if c["type"] == "PodScheduled"]
    return min((stamp(c["lastTransitionTime"]) for c in found if c["status"] == "False"), default=None)


def kubelet_failed(fault: Fault) -> float | None:
    """The kubelet's first event Failed about a pod; a container that waits has no time of its own."""
    path = f"/apis/events.k8s.io/v1/namespaces/{fault.made.namespace}/events"
    times = [
        event.get("deprecatedFirstTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
        for event in fault.made.cluster.get(path)["items"]
        if event["reason"] == "Failed" and event["regarding"]["kind"] == "Pod"
    ]
    return min(map(stamp, times), default=None)


def _states(fault: Fault, state: str, field_: str) -> Iterator[float]:
    for pod in fault.made.pods():
        for container in pod["status"].get("containerStatuses", ()):
            at = container.get("state", {}).get(state, {}).get(field_)
            if container["name"] == "trainer" and at:
                yield stamp(at)


def ended(fault: Fault) -> float | None:
    """All trainers have ended: the last one's end."""
    found = list(_states(fault, "terminated", "finishedAt"))
    return max(found) if len(found) == fault.made.spec["replicas"] else None


def began(fault: Fault) -> float | None:
    """All trainers run: the last one's start."""
    found = list(_states(fault, "running", "startedAt"))
    return max(found) if len(found) == fault.made.spec["replicas"] else None


def faults() -> list[Fault]:
    """All five."""
    return [
        Fault("toolarge", too_large, unplaced, "Unschedulable", r"pod {pod}: .*free or add nodes"),
        Fault("noimage", no_image, kubelet_failed, "ImagePullBackOff", r"of pod {pod}: .*check the image's name"),
        Fault("nosecret", no_secret, kubelet_failed, "CreateContainerConfigError", r"pod {pod}: .*bucket-key.*make"),
        Fault("exits", exits, ended, "ExitedEarly", r"{pod}.*let .* read the loader to its end"),
        Fault("idles", idles, began, "TrainerNotConnected", r"{pod}.*connect\(\)"),
    ]


def reads_well(fault: Fault) -> None:
    """REASON in `kubectl get`; condition and event name the pod and what to do."""
    made = fault.made
    assert re.search(rf"^{made.name} +\S+ +{fault.reason} ", made.look("get", "stj"), re.MULTILINE)
    told = made.look("describe", "stj", made.name)
    wanted = re.compile(fault.told.replace("{pod}", rf"{made.name}-\d+-\d+\S*"), re.DOTALL)
    said = [c["message"] for c in made.status()["conditions"] if c["reason"] == fault.reason]
    assert any(wanted.search(text) for text in said), f"no condition says {wanted.pattern!r}: {said}"
    notes = [event.get("note", "") for event in made.events() if event["reason"] == fault.reason]
    assert any(wanted.search(text) for text in notes), f"no event says {wanted.pattern!r}: {made.told()}"
    assert all(text.split(";")[0] in told for text in said), told


def said(wrong: list[Fault]) -> bool:
    """Whether all are. Each is looked at in every round: when it was said is measured."""
    looks = [fault.look() for fault in wrong]
    return all(looks)


@scenario("calm")
def test_what_is_wrong_is_said_within_thirty_seconds(cluster: Cluster) -> None:
    """No node fits, no image, no Secret, a trainer that exits 0 at once, one that never connects."""
    with ExitStack() as stack:
        wrong = faults()
        for fault in wrong:
            fault.made = stack.enter_context(job(cluster, f"fault-{fault.name}"))
            fault.made.spec["elastic"] |= {"stopGraceSeconds": 1}
            # Not on the node that other scenarios take away.
            pod = fault.made.pod(nodes=("node1", "node2"))
            fault.plant(pod)
            fault.made.spec["template"] = {"spec": pod}
        for fault in wrong:
            fault.made.apply()
        wait(lambda: said(wrong), 240, "all five to be said")
        for fault in wrong:
            reads_well(fault)
        for fault in wrong:
            took(f"{fault.reason}: cause -> word", fault.seconds, PROMISED, room=ROOM)
