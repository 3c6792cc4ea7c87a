"""The failure budget, and the rung of the restart ladder where a pod is replaced at its index.

`verdict` is asked by a child controller that is ours (the local shell); in a cluster the Job's podFailurePolicy and
backoffLimitPerIndex say the same. `terminal` ends the job where no restart can mend it. Program failures count;
exit code 75 (`lanefeed.Stopped`), disruptions, resizes and suspends do not.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from lanefeed_operator.api.spec import TRAINER, Job
from lanefeed_operator.reconcile.types import EXIT_STOPPED, FAILED, Children, Observed, Pod, Why

__all__ = ["AGAIN", "Ended", "Verdict", "ending", "last_dead", "read_log", "terminal", "verdict"]

#: Failures that every restart would meet again; the rest may be one node's, and uses the budget.
HOPELESS = ("DataError", "BatchTooLarge", "StateMismatch", "ConfigError", "ProtocolMismatch")

HOPELESS_EXIT = "NonRetryableExitCode"
#: What to do with a failed job once its cause is mended.
AGAIN = "change spec.restartToken (or call lanefeed run again): the job goes on from the last commit"
_LISTED = f"spec.failurePolicy.nonRetryableExitCodes calls hopeless: mend the cause, then {AGAIN}"

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
    exit_code: int,
    failures: int,
    max_restarts: int,
    *,
    disrupted: bool = False,
    stopping: bool = False,
    quick: int = 0,
    hopeless: Collection[int] = (),
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
        hopeless: spec.failurePolicy.nonRetryableExitCodes.
    """
    if exit_code == 0 and not disrupted:
        return Ended(Verdict.DONE)
    if exit_code == EXIT_STOPPED and stopping:
        return Ended(Verdict.LEFT)
    if disrupted or exit_code == EXIT_STOPPED:
        return Ended(Verdict.REPLACE, delay=_backoff(quick) if quick else 0.0)
    if failures >= max_restarts or exit_code in hopeless:
        return Ended(Verdict.FAIL, counts=True)
    return Ended(Verdict.REPLACE, counts=True, delay=_backoff(failures))


def _backoff(times: int) -> float:
    """0 at first (most kills are single), then 1, 2, 4, ... 60 s."""
    return 0.0 if times == 0 else min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(times - 1, 10))


def terminal(job: Job, children: Children | None, observed: Observed, *, stopping: bool = False) -> Why | None:
    """Why the job cannot go on, or None. `stopping`: the plan ends anyway, and with it the budget of its indexes.

    Ranks that leave at a stop under a launcher end their pods with the launcher's code (torchrun says 1), not with 75.
    """
    feed = observed.feed
    if feed.mismatch:
        return Why(feed.mismatch.kind, feed.mismatch.message)
    for failure in feed.failures:
        if failure.kind in HOPELESS and not failure.retryable:
            return Why(failure.kind, f"pod {failure.pod_index}: {failure.message}")
    if children is None:
        return None
    return _hopeless_exit(job, children) or (None if stopping else _spent(job, children))


def _hopeless_exit(job: Job, children: Children) -> Why | None:
    """A trainer that ended with a code that no restart mends; where the pod is gone the Job's own words say it."""
    codes = job.spec.failure_policy.non_retryable_exit_codes
    for pod in children.pods:
        if pod.phase == FAILED and not pod.disrupted and pod.exit_code in codes:
            return Why(HOPELESS_EXIT, f"pod index {pod.index} ended with {ending(pod)}, which {_LISTED}")
    if children.gave_up and children.gave_up.reason == "PodFailurePolicy":
        return Why(HOPELESS_EXIT, f"{children.gave_up.message}: the code {_LISTED}")
    return None


def _spent(job: Job, children: Children) -> Why | None:
    if children.failed:
        return _exhausted(job, children)
    if children.gave_up:
        name, why = children.name or "the child", children.gave_up
        return Why(
            "JobFailed",
            f"Job {name} has failed ({why.reason}): {why.message}; mend that, then {AGAIN}",
        )
    return None


def _exhausted(job: Job, children: Children) -> Why:
    index = min(children.failed)
    pod = last_dead(children, index)
    how = f"its last pod ended with {ending(pod)}" if pod else "its last pod is gone"
    return Why(
        "TooManyRestarts",
        f"pod index {index} failed {_count(children.failures, index)} times and spec.maxRestarts is "
        f"{job.spec.max_restarts}; {how}. {read_log(job, pod)}, mend what it names, then {AGAIN}",
    )


def read_log(job: Job, pod: Pod | None, container: str = TRAINER) -> str:
    """What to type to see why a pod failed."""
    if pod is None or not pod.name:
        return "Read the log of this pod"
    return f"Read its log (kubectl logs -n {job.metadata.namespace} {pod.name} -c {container})"


def last_dead(children: Children, index: int) -> Pod | None:
    """The last pod of an index that failed."""
    dead = [pod for pod in children.pods if pod.index == index and pod.phase == FAILED]
    return dead[-1] if dead else None


def ending(pod: Pod) -> str:
    """How a pod ended, in words."""
    code = f"exit code {pod.exit_code}" if pod.exit_code is not None else "no exit code"
    return f"{code}{f' ({pod.reason})' if pod.reason else ''}{f': {pod.message}' if pod.message else ''}"


def _count(failures: Mapping[int, int], index: int) -> int:
    return failures.get(index, 0)
