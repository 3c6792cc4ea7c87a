"""Pods on nodes that nobody hears of: fence first, so that a zombie's reports never count, then free the index.

A pod whose sidecar reports is not lost, whatever its node is marked as: reports come straight here, and after an outage
of the API server a node can be marked for a minute although its kubelet and its pods are well. Reports count while the
job moves: a pod that its peers cannot reach reports on for ever, and no kubelet would restart it. Once the pod is being
deleted the node controller has decided, and reports keep nothing. Pods of plans that are over are freed too: nothing
starts while one of them seems to live (`running.strays`).
"""

from lanefeed_operator.reconcile.context import Pass
from lanefeed_operator.reconcile.stop import HEAR_SECONDS
from lanefeed_operator.reconcile.types import Fence, Pod

__all__ = ["lost", "silent_since"]

#: UIDs written ahead at a time; the rest follows once these are gone.
MAX_FENCED = 64


def lost(p: Pass) -> bool:
    """Never ends the pass."""
    limit = p.job.spec.elastic.node_lost_seconds
    living = [(g, pod) for g, children in sorted(p.observed.children.items()) for pod in children.alive]
    if not living or not limit:
        return False
    uids = {pod.uid for _, pod in living}
    known = [uid for uid in p.status.plan.fenced if uid in uids]
    for generation, pod in living:
        since = silent_since(p, pod)
        if since is None:
            continue
        left = max(limit - (p.now - since), _unheard(p, pod))
        if pod.uid in p.before.plan.fenced:
            p.act(Fence(generation, pod.index, pod.uid, f"its node is lost for {limit} s"))
        elif left > 0:
            p.look_again(left)
        elif pod.uid not in known and len(known) < MAX_FENCED:
            known.append(pod.uid)
            p.count("NodeLost", lost=1)
            p.look_again(0)
    if known != p.status.plan.fenced:
        p.set_plan(fenced=known)
    return False


def silent_since(p: Pass, pod: Pod) -> float | None:
    """Since when the pod's node was not heard of, nor its sidecar of a job that moves; None: the node is well."""
    if pod.lost_since is None or pod.leaves_by is not None:
        return pod.lost_since
    moved = p.observed.feed.moved
    return max([pod.lost_since, *(min(at, moved) for at in _reports(p, pod))])


def _reports(p: Pass, pod: Pod) -> list[float]:
    """When the pod's ranks were heard of last."""
    feed = p.observed.feed
    return [view.at for view in feed.ranks.values() if view.pod_uid == pod.uid] if _ours(p) else []


def _ours(p: Pass) -> bool:
    return p.observed.feed.plan_generation == p.generation


def _unheard(p: Pass, pod: Pod) -> float:
    """Seconds for which a control plane that was begun anew still waits for the pod's first report to it."""
    found = p.observed.feed.found
    if not found or not _ours(p) or pod.leaves_by is not None or _reports(p, pod):
        return 0.0
    return HEAR_SECONDS - (p.now - found)
