"""activeDeadlineSeconds of a running job; ttlSecondsAfterFinished, and the way back, of a finished one."""

from lanefeed_operator.api.status import to_time
from lanefeed_operator.reconcile.conditions import FAILED, RUNNING, is_true
from lanefeed_operator.reconcile.context import Pass
from lanefeed_operator.reconcile.failures import AGAIN
from lanefeed_operator.reconcile.lost import lost
from lanefeed_operator.reconcile.types import DeleteChildren, DeleteJob

__all__ = ["deadline", "finished"]

DELETE_SECONDS = 5.0


def deadline(p: Pass) -> bool:
    """Fail a job that was active for too long; the time begins anew after a suspend or a queue, as a Job's does."""
    limit = p.job.spec.active_deadline_seconds
    if p.children is not None and p.children.queued:
        p.set(start_time="")
    elif p.generation and not p.status.start_time and not p.job.spec.suspend:
        p.set(start_time=to_time(p.now))
    if limit is None or not p.status.start_time:
        return False
    left = limit - p.since(p.status.start_time)
    if left > 0:
        p.look_again(left)
        return False
    p.fail(
        "DeadlineExceeded",
        f"the job was active for spec.activeDeadlineSeconds ({limit} s) and stands at step {p.last_step}: raise it, "
        f"then {AGAIN}",
    )
    return True


def finished(p: Pass) -> bool:
    """A terminal job: end what still lives, then wait for its time to live.

    A pod on a lost node ends no more by itself: it is fenced and freed as one of a job that runs is.

    Complete never changes; Failed only by a new spec.restartToken: what was committed would be lost with the object.
    """
    if not p.before.terminal:
        return False
    living = [g for g, c in p.observed.children.items() if c.alive]
    for generation in sorted(living):
        p.act(DeleteChildren(generation, "Finished"))
    if living:
        lost(p)
        p.look_again(DELETE_SECONDS)
        return True
    if _wanted_again(p):
        return _revive(p)
    if not p.status.completion_time:
        p.set(completion_time=to_time(p.now))
    ttl = p.job.spec.ttl_seconds_after_finished
    if ttl is not None:
        left = ttl - p.since(p.status.completion_time)
        if left <= 0:
            p.act(DeleteJob())
        else:
            p.look_again(left)
    return True


def _wanted_again(p: Pass) -> bool:
    """Whether the user asks a failed job to go on; one that never had a stream has nothing to go on from."""
    other = p.job.spec.restart_token != p.status.failed_token
    return other and p.status.stream is not None and is_true(p.status, FAILED)


def _revive(p: Pass) -> bool:
    """Back to a plan that is over: what follows is the next one, from the last commit."""
    p.condition(FAILED, False, "Restarted", f"spec.restartToken was changed: the job goes on from step {p.last_step}")
    p.condition(RUNNING, False, "Starting", "the job goes on in a new plan generation")
    p.set(completion_time="", start_time="", stop=None)
    p.set_plan(closed=True)
    p.count("Restart", idle=0)
    p.look_again(0)
    return True
