"""The immutable ConfigMaps: one for each plan generation, and the manifest in chunks. What sidecars start from.

Readable by a person (`kubectl get configmap NAME-GEN-plan -o yaml`): plan.json is the core's plan, reads.txt says which
pod reads which rows of which shard, pod.json is the sidecars' configuration, the same for all pods but for index and
UID.
"""

import base64
import hashlib
import json
from dataclasses import replace
from typing import Any

from lanefeed_core.lanes import Lanes
from lanefeed_core.manifest import Manifest
from lanefeed_core.plan import Plan, PodReads, pod_reads
from lanefeed_core.podconfig import PodConfig
from lanefeed_core.stream import StreamSpec
from lanefeed_operator.api.spec import Boundary, Job
from lanefeed_operator.api.status import CursorStatus
from lanefeed_operator.render import constants as c
from lanefeed_operator.render import names
from lanefeed_operator.render.errors import RenderError
from lanefeed_operator.render.meta import metadata
from lanefeed_operator.render.settings import Settings
from lanefeed_operator.render.sizes import Sizes

__all__ = ["MAX_CHUNKS", "manifest_maps", "plan_map", "pod_config", "reads_text"]

#: A ConfigMap holds 1 MiB; base64 and metadata need room in the request too.
CHUNK_BYTES = 768 << 10
#: 8 MiB of manifest in ConfigMaps (design section 3): about half a million shards.
MAX_CHUNKS = 11
#: Ranges for people; sidecars need none of them.
READS_BYTES = 256 << 10
MAX_PODS_SPELLED = 1024
MAX_RANGES_SPELLED = 64


def pod_config(
    job: Job, plan: Plan, stream: StreamSpec, cursor: CursorStatus, sizes: Sizes, settings: Settings
) -> PodConfig:
    """What the sidecars of a plan start from. pod_index -1 and pod_uid "": each sidecar's own, from its environment."""
    spec = job.spec
    return PodConfig(
        job=job.metadata.name,
        job_uid=job.metadata.uid,
        pod_index=-1,
        pod_uid="",
        plan=plan,
        spec=stream,
        epochs=spec.epochs if spec.epoch_boundary is Boundary.ALIGNED else 0,
        max_steps=spec.max_steps,
        manifest_path=f"{c.MANIFEST_PATH}/{c.MANIFEST_CHUNK}",
        columns=tuple(spec.data.columns),
        images=spec.data.image_columns,
        run_dir=c.RUN_PATH,
        read_ahead_bytes=spec.sidecar.read_ahead_bytes,
        decode_threads=spec.sidecar.decode_threads,
        slots=spec.sidecar.slots,
        # Fixed here, so that the tmpfs and the memory limit are right whatever the sidecar would choose.
        slot_bytes=sizes.slot,
        # A folder of its own in the volume: what else lies there is not ours.
        cache_dir=f"{c.CACHE_PATH}/decoded" if spec.sidecar.cache.size else "",
        cache_bytes=spec.sidecar.cache.size,
        metrics_port=settings.metrics_port,
        metrics_host="0.0.0.0",  # noqa: S104 -- the kubelet's probes and Prometheus come from outside of the pod
        coordinator=settings.coordinator,
        coordinator_token_path=f"{c.CONTROL_PATH}/{c.TOKEN_FILE}",
        last_commit_step=cursor.total_step,
        last_commit_name=cursor.commit,
        last_commit_generation=cursor.plan_generation,
    )


def plan_map(job: Job, config: PodConfig, lanes: Lanes, manifest: Manifest) -> dict[str, Any]:
    """The ConfigMap of a plan generation."""
    plan = config.plan
    document = {**plan.to_dict(), "world": plan.world, "manifest": manifest.digest, "stream": config.spec.to_dict()}
    data = {
        c.PLAN_FILE: json.dumps(document, indent=1) + "\n",
        # Sidecars check that the pieces beside them are this plan's manifest.
        c.POD_FILE: replace(config, manifest_digest=manifest.digest).to_json() + "\n",
        c.READS_FILE: reads_text(plan, lanes, manifest),
    }
    marks = {c.DIGEST_ANNOTATION: plan_digest(config), c.MANIFEST_ANNOTATION: manifest.digest}
    name = names.plan_map_name(job.metadata.name, plan.generation)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, name, "plan", plan.generation, annotations=marks),
        "immutable": True,
        "data": data,
    }


def plan_digest(config: PodConfig) -> str:
    """32 hex digits of what the sidecars start from, without where they report to."""
    same = replace(config, coordinator="", coordinator_token_path="")
    return hashlib.blake2b(same.to_json().encode(), digest_size=16).hexdigest()


def reads_text(plan: Plan, lanes: Lanes, manifest: Manifest) -> str:
    """Who reads what in the epoch that the plan starts in, a pod to a line; cut so that it always fits."""
    head = f"plan {plan.generation}: {plan.replicas} pods x {plan.ranks_per_replica} ranks, from epoch "
    head += f"{plan.start.epoch} step {plan.start.step}; path[first row:end], rows from 0\n"
    if plan.replicas > MAX_PODS_SPELLED:
        return head + f"more than {MAX_PODS_SPELLED} pods: `lanefeed plan` spells them out\n"
    # One more than is shown tells whether there are more.
    reads = pod_reads(plan, lanes, manifest, plan.start.epoch, limit=MAX_RANGES_SPELLED + 1)
    limit = MAX_RANGES_SPELLED
    while True:
        text = head + "".join(_reads(found, limit) for found in reads)
        if len(text.encode()) <= READS_BYTES:
            return text
        if limit == 0:
            return head + "too long to be spelled out here: `lanefeed plan` does\n"
        limit //= 2


def _reads(reads: PodReads, limit: int) -> str:
    more = "" if len(reads.ranges) <= limit else " ..."
    batches = "+".join(str(n) for n in reads.rank_batches)
    return (
        f"pod {reads.pod}: ranks {_span(reads.ranks)}, batch {batches}, lanes {_span(reads.lanes)}, {reads.rows} rows:"
        f" {' '.join(reads.ranges[:limit])}{more}\n"
    )


def _span(numbers: tuple[int, ...]) -> str:
    """0-3 for 0, 1, 2, 3: lanes and ranks of a pod are consecutive."""
    return f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else ",".join(map(str, numbers))


def manifest_maps(job: Job, encoded: bytes, digest: str) -> list[dict[str, Any]]:
    """The ConfigMaps of a manifest file (manifest_codec), for the job's life."""
    parts = [encoded[at : at + CHUNK_BYTES] for at in range(0, len(encoded), CHUNK_BYTES)]
    if len(parts) > MAX_CHUNKS:
        raise RenderError(
            "spec.data.uri",
            f"names so many shards that their manifest takes {len(encoded)} bytes, and {MAX_CHUNKS * CHUNK_BYTES} fit "
            "into ConfigMaps: use fewer, larger shards",
        )
    marks = {c.MANIFEST_ANNOTATION: digest}
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata(job, names.manifest_name(job.metadata.name, number), "manifest", annotations=marks),
            "immutable": True,
            "binaryData": {f"{c.MANIFEST_CHUNK}.{number:04}": base64.b64encode(part).decode()},
        }
        for number, part in enumerate(parts)
    ]
