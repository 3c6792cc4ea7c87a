"""The dataset's policy: have it indexed once, freeze the stream's sizes, refuse a dataset that changed."""

import numpy as np

from lanefeed_core.errors import StreamError
from lanefeed_core.images import image_bytes
from lanefeed_core.lanes import Lanes
from lanefeed_core.stream import StreamSpec, default_lanes, default_window
from lanefeed_operator.api.spec import Boundary, Job
from lanefeed_operator.api.status import StreamStatus
from lanefeed_operator.reconcile.conditions import DATASET_READY, SPEC_INVALID, SPEC_VALID, is_true
from lanefeed_operator.reconcile.context import Pass
from lanefeed_operator.reconcile.plan_policy import valid
from lanefeed_operator.reconcile.types import BuildManifest, ManifestInfo

__all__ = ["dataset", "freeze", "spec_of"]

RETRY_SECONDS = 10.0


def dataset(p: Pass) -> bool:
    """Ends the pass where nothing may start yet; a running plan is never stopped for it."""
    spec = p.status.condition(SPEC_VALID)
    if spec is not None and spec.reason == SPEC_INVALID:
        # It was mended, or it would not have come here; what comes next may take an hour.
        valid(p)
    manifest = p.observed.manifest
    if manifest is None:
        p.act(BuildManifest())
        problem = p.observed.problem
        if problem is not None:
            p.condition(DATASET_READY, False, problem.reason, problem.message)
        elif p.status.stream is None:
            p.condition(DATASET_READY, None, "Indexing", "the dataset is being indexed")
        return _waits(p)
    if manifest.error:
        return _error(p, manifest)
    if p.status.stream is None:
        return _freeze(p, manifest)
    if manifest.digest != p.status.stream.manifest:
        p.condition(
            DATASET_READY,
            False,
            "DatasetChanged",
            f"the job is bound to dataset {p.status.stream.manifest} and finds {manifest.digest}: files were added, "
            "removed or replaced since it began; restore them, or start a new job",
        )
        # Files that were restored are found by looking again; how often, the shell says.
        p.act(BuildManifest())
        p.look_again(RETRY_SECONDS)
        return _waits(p)
    if not is_true(p.status, DATASET_READY):
        _ready(p, manifest, p.status.stream)
    return False


def _waits(p: Pass) -> bool:
    """Whether nothing may go on without the dataset: pods that run do, and to be suspended needs none."""
    return p.children is None and not p.job.spec.suspend


def _error(p: Pass, manifest: ManifestInfo) -> bool:
    if p.status.stream is None and not manifest.retryable:
        p.condition(DATASET_READY, False, "IndexFailed", manifest.error)
        p.fail("IndexFailed", manifest.error)
        return True
    p.condition(DATASET_READY, False, "IndexFailed", f"{manifest.error} (it is tried again by itself)")
    p.act(BuildManifest())
    p.look_again(RETRY_SECONDS)
    return _waits(p)


def _freeze(p: Pass, manifest: ManifestInfo) -> bool:
    try:
        stream = freeze(p.job, manifest)
    except StreamError as error:
        p.condition(DATASET_READY, False, "StreamInvalid", str(error))
        p.fail("StreamInvalid", str(error))
        return True
    p.set(stream=stream)
    _ready(p, manifest, stream)
    return False


def _ready(p: Pass, manifest: ManifestInfo, stream: StreamStatus) -> None:
    text = f"{manifest.rows} samples in {manifest.shards} shards, {stream.steps_per_epoch} steps an epoch"
    p.condition(DATASET_READY, True, "Indexed", text)


def freeze(job: Job, manifest: ManifestInfo) -> StreamStatus:
    """The stream's identity, fixed for the job's life. Raises StreamError where the data cannot make it."""
    spec = job.spec
    size = spec.batching.global_batch_size
    lanes = spec.batching.lanes or default_lanes(
        global_batch_size=size, ranks=spec.world, row_groups=manifest.row_groups
    )
    row_bytes = manifest.row_bytes + image_bytes(spec.data.image_columns)
    window = spec.shuffle.window or default_window(
        lanes=lanes, row_bytes=row_bytes, budget_bytes=spec.sidecar.read_ahead_bytes
    )
    stream = StreamSpec(
        seed=spec.shuffle.seed,
        global_batch_size=size,
        lanes=lanes,
        window=window,
        shuffle=spec.shuffle.enabled,
        boundary=spec.epoch_boundary.value,
        last_batch=spec.batching.last_batch.value,
    )
    # Lanes checks the sizes; how rows lie in shards does not matter to them.
    steps = Lanes(stream, np.array([manifest.rows], dtype=np.int64)).steps_per_epoch
    by_epochs = spec.epochs * steps if spec.epoch_boundary is Boundary.ALIGNED else spec.max_steps
    total = min(by_epochs, spec.max_steps or by_epochs)
    values = stream.to_dict()
    return StreamStatus(
        manifest=manifest.digest, rows=manifest.rows, steps_per_epoch=steps, total_steps=total, **values
    )


def spec_of(stream: StreamStatus) -> StreamSpec:
    """The core's StreamSpec of a frozen stream, for shells that make plans, lanes and pod configurations."""
    return StreamSpec(
        seed=stream.seed,
        global_batch_size=stream.global_batch_size,
        lanes=stream.lanes,
        window=stream.window,
        shuffle=stream.shuffle,
        boundary=stream.boundary,
        last_batch=stream.last_batch,
    )
