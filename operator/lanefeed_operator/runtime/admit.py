"""A ShardedTrainingJob as the API server has it -> the checked Job and its Status. Pure; called by the controller.

The CRD's schema and rules have refused most of what is wrong already. What is left, or came in by an older CRD, becomes
the condition SpecValid=False with the words of `check_job`.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from lanefeed_operator.api import rules
from lanefeed_operator.api.load import check_job
from lanefeed_operator.api.spec import API_VERSION, KIND, Job
from lanefeed_operator.api.status import Status
from lanefeed_operator.errors import JobError, ReconcileError
from lanefeed_operator.reconcile.conditions import SPEC_INVALID, SPEC_VALID, put
from lanefeed_operator.reconcile.states import reason_of, state_of

__all__ = ["read_job", "read_status", "refused", "source_of"]


def source_of(raw: Mapping[str, Any]) -> tuple[Any, ...]:
    """What the checked Job depends on: where it is equal, the Job is."""
    meta = raw["metadata"]
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    return meta["uid"], meta.get("generation", 1), tuple(sorted(labels.items())), tuple(sorted(notes.items()))


def read_job(raw: Mapping[str, Any]) -> Job:
    """The checked Job, without its status. Raises JobError with all faults."""
    document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": raw["metadata"], "spec": raw.get("spec") or {}}
    try:
        job = Job.model_validate(document)
    except ValidationError:
        job = None
    if job is not None and not rules.check(job):
        return job
    # Slower, and knows how to say what is wrong.
    return check_job(document, f"{raw['metadata'].get('namespace', '')}/{raw['metadata'].get('name', '')}")


def read_status(raw: Mapping[str, Any]) -> Status:
    """What is persisted. Raises ReconcileError where this version cannot go on from it."""
    try:
        return Status.model_validate(raw.get("status") or {})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        meta = raw["metadata"]
        raise ReconcileError(
            f"the status of {meta.get('namespace', '')}/{meta.get('name', '')} cannot be used: status.{where}: "
            f"{first['msg']}; restore it from a backup, or delete the job and start it anew from its checkpoint"
        ) from None


def refused(status: Status, error: JobError, generation: int, now: float) -> Status:
    """The status of a job whose spec cannot be used; the very same one if it says so already."""
    text = "; ".join(str(problem) for problem in error.problems)
    new = put(status, SPEC_VALID, False, SPEC_INVALID, f"{text}: mend the spec and apply it again", now, generation)
    new = new.model_copy(update={"observed_generation": generation})
    new = new.model_copy(update={"state": state_of(new), "reason": reason_of(new)})
    return status if new == status else new
