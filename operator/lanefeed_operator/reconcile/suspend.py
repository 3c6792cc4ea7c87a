"""spec.suspend: stop gracefully, keep everything that is needed to go on, run nothing."""

from lanefeed_operator.reconcile import stop
from lanefeed_operator.reconcile.conditions import RUNNING, STOPPING, SUSPENDED, is_true
from lanefeed_operator.reconcile.context import Pass

__all__ = ["suspend"]


def suspend(p: Pass) -> bool:
    """Ends the pass of a suspended job."""
    if not p.job.spec.suspend:
        return False
    if p.children is not None:
        return stop.ask(p, "Suspend")
    if p.generation and not p.status.plan.closed:
        p.set_plan(closed=True)
    p.set(stop=None, start_time="")
    if is_true(p.status, STOPPING):
        p.condition(STOPPING, False, "Suspended", "all ranks have left")
    p.condition(RUNNING, False, "Suspended", "the job is suspended")
    p.condition(
        SUSPENDED, True, "Suspended", f"suspended at step {p.last_step}: set spec.suspend to false to go on from there"
    )
    return True
