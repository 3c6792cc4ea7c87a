"""A written plan generation: see that its document and its children exist, and nothing of any other plan."""

from lanefeed_operator.reconcile import stop
from lanefeed_operator.reconcile.conditions import DEGRADED, EXITED_EARLY, READ_ON, RUNNING, is_true
from lanefeed_operator.reconcile.context import Pass
from lanefeed_operator.reconcile.failures import read_log
from lanefeed_operator.reconcile.plan_policy import admitted, change, new_plan, shrunk
from lanefeed_operator.reconcile.troubles import failing, trouble, unconnected
from lanefeed_operator.reconcile.types import Children, CreateChildren, DeleteChildren, Why, WritePlan

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
        again = "Restart" if p.job.spec.restart_token != plan.restart_token else "Resume"
        return new_plan(p, p.status.stop.reason if p.status.stop else again)
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
    size = {"Shrink": shrunk, "Admitted": admitted}.get(why)
    return stop.ask(p, why, size(p, children) if size else 0)


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
        _not_running(p, p.observed.problem)
        return True
    if not p.status.plan.created:
        p.set_plan(created=True)
    why = p.observed.problem or trouble(p, children)
    _report(p, children, why)
    _degraded(p, children, why)
    return True


def _not_running(p: Pass, why: Why | None) -> None:
    """Not yet: what stands in the way, if anything is known to."""
    plan = p.status.plan
    why = why or Why("Starting", f"plan generation {plan.generation} with {plan.replicas} pods begins")
    p.condition(RUNNING, False, why.reason, why.message)


def _report(p: Pass, children: Children, why: Why | None) -> None:
    """Once a plan runs it is Running until it ends or its queue takes it back: pods that are replaced are Degraded."""
    size = children.replicas
    if children.queued:
        p.condition(RUNNING, False, "Queued", "the queue holds the pods back until there is quota")
    elif _too_few(p, children):
        wanted = p.status.plan.replicas
        text = f"the queue admitted {children.size} of {wanted} pods, and the job cannot run with so few: "
        text += "raise kueue.x-k8s.io/job-min-parallelism, or let elastic.minReplicas and batching.uneven allow less"
        p.condition(RUNNING, False, "AdmittedTooFew", text)
    elif children.ready + len(children.succeeded) >= size:
        late = next(unconnected(p, children), Why("AllReady", f"all {size} pods run"))
        p.condition(RUNNING, True, late.reason, late.message)
    elif not is_true(p.status, RUNNING):
        _not_running(p, why)
    else:
        p.condition(RUNNING, True, "PodsMissing", f"some of {size} pods are being replaced; the others go on or wait")


def _too_few(p: Pass, children: Children) -> bool:
    return children.size < p.status.plan.replicas and not children.deleting


def _degraded(p: Pass, children: Children, why: Why | None) -> None:
    """What is wrong although the job goes on."""
    feed = p.observed.feed
    if feed.disagree and feed.plan_generation == p.generation:
        why = Why("RanksDisagree", _apart(p))
    why = why or failing(p, children) or _early(p, children) or _set_aside(p)
    if why is None or children.queued:
        p.condition(DEGRADED, False, "Well", "nothing is wrong")
    else:
        p.condition(DEGRADED, True, why.reason, why.message)


def _early(p: Pass, children: Children) -> Why | None:
    """The plan before this one ended with code 0 too early, and nothing was committed since."""
    times = p.status.restarts.idle
    if not times or p.status.restarts.last_reason != "Interrupted" or p.last_step > p.status.plan.start:
        return None
    log = read_log(p.job, children.pods[0] if children.pods else None)
    return Why(
        EXITED_EARLY,
        f"trainers exited with code 0 before their stream ended, {times} times in a row with no new commit (at most "
        f"{p.job.spec.max_restarts}). {log}; let the trainer {READ_ON}",
    )


def _set_aside(p: Pass) -> Why | None:
    if not p.status.quarantined:
        return None
    text = "shards were set aside, see status.quarantined: repair them and start a new job to use them"
    return Why("ShardsQuarantined", text)
