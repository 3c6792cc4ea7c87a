"""Planning a plan generation for very many shards and pods: everything the operator computes for it, in CPU seconds.

`python -m bench.scale.planning [--shards 1000000] [--pods 1024]`. A manifest of a million shards does not fit into
ConfigMaps (docs/guarantees.md); what is measured is the arithmetic, from the manifest in memory to the two objects.
"""

import argparse
import hashlib
import sys
import time
from typing import Any

from bench.scale.results import record
from lanefeed_core import manifest_codec
from lanefeed_core.cursor import Cursor
from lanefeed_core.lanes import Lanes
from lanefeed_core.manifest import Field, Manifest, Shard
from lanefeed_core.plan import Plan
from lanefeed_operator.api.spec import Job
from lanefeed_operator.api.status import CursorStatus
from lanefeed_operator.reconcile.dataset import freeze, spec_of
from lanefeed_operator.reconcile.types import ManifestInfo
from lanefeed_operator.render import Settings, indexed_job, plan_map, pod_config, sizes

__all__ = ["main"]

FIELDS = (Field("label", "int64"), Field("tokens", "fixed_size_list<item: int32>[128]"))
GOAL_SECONDS = 5.0


def make_manifest(shards: int) -> Manifest:
    """Shards of one row group of 1,000 rows, each with a fingerprint of its own, which no compression makes smaller."""
    found = (Shard(f"data/part-{n:07}.parquet", 1 << 20, (1000,), (520_000,), "", mark(n)) for n in range(shards))
    return Manifest(tuple(found), FIELDS)


def mark(number: int) -> str:
    """A fingerprint."""
    return hashlib.blake2b(number.to_bytes(8), digest_size=8).hexdigest()


def make_job(pods: int) -> Job:
    """A job of one GPU a pod."""
    template = {"spec": {"containers": [{"name": "trainer", "image": "x", "command": ["x"]}]}}
    spec = {"replicas": pods, "data": {"uri": "d"}, "batching": {"globalBatchSize": 4 * pods}, "template": template}
    return Job.model_validate({"metadata": {"name": "j", "namespace": "n", "uid": "u"}, "spec": spec})


def plan_once(job: Job, data: Manifest) -> dict[str, Any]:
    """Figures of one plan: CPU seconds of each part."""
    settings = Settings(sidecar_image="example/lanefeed", coordinator="lanefeed.lanefeed-system.svc:9443")
    seconds: dict[str, float] = {}
    at = time.process_time()

    def lap(name: str) -> None:
        nonlocal at
        seconds[name], at = round(time.process_time() - at, 3), time.process_time()

    info = ManifestInfo(data.digest, data.rows, len(data.shards), data.num_row_groups, data.row_bytes)
    lap("digest_seconds")
    stream = spec_of(freeze(job, info))
    lanes = Lanes(stream, data.shard_rows)
    lap("freeze_seconds")
    plan = Plan(1, job.spec.replicas, 1, Cursor(0, 0))
    config = pod_config(job, plan, stream, CursorStatus(), sizes(job.spec, plan, data), settings)
    document = plan_map(job, config, lanes, data)
    lap("plan_map_seconds")
    indexed_job(job, config, data, settings, chunks=1)
    lap("job_seconds")
    whole = round(sum(seconds.values()), 3)
    return {"plan_seconds": whole, **seconds, "plan_map_bytes": sum(map(len, document["data"].values()))}


def main() -> int:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--shards", type=int, default=1_000_000)
    parser.add_argument("--pods", type=int, default=1024)
    given = parser.parse_args()
    data = make_manifest(given.shards)
    # First: later on the manifest has its digest.
    measured = plan_once(make_job(given.pods), data)
    encoded = manifest_codec.encode(data)
    at = time.process_time()
    manifest_codec.decode(encoded)
    decode = round(time.process_time() - at, 3)
    figures = {"shards": given.shards, "pods": given.pods, **measured}
    figures |= {"manifest_bytes": len(encoded), "decode_seconds": decode}
    command = f"python -m bench.scale.planning --shards {given.shards} --pods {given.pods}"
    return 0 if record("planning", command, figures, {"plan_seconds": GOAL_SECONDS}) else 1


if __name__ == "__main__":
    sys.exit(main())
