"""What `lanefeed run` does before the loop: one object of YAML, stored state and options, as an API server would.

Replicas follow `kubectl apply`: the YAML wins where it was edited since it was applied last, else what `lanefeed scale`
asked for stays. A failed job that is run again goes on from its last commit; a complete one stays complete.
"""

import uuid
from pathlib import Path

from pydantic import ValidationError

from lanefeed_operator.api.load import load_job
from lanefeed_operator.api.spec import Job, Packed, Spec
from lanefeed_operator.api.status import Status, StreamStatus
from lanefeed_operator.local.errors import LocalError
from lanefeed_operator.local.store import APPLIED_REPLICAS, FOLDER, JobStore
from lanefeed_operator.reconcile.plan_policy import misfit

__all__ = ["admit", "read_job", "stored_job"]


def read_job(file: Path) -> Job:
    """The job in a YAML file. Raises LocalError, JobError."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise LocalError(f"cannot read {file}: {reason}; give the path of a ShardedTrainingJob's YAML") from None
    job = load_job(text, file)
    notes = dict(job.metadata.annotations)
    notes |= {FOLDER: str(file.absolute().parent), APPLIED_REPLICAS: str(job.spec.replicas)}
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"annotations": notes})})


def stored_job(store: JobStore) -> Job | None:
    """The job and status as they were stored; None before the first run. Raises LocalError."""
    document = store.load()
    if not document:
        return None
    try:
        return Job.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise LocalError(
            f"{store.status_file} cannot be used: {where}: {first['msg']}; restore it, or begin anew with "
            "`lanefeed run --fresh`"
        ) from None


def admit(store: JobStore, wanted: Job, *, replicas: int | None) -> tuple[Job, Status]:
    """The job to run and the status to go on from. The caller holds the lock. Raises LocalError."""
    stored = stored_job(store)
    before = stored.metadata.annotations.get(APPLIED_REPLICAS) if stored else None
    asked = replicas
    if asked is None and before is not None and before != str(wanted.spec.replicas):
        asked = wanted.spec.replicas
    size = asked or store.wanted_replicas() or wanted.spec.replicas
    # Whoever manages it in a cluster is not here.
    spec = wanted.spec.model_copy(update={"replicas": size, "managed_by": ""})
    status = _again(stored.status or Status()) if stored else Status()
    if stored and status.stream:
        _check_frozen(stored.spec, spec, status.stream)
    problem = misfit(wanted.model_copy(update={"spec": spec}), size)
    if problem and not status.plan_generation:
        raise LocalError(problem)
    if asked is not None:
        # After the checks: a size that was refused must not be what the next run finds asked for.
        store.scale(asked)
    meta = wanted.metadata.model_copy(
        update={
            "uid": stored.metadata.uid if stored else str(uuid.uuid4()),
            "generation": _generation(stored, spec),
        }
    )
    return wanted.model_copy(update={"metadata": meta, "spec": spec, "status": None}), status


def _check_frozen(old: Spec, new: Spec, stream: StreamStatus) -> None:
    """What the order of samples and the end of the job depend on was fixed when the job began."""
    pairs: dict[str, tuple[object, object]] = {
        "shuffle.seed": (stream.seed, new.shuffle.seed),
        "shuffle.enabled": (stream.shuffle, new.shuffle.enabled),
        "shuffle.window": (stream.window, new.shuffle.window or stream.window),
        "batching.globalBatchSize": (stream.global_batch_size, new.batching.global_batch_size),
        "batching.lanes": (stream.lanes, new.batching.lanes or stream.lanes),
        "batching.lastBatch": (stream.last_batch, new.batching.last_batch.value),
        "epochBoundary": (stream.boundary, new.epoch_boundary.value),
        "epochs": (old.epochs, new.epochs),
        "maxSteps": (old.max_steps, new.max_steps),
        "data.columns": (old.data.columns, new.data.columns),
        "batching.layout": (old.batching.layout.value, new.batching.layout.value),
        "batching.packed": (_plain(old.batching.packed), _plain(new.batching.packed)),
        "data.images": (_images(old), _images(new)),
    }
    for field, (before, after) in pairs.items():
        if before != after:
            raise LocalError(
                f"spec.{field} was {before!r} when the job began and is {after!r} now: it is fixed for the job's life; "
                f"set it back to {before!r}, or begin anew with `lanefeed run --fresh`"
            )


def _plain(packed: Packed | None) -> dict[str, object] | None:
    return packed.model_dump(mode="json", by_alias=True) if packed is not None else None


def _images(spec: Spec) -> list[dict[str, object]]:
    return [image.to_dict() for image in spec.data.image_columns]


def _generation(stored: Job | None, spec: Spec) -> int:
    if stored is None:
        return 1
    return stored.metadata.generation + int(stored.spec.model_copy(update={"suspend": spec.suspend}) != spec)


def _again(status: Status) -> Status:
    """A failed job that is run again goes on from its last commit, in a new plan generation."""
    failed = status.condition("Failed")
    if failed is None or failed.status != "True":
        return status
    return status.model_copy(
        update={
            "conditions": [c for c in status.conditions if c.type not in ("Failed", "Running", "Stopping")],
            "completion_time": "",
            "start_time": "",
            "stop": None,
            "plan": status.plan.model_copy(update={"closed": True}),
            "restarts": status.restarts.model_copy(update={"idle": 0}),
        }
    )
