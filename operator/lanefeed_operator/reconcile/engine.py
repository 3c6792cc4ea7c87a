"""reconcile: runs the policies in order. The only entry that shells call.

Pure and cheap: no I/O, no clock, no randomness. The same input gives the same decision, and what is persisted and
observed unchanged gives the very same status object back, so an idle job is never written.
"""

from collections.abc import Callable

from lanefeed_operator.api.spec import Job
from lanefeed_operator.api.status import Status
from lanefeed_operator.reconcile import failures
from lanefeed_operator.reconcile.completion import completion
from lanefeed_operator.reconcile.context import Pass
from lanefeed_operator.reconcile.dataset import dataset
from lanefeed_operator.reconcile.deadline import deadline, finished
from lanefeed_operator.reconcile.facts import absorb, refresh_progress
from lanefeed_operator.reconcile.lost import lost
from lanefeed_operator.reconcile.running import running, strays
from lanefeed_operator.reconcile.states import reason_of, state_of
from lanefeed_operator.reconcile.stop import closing
from lanefeed_operator.reconcile.suspend import suspend
from lanefeed_operator.reconcile.types import Decision, Observed

__all__ = ["reconcile"]

#: spec.managedBy of a job that is this operator's in so many words.
MANAGER = "lanefeed.dev/operator"


def _hopeless(p: Pass) -> bool:
    """Failures that no restart mends end the job."""
    # What is left of a plan that is over says nothing any more.
    children = None if p.status.plan.closed else p.children
    why = failures.terminal(p.job, children, p.observed, stopping=p.status.stop is not None)
    if why is None:
        return False
    p.fail(why.reason, why.message)
    return True


def _foreign(p: Pass) -> bool:
    """A job that another controller runs: not a word is written."""
    return p.job.spec.managed_by not in ("", MANAGER)


#: In this order; each says whether the pass ends with it.
POLICIES: tuple[Callable[[Pass], bool], ...] = (
    absorb,
    finished,
    _hopeless,
    completion,
    deadline,
    dataset,
    lost,
    strays,
    closing,
    suspend,
    running,
)


def reconcile(job: Job, status: Status, observed: Observed, now: float) -> Decision:
    """Decide what to persist and do.

    Args:
        job: the wanted job, checked by `load_job`.
        status: exactly what is persisted now.
        observed: the world, no older than the shell's last own action.
        now: seconds since 1970.
    """
    p = Pass(job=job, before=status, observed=observed, now=now, status=status)
    if _foreign(p):
        return Decision(status)
    for policy in POLICIES:
        if policy(p):
            break
    refresh_progress(p)
    p.set(state=state_of(p.status), reason=reason_of(p.status))
    changed = p.status != status
    return Decision(p.status if changed else status, tuple(p.actions), p.wake)
