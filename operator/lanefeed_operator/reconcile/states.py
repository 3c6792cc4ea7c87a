"""`status.state` and `status.reason`, for people, derived from the conditions in this one place."""

from lanefeed_operator.api.status import Status
from lanefeed_operator.reconcile.conditions import (
    COMPLETE,
    DATASET_READY,
    DEGRADED,
    FAILED,
    NOT_CONNECTED,
    RUNNING,
    SPEC_VALID,
    STOPPING,
    SUSPENDED,
    is_true,
)

__all__ = ["reason_of", "state_of"]

_STOPPING = {"Resize": "Resizing", "Shrink": "Resizing", "Admitted": "Resizing", "Suspend": "Suspending"}
#: Nothing stands in the way: this is what it looks like.
_USUAL = ("Starting", "Queued", "Suspended", "Unknown", "Complete", "Indexing")


def state_of(status: Status) -> str:
    """Pending, Indexing, Queued, Starting, Running, Resizing, Suspending, Restarting, Suspended, Complete or Failed."""
    if is_true(status, FAILED):
        return "Failed"
    if is_true(status, COMPLETE):
        return "Complete"
    if status.stop is not None:
        return _STOPPING.get(status.stop.reason, "Restarting")
    if is_true(status, SUSPENDED):
        return "Suspended"
    return _running(status)


def _running(status: Status) -> str:
    running, dataset = status.condition(RUNNING), status.condition(DATASET_READY)
    if running and running.status == "True":
        return "Running"
    if running and running.reason == "Queued":
        return "Queued"
    if status.plan_generation:
        return "Resizing" if is_true(status, STOPPING) else "Starting"
    return "Indexing" if dataset and dataset.reason == "Indexing" else "Pending"


def reason_of(status: Status) -> str:
    """What stands in the way, "" if nothing does: the reason of the first condition that is not as it should be."""
    if is_true(status, COMPLETE):
        return ""
    for kind, bad in ((FAILED, "True"), (SPEC_VALID, "False"), (DATASET_READY, "False"), (RUNNING, "False")):
        found = status.condition(kind)
        if found is not None and found.status == bad and found.reason not in _USUAL:
            return found.reason
    running = status.condition(RUNNING)
    if running is not None and running.reason == NOT_CONNECTED:
        return NOT_CONNECTED
    if status.stop is not None:
        return status.stop.reason
    degraded = status.condition(DEGRADED)
    return degraded.reason if degraded is not None and degraded.status == "True" else ""
