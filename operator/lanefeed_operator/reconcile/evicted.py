"""Pods that were asked to go (drain, preemption, a queue) while the rest trains: a checkpoint while there is time.

One pod that leaves stops all ranks anyway, and what came after the last commit is done again. With grace left, every
rank is asked to leave at one step (`stop`), so that nothing is done again; the next plan generation begins there. Where
there is no time, or a rank is not attached, nothing is decided: the Job replaces the pod, same index, same plan.
"""

from lanefeed_operator.api.labels import KUEUE_QUEUE
from lanefeed_operator.api.spec import Job, Provider
from lanefeed_operator.api.status import StopStatus, from_time
from lanefeed_operator.reconcile.context import Pass
from lanefeed_operator.reconcile.types import Children, Pod

__all__ = ["EVICTION", "evicted", "leavers", "too_late"]

#: Reason of such a stop.
EVICTION = "Eviction"

#: Less time than that is too little for a step ahead of all ranks and a checkpoint.
LEAST_SECONDS = 8.0


def evicted(p: Pass, children: Children) -> bool:
    """Whether all ranks should leave now, with a checkpoint, since pods are being taken away."""
    if not p.job.spec.elastic.stop_grace_seconds or children.deleting or children.complete:
        return False
    leaving = leavers(children)
    if not leaving or (_queues(p.job) and len(leaving) < len(children.alive)):
        return False
    if min(pod.leaves_by or 0.0 for pod in leaving) - p.now < LEAST_SECONDS:
        return False
    return _all_train(p, children)


def leavers(children: Children) -> list[Pod]:
    """Pods that were asked to go and can hear it."""
    return [pod for pod in children.alive if pod.leaves_by is not None and pod.lost_since is None]


def _queues(job: Job) -> bool:
    """Whether a new plan generation waits in a queue again: then one drained pod is not worth the place."""
    return KUEUE_QUEUE in job.metadata.labels or job.spec.scheduling.gang.provider is not Provider.NONE


def _all_train(p: Pass, children: Children) -> bool:
    """A commit needs every rank, in a pod that lives."""
    feed, living = p.observed.feed, {pod.uid for pod in children.alive}
    world = p.status.plan.replicas * p.status.plan.ranks_per_replica
    views = [view for view in feed.ranks.values() if view.attached and not view.ended and view.pod_uid in living]
    return feed.plan_generation == p.generation and len(views) == world


def too_late(p: Pass, stop: StopStatus, children: Children) -> bool:
    """Whether a rank's pod is gone before the rank came to the agreed step: the commit there will never be."""
    feed, asked = p.observed.feed, from_time(stop.time)
    if stop.reason != EVICTION or feed.plan_generation != p.generation:
        return False
    same = {pod.uid for pod in children.alive if pod.started is None or pod.started <= asked}
    return any(view.pod_uid not in same and view.consumed < stop.step for view in feed.ranks.values())
