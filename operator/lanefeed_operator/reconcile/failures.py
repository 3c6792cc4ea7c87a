"""The failure budget, and the rung of the restart ladder where a pod is replaced at its index.

`verdict` is asked by a child controller that is ours (the local shell); in a cluster the Job's podFailurePolicy and
backoffLimitPerIndex say the same. `terminal` ends the job where no restart can mend it. Program failures count;
exit code 75 (`lanefeed.Stopped`), disruptions, resizes and suspends do not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from lanefeed_operator.api.spec import Job
from lanefeed_operator.reconcile.types import EXIT_STOPPED, FAILED, Children, Observed, Pod, Why

__all__ = ["Ended", "Verdict", "terminal", "verdict"]

#: Failures that every restart would meet again; the rest may be one node's, and uses the budget.
HOPELESS = ("DataError", "BatchTooLarge", "StateMismatch", "ConfigError", "ProtocolMismatch")

#: Exit code of a sidecar that no restart mends (docs/protocol.md).
EXIT_HOPELESS = 2

FIRST_BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 60.0


class Verdict(Enum):
    """What becomes of an index whose pod has ended."""

    DONE = "done"
    REPLACE = "replace"
    #: It left at an agreed stop, with code 75: nothing takes its place.
    LEFT = "left"
    #: The index has used up its budget: the job fails.
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Ended:
    """A verdict; `counts`: one more program failure of this index; `delay`: seconds before the replacement."""

    verdict: Verdict
    counts: bool = False
    delay: float = 0.0


def verdict(
    exit_code: int, failures: int, max_restarts: int, *, disrupted: bool = False, stopping: bool = False, quick: int = 0
) -> Ended:
    """What to do with an index whose pod ended.

    Args:
        exit_code: of the trainer; negative for a signal.
        failures: program failures of this index in this plan generation, before this one.
        max_restarts: spec.maxRestarts.
        disrupted: the machine ended the pod, not the program.
        stopping: a stop of this plan generation was asked for (status.stop).
        quick: ends with code 75 or by disruption in a row, each sooner than 10 s after the pod's start: they are
            free, so they are slowed down.
    """
    if exit_code == 0 and not disrupted:
        return Ended(Verdict.DONE)
    if exit_code == EXIT_STOPPED and stopping:
        return Ended(Verdict.LEFT)
    if disrupted or exit_code == EXIT_STOPPED:
        return Ended(Verdict.REPLACE, delay=_backoff(quick) if quick else 0.0)
    if failures >= max_restarts:
        return Ended(Verdict.FAIL, counts=True)
    return Ended(Verdict.REPLACE, counts=True, delay=_backoff(failures))


def _backoff(times: int) -> float:
    """0 at first (most kills are single), then 1, 2, 4, ... 60 s."""
    return 0.0 if times == 0 else min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(times - 1, 10))


def terminal(job: Job, children: Children | None, observed: Observed) -> Why | None:
    """Why the job cannot go on, or None."""
    feed = observed.feed
    if feed.mismatch:
        return Why(feed.mismatch.kind, feed.mismatch.message)
    for failure in feed.failures:
        if failure.kind in HOPELESS and not failure.retryable:
            return Why(failure.kind, f"pod {failure.pod_index}: {failure.message}")
    if children and children.failed:
        return _exhausted(job, children)
    return None


def _exhausted(job: Job, children: Children) -> Why:
    index = min(children.failed)
    pod = _last_dead(children, index)
    how = f"its last pod ended with {_ending(pod)}" if pod else "its last pod is gone"
    return Why(
        "TooManyRestarts",
        f"pod index {index} failed {_count(children.failures, index)} times and spec.maxRestarts is "
        f"{job.spec.max_restarts}; {how}. Read the log of this pod, mend what it names, and start the job again: it "
        "goes on from the last commit",
    )


def _last_dead(children: Children, index: int) -> Pod | None:
    dead = [pod for pod in children.pods if pod.index == index and pod.phase == FAILED]
    return dead[-1] if dead else None


def _ending(pod: Pod) -> str:
    code = f"exit code {pod.exit_code}" if pod.exit_code is not None else "no exit code"
    return f"{code}{f' ({pod.reason})' if pod.reason else ''}{f': {pod.message}' if pod.message else ''}"


def _count(failures: Mapping[int, int], index: int) -> int:
    return failures.get(index, 0)
