"""Frees the index of a pod whose node nobody hears of, as the pod garbage collector does for a node that is gone.

With podReplacementPolicy Failed the Job waits for a phase that no kubelet will report, and a forced deletion alone
waits for the Job's finalizer: so the status is written first (Failed, DisruptionTarget: not a failure of the program),
then the pod is deleted without grace. Seen on a real cluster: replaced 3 s later, `failed` not counted. Called by
actions, after the coordinator has fenced the pod.
"""

from datetime import UTC, datetime

from lanefeed_operator.kube.api import PODS, KubeApi, NotFound, Object
from lanefeed_operator.kube.facts import PodFacts

__all__ = ["free_pod"]

REASON = "NodeLost"


def free_pod(api: KubeApi, pod: PodFacts, reason: str, now: float) -> Object | None:
    """Mark the pod failed by disruption and delete it; its last form, None where it was gone. Raises ApiError."""
    try:
        found = api.get(PODS, pod.namespace, pod.name)
        if found["metadata"]["uid"] != pod.uid:
            return None
        if (found.get("status") or {}).get("phase") not in ("Failed", "Succeeded"):
            found = api.patch(PODS, pod.namespace, pod.name, _failed(found, reason, now), subresource="status")
    except NotFound:
        return None
    api.delete(PODS, pod.namespace, pod.name, uid=pod.uid, grace=0)
    return found


def _failed(found: Object, reason: str, now: float) -> Object:
    """The patch. A merge patch replaces the list of conditions whole; the version makes sure that none is lost."""
    text = f"Lanefeed: {reason}"
    target = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": REASON,
        "message": text,
        "lastTransitionTime": datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    kept = [x for x in (found.get("status") or {}).get("conditions") or () if x.get("type") != "DisruptionTarget"]
    meta = found["metadata"]
    return {
        "metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]},
        "status": {"phase": "Failed", "reason": REASON, "message": text, "conditions": [*kept, target]},
    }
