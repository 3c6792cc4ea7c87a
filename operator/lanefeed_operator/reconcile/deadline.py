"""activeDeadlineSeconds of a running job and ttlSecondsAfterFinished of a finished one."""

from lanefeed_operator.api.status import to_time
from lanefeed_operator.reconcile.context import Pass
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
        f"the job was active for spec.activeDeadlineSeconds ({limit} s) and stands at step {p.last_step}: raise it and "
        "start the job again, it goes on from the last commit",
    )
    return True


def finished(p: Pass) -> bool:
    """A terminal job: end what still lives, then wait for its time to live. A terminal state never changes."""
    if not p.before.terminal:
        return False
    living = [g for g, c in p.observed.children.items() if c.alive]
    for generation in sorted(living):
        p.act(DeleteChildren(generation, "Finished"))
    if living:
        p.look_again(DELETE_SECONDS)
        return True
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
