"""`status.state`, one word for people, derived from the conditions in this one place."""

from lanefeed_operator.api.status import Status
from lanefeed_operator.reconcile.conditions import (
    COMPLETE,
    DATASET_READY,
    FAILED,
    RUNNING,
    STOPPING,
    SUSPENDED,
    is_true,
)

__all__ = ["state_of"]

_STOPPING = {"Resize": "Resizing", "Shrink": "Resizing", "Suspend": "Suspending"}


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
