"""Done means consumed: exit codes alone do not end a job.

Children that are all done are believed when every rank's stream has ended in the very pods that exited, or when the
job's last commit covers the stream's end. A pod that died so late that others had exited waits for peers that never
come back: it is not left waiting. Otherwise the run was interrupted (a trainer that exits 0 on SIGTERM, say) and goes
on in a new plan generation from the last commit; a trainer that does so again and again without a new commit fails the
job.
"""

from lanefeed_operator.api.spec import Completion
from lanefeed_operator.api.status import StopStatus, to_time
from lanefeed_operator.reconcile import conditions
from lanefeed_operator.reconcile.context import Pass
from lanefeed_operator.reconcile.failures import read_log
from lanefeed_operator.reconcile.types import Children, Pod

__all__ = ["completion", "ended", "unended"]

#: Last reports and commits of pods that are gone may still be on their way for this long.
LAST_REPORT_SECONDS = 15.0
LAST_COMMIT_SECONDS = 3.0
#: They are seldom later than this: from then on people are told what it looks like.
USUAL_REPORT_SECONDS = 5.0
#: No rank moved for this long although some pods are done for good and others are not.
STRANDED_SECONDS = 60.0


def completion(p: Pass) -> bool:
    """Ends the pass if the job is complete, or if last reports are waited for."""
    children = p.children
    if children is None or p.status.plan.closed or children.deleting:
        return False
    if not children.complete:
        return _stranded(p, children)
    if not p.status.plan.finished_time:
        p.set_plan(finished_time=to_time(p.now))
    if _believed(p, children):
        return _finish(p)
    if p.status.stop is not None:
        return False
    if p.observed.manifest is None or p.observed.manifest.error:
        # Without a manifest there is no coordinator that could have read the pods' last words: `dataset` comes first.
        p.set_plan(finished_time="")
        return False
    left = LAST_REPORT_SECONDS - p.since(p.status.plan.finished_time)
    if left > 0:
        p.condition(conditions.RUNNING, True, "Ending", _ending(p, children))
        p.look_again(left)
        _warn(p, children, LAST_REPORT_SECONDS - left)
        return True
    return _interrupted(p, children)


def _ending(p: Pass, children: Children) -> str:
    left = unended(p, children)
    if not left:
        return "all trainers have exited; last reports are waited for"
    return (
        f"all trainers have exited with code 0 and {len(left)} ranks have not read their stream to its end: if their "
        "last reports do not say otherwise the job goes on from the last commit"
    )


