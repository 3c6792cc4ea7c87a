"""Jobs, manifests and all objects of a job, for the tests of render and for on_server."""

from typing import Any

from lanefeed_core import manifest_codec
from lanefeed_core.cursor import Cursor
from lanefeed_core.lanes import Lanes
from lanefeed_core.manifest import Field, Manifest, Shard
from lanefeed_core.plan import Plan
from lanefeed_operator.api.spec import Job
from lanefeed_operator.api.status import CursorStatus
from lanefeed_operator.reconcile.dataset import freeze, spec_of
from lanefeed_operator.reconcile.types import ManifestInfo
from lanefeed_operator.render import (
    Settings,
    indexed_job,
    indexer,
    manifest_maps,
    plan_map,
    pod_config,
    service,
    sizes,
    trust_map,
)

SETTINGS = Settings(sidecar_image="example/lanefeed:0.1.0", coordinator="lanefeed.lanefeed-system.svc:9443")
FIELDS = (Field("label", "int64"), Field("tokens", "fixed_size_list<item: int32>[128]"))


def manifest(shards: int = 8, rows: int = 1000, fields: tuple[Field, ...] = FIELDS) -> Manifest:
    """Shards of one row group each."""
    found = [Shard(f"part-{n:05}.parquet", 1 << 20, (rows,), (rows * 520,), "f" * 16) for n in range(shards)]
    return Manifest(tuple(found), fields)


def make_plan(job: Job, generation: int = 1, replicas: int = 0) -> Plan:
    """A plan from the start."""
    spec = job.spec
    return Plan(generation, replicas or spec.replicas, spec.ranks_per_replica, Cursor(0, 0), spec.allow_uneven)


def everything(job: Job, generation: int = 1, data: Manifest | None = None) -> dict[str, dict[str, Any]]:
    """Every object of a job, by what it is."""
    data = data or manifest()
    info = ManifestInfo(data.digest, data.rows, len(data.shards), data.num_row_groups, data.row_bytes)
    stream = spec_of(freeze(job, info))
    plan = make_plan(job, generation)
    config = pod_config(job, plan, stream, CursorStatus(), sizes(job.spec, plan, data), SETTINGS)
    encoded = manifest_codec.encode(data)
    maps = manifest_maps(job, encoded, data.digest)
    return {
        "service": service(job, SETTINGS),
        "trust": trust_map(job, "-----BEGIN CERTIFICATE-----\n"),
        "indexer": indexer(job, SETTINGS),
        **{f"manifest-{number}": one for number, one in enumerate(maps)},
        "plan": plan_map(job, config, Lanes(stream, data.shard_rows), data),
        "pods": indexed_job(job, config, data, SETTINGS, chunks=len(maps)),
    }
