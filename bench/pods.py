"""The pod and the stream that benchmarks of the data plane use where no job and no `lanefeed.open` makes them.

Called by `engine`, `decoded`, `remote` and `warm`. Imports Lanefeed only when asked: peers have none.
"""

from typing import Any

from bench.workloads import Workload, files

__all__ = ["manifest_of", "pod", "usual_spec"]


def manifest_of(workload: Workload, **how: Any) -> Any:
    """The workload's manifest, documents packed as `lanefeed.open` is asked to; `how`: for `build_manifest`."""
    from lanefeed_core.packing import PackingRequest
    from lanefeed_sidecar.index import build_manifest

    packing = PackingRequest(workload.sequence_length) if workload.sequence_length else None
    return build_manifest(files(workload.name), packing=packing, **how).manifest


def usual_spec(manifest: Any, batch: int, budget: int, images: Any = ()) -> Any:
    """The StreamSpec that `lanefeed.open` chooses for one rank with `batch` rows and `budget` bytes of read-ahead."""
    from lanefeed_core.images import image_bytes, image_columns
    from lanefeed_core.stream import StreamSpec, default_lanes, default_window

    lanes = default_lanes(global_batch_size=batch, ranks=1, row_groups=manifest.num_row_groups)
    row_bytes = manifest.row_bytes + image_bytes(image_columns(images))
    window = default_window(lanes=lanes, row_bytes=row_bytes, budget_bytes=budget)
    return StreamSpec(seed=7, global_batch_size=batch, lanes=lanes, window=window)


def pod(spec: Any, *, start: Any = None, manifest_path: str = "", run_dir: str = "", **fields: Any) -> Any:
    """The PodConfig of a pod of one rank, whose plan begins at the cursor `start` (None: at the beginning)."""
    from lanefeed_core.cursor import Cursor
    from lanefeed_core.images import image_columns
    from lanefeed_core.plan import Plan
    from lanefeed_core.podconfig import PodConfig

    return PodConfig(
        job="bench",
        job_uid="bench",
        pod_index=0,
        pod_uid="bench",
        plan=Plan(1, 1, 1, start or Cursor()),
        spec=spec,
        manifest_path=manifest_path,
        run_dir=run_dir,
        images=image_columns(fields.pop("images", ())),
        **fields,
    )
