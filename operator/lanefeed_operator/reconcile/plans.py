"""From a job's frozen stream to the core's lanes and plan, and what reconcile wants to know of a manifest. Pure.

For both shells and the commands: what WritePlan, the coordinator and `Observed.manifest` are made of.
"""

from lanefeed_core.cursor import Cursor
from lanefeed_core.lanes import Lanes
from lanefeed_core.manifest import Manifest
from lanefeed_core.plan import Plan
from lanefeed_operator.api.spec import Job
from lanefeed_operator.api.status import StreamStatus
from lanefeed_operator.reconcile.dataset import spec_of
from lanefeed_operator.reconcile.types import ManifestInfo

__all__ = ["info_of", "lanes_of", "make_plan"]


def lanes_of(stream: StreamStatus, manifest: Manifest) -> Lanes:
    """The job's lanes."""
    return Lanes(spec_of(stream), manifest.shard_rows)


def make_plan(job: Job, stream: StreamStatus, *, generation: int, replicas: int, ranks: int, start: int) -> Plan:
    """The core's plan; `start` in total steps."""
    cursor = Cursor.from_total(start, stream.steps_per_epoch, aligned=spec_of(stream).aligned)
    return Plan(generation, replicas, ranks, cursor, job.spec.allow_uneven)


def info_of(manifest: Manifest) -> ManifestInfo:
    """What reconcile wants to know of a manifest."""
    return ManifestInfo(
        digest=manifest.digest,
        rows=manifest.rows,
        shards=len(manifest.shards),
        row_groups=manifest.num_row_groups,
        row_bytes=manifest.row_bytes,
        bytes=manifest.bytes,
        quarantined=manifest.quarantined,
    )
