"""Pods on nodes that nobody hears of: fence first, so that a zombie's reports never count, then free the index."""

from lanefeed_operator.reconcile.context import Pass
from lanefeed_operator.reconcile.types import Fence

__all__ = ["lost"]

#: UIDs written ahead at a time; the rest follows once these are gone.
MAX_FENCED = 64


def lost(p: Pass) -> bool:
    """Never ends the pass."""
    limit, children = p.job.spec.elastic.node_lost_seconds, p.children
    if children is None or not limit:
        return False
    living = {pod.uid for pod in children.alive}
    known = [uid for uid in p.status.plan.fenced if uid in living]
    for pod in children.alive:
        if pod.lost_since is None:
            continue
        left = limit - (p.now - pod.lost_since)
        if pod.uid in p.before.plan.fenced:
            p.act(Fence(children.generation, pod.index, pod.uid, f"its node is lost for {limit} s"))
        elif left > 0:
            p.look_again(left)
        elif pod.uid not in known and len(known) < MAX_FENCED:
            known.append(pod.uid)
            p.count("NodeLost", lost=1)
            p.look_again(0)
    if known != p.status.plan.fenced:
        p.set_plan(fenced=known)
    return False
