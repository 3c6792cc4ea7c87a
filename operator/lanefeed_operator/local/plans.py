"""Plan documents on disk: which pod reads what, for people, and what pods need beside the core's plan."""

import socket
from pathlib import Path
from typing import Any

from lanefeed_core.lanes import Lanes
from lanefeed_core.manifest import Manifest
from lanefeed_core.plan import Plan, pod_reads
from lanefeed_core.podconfig import PodConfig
from lanefeed_operator.api.spec import Boundary, Job
from lanefeed_operator.api.status import Status, StreamStatus
from lanefeed_operator.local import files
from lanefeed_operator.local.launch import pod_address
from lanefeed_operator.reconcile.dataset import spec_of

__all__ = ["PlanFiles", "pod_config"]

#: More pods or ranges than a person reads are not spelled out; the sidecars need none of it.
MAX_PODS_SPELLED = 256


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((pod_address(0), 0))
        return int(probe.getsockname()[1])


class PlanFiles:
    """The folder of plan documents, one a plan generation, written once."""

    def __init__(self, folder: Path) -> None:
        """The folder may not exist yet."""
        self.folder = folder

    def file(self, generation: int) -> Path:
        """Where the document lies."""
        return self.folder / f"plan-{generation}.json"

    def known(self) -> frozenset[int]:
        """Plan generations that have a document."""
        names = (entry.stem.removeprefix("plan-") for entry in self.folder.glob("plan-*.json"))
        return frozenset(int(name) for name in names if name.isdigit())

    def write(self, plan: Plan, lanes: Lanes, manifest: Manifest) -> None:
        """Write it, unless it exists: a plan generation never changes."""
        if self.file(plan.generation).exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        pods = []
        if plan.replicas <= MAX_PODS_SPELLED:
            pods = [
                {
                    "pod": reads.pod,
                    "ranks": list(reads.ranks),
                    "rank_batches": list(reads.rank_batches),
                    "lanes": list(reads.lanes),
                    "rows": reads.rows,
                    "ranges": list(reads.ranges),
                }
                for reads in pod_reads(plan, lanes, manifest, plan.start.epoch)
            ]
        document: dict[str, Any] = plan.to_dict() | {
            "manifest": manifest.digest,
            "rendezvous_port": _free_port(),
            "pods": pods,
        }
        files.write_json(self.file(plan.generation), document)

    def read(self, generation: int) -> tuple[Plan, int]:
        """The plan and its rendezvous port. Raises KeyError, OSError where it was not written."""
        document = files.read_json(self.file(generation))
        if document is None:
            raise FileNotFoundError(self.file(generation))
        return Plan.from_dict(document), int(document["rendezvous_port"])


def pod_config(
    job: Job,
    status: Status,
    plan: Plan,
    *,
    stream: StreamStatus,
    uid: str,
    index: int,
    run_dir: Path,
    manifest: Path,
    token: Path,
    target: str,
    cache: Path,
) -> PodConfig:
    """What the pod's sidecar starts from. `stream`: the frozen one; `cache`: where a decoded cache would go."""
    spec, sidecar = job.spec, job.spec.sidecar
    return PodConfig(
        job=job.metadata.name,
        job_uid=job.metadata.uid,
        pod_index=index,
        pod_uid=uid,
        plan=plan,
        spec=spec_of(stream),
        epochs=spec.epochs if spec.epoch_boundary is Boundary.ALIGNED else 0,
        max_steps=spec.max_steps,
        manifest_path=str(manifest),
        columns=tuple(spec.data.columns),
        images=spec.data.image_columns,
        run_dir=str(run_dir),
        read_ahead_bytes=sidecar.read_ahead_bytes,
        decode_threads=sidecar.decode_threads,
        slots=sidecar.slots,
        slot_bytes=sidecar.slot_bytes,
        cache_dir=str(cache) if sidecar.cache.size else "",
        cache_bytes=sidecar.cache.size,
        coordinator=target,
        coordinator_token_path=str(token),
        last_commit_step=status.cursor.total_step,
        last_commit_name=status.cursor.commit,
        last_commit_generation=status.cursor.plan_generation,
    )