def _warn(p: Pass, children: Children, waited: float) -> None:
    """Say it while the pods are still there, with their logs."""
    if waited < USUAL_REPORT_SECONDS:
        p.look_again(USUAL_REPORT_SECONDS - waited)
        return
    pods, per_pod = p.pods_by_index(), p.status.plan.ranks_per_replica
    missing = unended(p, children)
    first = pods.get(missing[0] // per_pod) if missing else None
    if first is None:
        return
    log = read_log(p.job, first)
    p.condition(
        conditions.DEGRADED,
        True,
        conditions.EXITED_EARLY,
        f"pod {first.name or f'index {first.index}'} has exited with code 0 before its stream ended, as have all "
        f"others; ranks {_some(missing)} have samples left (last commit at step {p.last_step} of {_total(p)}). "
        f"{log}; let the trainer {conditions.READ_ON}",
    )


def _some(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")


def _total(p: Pass) -> int:
    return p.status.stream.total_steps if p.status.stream else 0


def _stranded(p: Pass, children: Children) -> bool:
    """Some pods exited 0, and others wait for them in vain: finish, or begin a new plan."""
    feed = p.observed.feed
    if not children.succeeded or not children.alive or p.status.stop is not None or not feed.moved:
        return False
    per_pod = p.status.plan.ranks_per_replica
    waiting = {rank // per_pod for rank in unended(p, children)}
    if not all(pod.index in waiting for pod in children.alive):
        return False
    # A peer that exited 0 too early (on SIGTERM, say) completed its index; where 0 is enough it did so on purpose.
    early = bool(waiting & children.succeeded) and p.job.spec.completion is not Completion.ON_EXIT
    if not early and not any(_in_vain(p, children, pod) for pod in children.alive):
        return False
    left = STRANDED_SECONDS - (p.now - feed.moved)
    if left > 0:
        p.look_again(left)
        return False
    return _finish(p) if p.last_step >= _total(p) else _interrupted(p, children)


def _in_vain(p: Pass, children: Children, pod: Pod) -> bool:
    """Whether the pod, or a rank in it, began anew and took part in no commit since: its peers may have gone before.

    One that was there all the time works on after its last batch: it evaluates, exports, uploads.
    """
    views = [view for view in p.observed.feed.ranks.values() if view.pod_index == pod.index]
    lives = [view for view in views if view.pod_uid == pod.uid]
    dead = any(other.index == pod.index and not other.alive for other in children.pods)
    # A rank that was last heard of in another pod tells it too.
    replaced = dead or len(lives) < len(views) or bool(children.failures.get(pod.index)) or children.disruptions > 0
    anew = replaced or any(view.started > p.status.plan.start for view in lives)
    return anew and all(p.last_step <= view.started for view in lives)


def _believed(p: Pass, children: Children) -> bool:
    stream = p.status.stream
    if p.job.spec.completion is Completion.ON_EXIT:
        return True
    if stream is not None and p.last_step >= stream.total_steps:
        return True
    return ended(p, children)


def unended(p: Pass, children: Children) -> list[int]:
    """Ranks whose stream has not ended in the pod that now holds their index."""
    feed, pods = p.observed.feed, p.pods_by_index()
    if feed.plan_generation != p.generation:
        return list(range(children.replicas * p.status.plan.ranks_per_replica))
    found = []
    for rank in range(children.replicas * p.status.plan.ranks_per_replica):
        view, pod = feed.ranks.get(rank), pods.get(rank // p.status.plan.ranks_per_replica)
        if view is None or not view.ended or (pod is not None and pod.uid != view.pod_uid):
            found.append(rank)
    return found


def ended(p: Pass, children: Children) -> bool:
    """Whether every rank's stream has ended."""
    return not unended(p, children)


def _finish(p: Pass) -> bool:
    """Complete; but give the last commit a moment to arrive, it holds the proof of the last epoch."""
    total = _total(p)
    left = LAST_COMMIT_SECONDS - p.since(p.status.plan.finished_time)
    if p.last_step < total and left > 0:
        p.look_again(left)
        return True
    if p.status.stop is not None:
        p.set(stop=None)
        p.condition(conditions.STOPPING, False, "Complete", "the stream ended before the stop")
    if p.last_step >= total:
        proven = p.status.ledger.verified
        text = f"{proven} epoch{'' if proven == 1 else 's'}: each sample consumed exactly once"
        p.condition(conditions.PROVEN, True, "LedgerEqual", text)
    else:
        p.condition(
            conditions.PROVEN,
            None,
            "NotCommitted",
            f"the last commit is at step {p.last_step} of {total}, so what came after it is not proven: call "
            "loader.commit() after the last batch",
        )
    degraded = p.status.condition(conditions.DEGRADED)
    if degraded is not None and degraded.reason == conditions.EXITED_EARLY:
        p.condition(conditions.DEGRADED, False, "Well", "nothing is wrong")
    p.condition(conditions.RUNNING, False, "Complete", "the job is complete")
    p.condition(conditions.COMPLETE, True, "Consumed", f"every rank consumed its stream to the end ({total} steps)")
    p.set(completion_time=to_time(p.now))
    return True


def _interrupted(p: Pass, children: Children) -> bool:
    """All exited 0 too early: count it, and begin again from the last commit if that ever helped."""
    idle = p.status.restarts.idle + 1 if p.last_step <= p.status.plan.start else 0
    missing = unended(p, children)
    p.count("Interrupted", interrupted=1, idle=idle)
    if idle > p.job.spec.max_restarts:
        p.fail(
            conditions.EXITED_EARLY,
            f"the trainer exits with code 0 before its stream ends (ranks {_some(missing)}; last commit at step "
            f"{p.last_step} of {_total(p)}), {idle} times in a row without a new commit: let it {conditions.READ_ON}",
        )
        return True
    p.condition(
        conditions.STOPPING,
        True,
        "Interrupted",
        f"all trainers exited with code 0 and ranks {_some(missing)} had samples left: the job begins again from step "
        f"{p.last_step}",
    )
    p.set(stop=StopStatus(step=p.last_step, reason="Interrupted", time=to_time(p.now), done=True, outcome="Exited"))
    p.look_again(0)
    return True
