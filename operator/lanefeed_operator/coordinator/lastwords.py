"""A dead sidecar's last words as one more report, for the shell that sees pods: `Coordinator.report(it, now)` takes it.

Read it from a pod whose sidecar has ended for good: `status.initContainerStatuses[].state.terminated.message`. Never
from `lastState`: that container runs again, and its new session has read the waiting commits from the pod's own disk
(taken late, words of a former session are refused by `admission`). Decides nothing, does no I/O.
"""

from lanefeed_core import lastwords
from lanefeed_operator.coordinator.reports import PodReport, RankCommit, RankReport

__all__ = ["explain", "reports_of"]


def reports_of(message: str, *, pod_uid: str = "") -> PodReport:
    """The report that a termination message stands for. With `pod_uid`, only of that pod.

    Raises LastWordsError for a message that is no last words (a line of a log), was cut, or is another pod's.
    """
    words = lastwords.decode(message)
    if pod_uid and words.pod_uid != pod_uid:
        raise lastwords.LastWordsError(f"the last words are of pod {words.pod_uid} and were found at pod {pod_uid}")
    return PodReport(
        job_uid=words.job_uid,
        pod_index=words.pod_index,
        pod_uid=words.pod_uid,
        plan_generation=words.plan_generation,
        session=words.session,
        sequence=words.sequence,
        ranks=tuple(RankReport(r.rank, r.started, r.from_state, r.consumed, False, r.ended) for r in words.ranks),
        commits=tuple(RankCommit(c.rank, c.start, c.stop, c.name, c.ledger) for c in words.commits),
        failures=tuple((f.kind, f.message, f.retryable) for f in words.failures),
        last=True,
    )


def explain(message: str) -> str:
    """A termination message for people: why the sidecar ended, or the message itself where it is a line of a log."""
    if not lastwords.recognised(message):
        return message.strip()
    try:
        return lastwords.decode(message).why
    except lastwords.LastWordsError:
        return message.strip()
