"""A written plan generation: see that its document and its children exist, and nothing of any other plan."""

from lanefeed_operator.reconcile import stop
from lanefeed_operator.reconcile.conditions import DEGRADED, RUNNING
from lanefeed_operator.reconcile.context import Pass
from lanefeed_operator.reconcile.plan_policy import change, new_plan, shrunk
from lanefeed_operator.reconcile.types import Children, CreateChildren, DeleteChildren, WritePlan

__all__ = ["running", "strays"]

STRAY_SECONDS = 5.0


def strays(p: Pass) -> bool:
    """Children of any other plan generation are deleted first; nothing starts beside them. Ends the pass then."""
    found = sorted(g for g in p.observed.children if g != p.before.plan.generation)
    for generation in found:
        p.act(DeleteChildren(generation, "OldPlan"))
    if found:
        p.look_again(STRAY_SECONDS)
    return bool(found)


def running(p: Pass) -> bool:
    """The last policy: begin, keep or change the plan."""
    plan = p.status.plan
    if plan.generation == 0:
        return new_plan(p, "Start")
    if plan.closed:
        return new_plan(p, p.status.stop.reason if p.status.stop else "Resume")
    why = change(p)
    if why:
        return _end(p, why)
    return _keep(p)


def _end(p: Pass, why: str) -> bool:
    children = p.children
    if why == "RanksDisagree" and _hopeless(p):
        return True
    if children is None:
        return new_plan(p, why)
    return stop.ask(p, why, shrunk(p, children) if why == "Shrink" else 0)


def _hopeless(p: Pass) -> bool:
    """Ranks that never agree must not be restarted for ever: as many plans without a commit as maxRestarts."""
    idle = p.status.restarts.idle + 1 if p.last_step <= p.status.plan.start else 0
    if idle <= p.job.spec.max_restarts:
        p.count("RanksDisagree", idle=idle)
        return False
    p.fail("RanksDisagree", _apart(p))
    return True


def _apart(p: Pass) -> str:
    apart = sorted(p.observed.feed.disagree.items())
    names = ", ".join(f"rank {rank} at step {step}" for rank, step in apart[:8]) + (", ..." if len(apart) > 8 else "")
    return (
        f"ranks of plan generation {p.generation} began from different steps ({names}; last commit at step "
        f"{p.last_step}): every rank must load the same checkpoint, so let one rank choose it and tell the others"
    )


def _keep(p: Pass) -> bool:
    """Write-ahead: only what the persisted status names is made."""
    plan, children = p.before.plan, p.children
    if plan.generation != p.generation:
        p.look_again(0)
        return True
    if plan.generation not in p.observed.plans or p.observed.feed.plan_generation != plan.generation:
        p.act(WritePlan(plan.generation, plan.replicas, plan.ranks_per_replica, plan.start))
    elif children is None:
        p.act(CreateChildren(plan.generation, plan.replicas))
    if children is None:
        p.condition(RUNNING, False, "Starting", f"plan generation {plan.generation} with {plan.replicas} pods begins")
        return True
    if not p.status.plan.created:
        p.set_plan(created=True)
    _report(p, children)
    return True


def _report(p: Pass, children: Children) -> None:
    ready, size = children.ready, children.replicas
    if children.queued:
        p.condition(RUNNING, False, "Queued", "the queue holds the pods back until there is quota")
    elif children.complete:
        p.condition(RUNNING, True, "Ending", "all trainers have exited; last reports are waited for")
    elif ready + len(children.succeeded) >= size:
        p.condition(RUNNING, True, "AllReady", f"all {size} pods run")
    elif not p.observed.feed.ranks:
        p.condition(RUNNING, False, "Starting", f"plan generation {p.generation} with {size} pods begins")
    else:
        p.condition(RUNNING, True, "PodsMissing", f"some of {size} pods are being replaced; the others go on or wait")
    _degraded(p, children)


def _degraded(p: Pass, children: Children) -> None:
    if p.observed.feed.disagree and p.observed.feed.plan_generation == p.generation:
        p.condition(DEGRADED, True, "RanksDisagree", _apart(p))
        return
    failing = max(children.failures.items(), key=lambda item: (item[1], -item[0]), default=(0, 0))
    if failing[1]:
        index, times = failing
        text = f"pod index {index} failed {times} times of {p.job.spec.max_restarts} allowed: read the log of this pod"
        p.condition(DEGRADED, True, "PodsFailing", text)
    elif p.status.quarantined:
        text = "shards were set aside, see status.quarantined: repair them and start a new job to use them"
        p.condition(DEGRADED, True, "ShardsQuarantined", text)
    else:
        p.condition(DEGRADED, False, "Well", "nothing is wrong")
