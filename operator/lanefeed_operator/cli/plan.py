"""`lanefeed plan`: who reads what, now or with another number of pods; works before the job was ever run."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from lanefeed_core.images import image_bytes
from lanefeed_core.manifest import Manifest
from lanefeed_core.plan import Plan, PodReads, pod_reads
from lanefeed_operator.api.quantity import format_bytes
from lanefeed_operator.api.spec import Job
from lanefeed_operator.api.status import Status, StreamStatus
from lanefeed_operator.cli.choose import Context, Namespace, choose, in_cluster
from lanefeed_operator.cli.common import JobArgument, StateDir, console, is_file, locate, positive
from lanefeed_operator.local import indexer
from lanefeed_operator.local.admission import read_job, stored_job
from lanefeed_operator.local.errors import LocalError, UnknownJob
from lanefeed_operator.local.launch import data_env
from lanefeed_operator.reconcile.dataset import freeze
from lanefeed_operator.reconcile.plan_policy import misfit
from lanefeed_operator.reconcile.plans import info_of, lanes_of, make_plan

__all__ = ["plan"]

#: Ranges shown for a pod, and ranges looked at before adjacent ones are joined.
MAX_RANGES = 6
MAX_SPELLED = 256


def plan(
    job: JobArgument,
    replicas: Annotated[int | None, typer.Option(help="Simulate this number of pods.")] = None,
    epoch: Annotated[int | None, typer.Option(help="Epoch to show (default: where the job is).")] = None,
    state_dir: StateDir = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Show which pod reads which lanes and shard ranges, and the memory that takes."""
    positive(replicas, "--replicas")
    found, manifest, stream = _load(job, state_dir, namespace, context)
    status = found.status or Status()
    size = replicas or (status.plan.replicas if status.plan_generation else found.spec.replicas)
    problem = misfit(found, size)
    if problem:
        raise LocalError(problem)
    at = min(status.cursor.epoch, found.spec.epochs - 1) if epoch is None else epoch
    _check_epoch(found, stream, at)
    generation = status.plan_generation + (1 if replicas else 0) or 1
    made = make_plan(
        found,
        stream,
        generation=generation,
        replicas=size,
        ranks=found.spec.ranks_per_replica,
        start=status.cursor.total_step,
    )
    lanes = lanes_of(stream, manifest)
    reads = pod_reads(made, lanes, manifest, at, limit=MAX_SPELLED)
    _print(found, made, stream, manifest, reads, at, simulated=replicas is not None)


def _load(
    job: str, state_dir: Path | None, namespace: str | None, context: str | None
) -> tuple[Job, Manifest, StreamStatus]:
    """The job with its frozen manifest and stream, or what they would be for a YAML on this machine."""
    if in_cluster(namespace, context) or not is_file(job):
        place = choose(job, state_dir, namespace, context)
        found = place.job()
        if found.status is not None and found.status.stream is not None:
            return found, place.manifest(), found.status.stream
        if in_cluster(namespace, context):
            raise LocalError(f"job {job} has no frozen dataset yet: its indexer has not ended; `lanefeed status {job}`")
        return _simulated(found)
    try:
        stored = stored_job(store := locate(job, state_dir))
    except UnknownJob:
        return _simulated(read_job(Path(job)))
    if stored and stored.status and stored.status.stream:
        return stored, indexer.read_manifest(store.manifest_file), stored.status.stream
    return _simulated(stored or read_job(Path(job)))


def _simulated(job: Job) -> tuple[Job, Manifest, StreamStatus]:
    """Index the dataset now, as a job's first admission would."""
    with tempfile.TemporaryDirectory(prefix="lanefeed-plan-") as scratch:
        file = Path(scratch) / "manifest.bin"
        indexer.index(indexer.arguments(job, file), env=data_env(job))
        manifest = indexer.read_manifest(file)
    return job, manifest, freeze(job, info_of(manifest))


def _check_epoch(job: Job, stream: StreamStatus, epoch: int) -> None:
    if epoch < 0 or (stream.boundary == "Aligned" and epoch >= job.spec.epochs):
        raise LocalError(f"--epoch is {epoch}: this job has epochs 0 to {job.spec.epochs - 1}")


def _print(
    job: Job,
    made: Plan,
    stream: StreamStatus,
    manifest: Manifest,
    reads: list[PodReads],
    epoch: int,
    *,
    simulated: bool,
) -> None:
    out = console()
    word = "simulated: " if simulated else ""
    table = Table(
        title=f"{job.metadata.name}, epoch {epoch}: {word}{made.replicas} pods x {made.ranks_per_replica} ranks",
        title_justify="left",
    )
    for name in ("pod", "ranks", "rank batch", "lanes"):
        table.add_column(name)
    table.add_column("rows", justify="right")
    table.add_column("open windows", justify="right")
    table.add_column("reads", overflow="fold")
    window_bytes = 2 * stream.window * (manifest.row_bytes + image_bytes(job.spec.data.image_columns))
    for pod in reads:
        table.add_row(
            str(pod.pod),
            _span(pod.ranks),
            _span(sorted(set(pod.rank_batches))),
            f"{_span(pod.lanes)} ({len(pod.lanes)})",
            f"{pod.rows:,}",
            _mib(window_bytes * len(pod.lanes)),
            _reads(pod.ranges),
        )
    out.print(table)
    sidecar = job.spec.sidecar
    slots = f"{sidecar.slots} slots a rank"
    slots += f" of {format_bytes(sidecar.slot_bytes)}" if sidecar.slot_bytes else ""
    out.print(
        f"{stream.rows:,} samples in {len(manifest.shards):,} shards; {stream.lanes} lanes, windows of "
        f"{stream.window:,} rows, {stream.steps_per_epoch:,} steps an epoch of {stream.global_batch_size:,} samples; "
        f"read-ahead {format_bytes(sidecar.read_ahead_bytes)} a pod, {slots}"
    )
    worst = max((window_bytes * len(pod.lanes) for pod in reads), default=0)
    if worst > sidecar.read_ahead_bytes:
        out.print(
            f"[yellow]open windows need {_mib(worst)} in one pod and sidecar.readAheadBytes is "
            f"{format_bytes(sidecar.read_ahead_bytes)}: raise it, or use more pods[/]"
        )


def _reads(ranges: tuple[str, ...]) -> str:
    """Ranges of one shard that follow each other (of lanes that do) are shown as one."""
    joined: list[tuple[str, str, str]] = []
    for text in ranges:
        path, _, rows = text.rpartition("[")
        start, _, stop = rows.rstrip("]").partition(":")
        if joined and joined[-1][0] == path and joined[-1][2] == start:
            start = joined.pop()[1]
        joined.append((path, start, stop))
    lines = [f"{path}[{start}:{stop}]" for path, start, stop in joined[:MAX_RANGES]]
    more = len(joined) > MAX_RANGES or len(ranges) >= MAX_SPELLED
    return "\n".join([*lines, *(["..."] if more else [])])


def _span(values: tuple[int, ...] | list[int]) -> str:
    """0-3, 7: runs of numbers."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def _mib(value: float) -> str:
    return f"{value / (1 << 20):,.1f} MiB"
