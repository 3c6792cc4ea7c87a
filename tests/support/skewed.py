"""Datasets with one huge row group among small ones, which compress to next to nothing, and a sidecar that reads them.

All values of a row follow from its sample id. The sidecar is a real process in a cgroup of its own; the test is its
trainer, with as many ranks as the case has.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import lanefeed
from lanefeed_core import manifest_codec
from lanefeed_core.cursor import Cursor
from lanefeed_core.lanes import Lanes
from lanefeed_core.manifest import Manifest
from lanefeed_core.plan import Plan
from lanefeed_core.podconfig import PodConfig
from lanefeed_core.slices import rank_slice
from lanefeed_core.stream import StreamSpec
from lanefeed_sidecar.index import build_manifest
from support.cgroup import Cgroup

MIB = 1 << 20
#: Bytes of a row of each kind, decoded.
TEXT_BYTES, LIST_ITEMS, COLUMNS = 64 << 10, 2048, 8

Rows = Callable[[np.ndarray], pa.Table]


def flat(ids: np.ndarray) -> pa.Table:
    """Eight columns of 64-bit numbers in long runs."""
    return pa.table({f"c{i}": pa.array(ids // 4096 + i) for i in range(COLUMNS)})


def lists(ids: np.ndarray) -> pa.Table:
    """Lists of 2,048 and, every third row, 1,024 numbers."""
    lengths = np.where(ids % 3 == 0, LIST_ITEMS // 2, LIST_ITEMS)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = np.repeat((ids // 64).astype(np.int32), lengths)
    return pa.table({"x": pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))})


def fixed_lists(ids: np.ndarray) -> pa.Table:
    """Lists of 2,048 numbers, all of one length."""
    values = pa.array(np.repeat((ids // 64).astype(np.int32), LIST_ITEMS))
    return pa.table({"x": pa.FixedSizeListArray.from_arrays(values, LIST_ITEMS)})


def texts(ids: np.ndarray) -> pa.Table:
    """Strings of 64 KiB, of which few differ: a dictionary makes a few bytes of each."""
    few = pa.array([chr(97 + i) * TEXT_BYTES for i in range(8)])
    return pa.table({"s": few.take(pa.array(ids // 256 % 8))})


#: Kind -> (rows of ids, bytes of a row).
KINDS: dict[str, tuple[Rows, int]] = {
    "flat": (flat, 8 * COLUMNS),
    "lists": (lists, 4 * LIST_ITEMS),
    "fixed_lists": (fixed_lists, 4 * LIST_ITEMS),
    "texts": (texts, TEXT_BYTES),
}


def write(folder: Path, kind: str, huge: int, small: int, **options: Any) -> Manifest:
    """Five shards; the third has one row group of `huge` decoded bytes, the others row groups of `small`."""
    make, row = KINDS[kind]
    folder.mkdir(parents=True)
    first = 0
    for number in range(5):
        group = huge // row if number == 2 else small // row
        rows = group if number == 2 else 4 * group
        _write(folder / f"{number}.parquet", make, first, rows, group, max(1, small // row), options)
        first += rows
    return build_manifest([str(folder)], digest="Never").manifest


def _write(path: Path, make: Rows, first: int, rows: int, group: int, step: int, options: Any) -> None:
    parts = [make(np.arange(first + at, first + min(rows, at + step))) for at in range(0, rows, step)]
    pq.write_table(pa.concat_tables(parts), path, row_group_size=group, **{"compression": "zstd", **options})


@dataclass
class Fed:
    """What a run was like."""

    peak: int
    rss: int
    arena: int
    steps: int
    metrics: str
    log: str
    errors: list[str] = field(default_factory=list)


def config(folder: Path, manifest: Manifest, spec: StreamSpec, *, ranks: int, budget: int, **more: Any) -> PodConfig:
    """Of a pod with `ranks` ranks, all there are; writes the manifest."""
    path = folder / "manifest.bin"
    path.write_bytes(manifest_codec.encode(manifest))
    return PodConfig(
        job="skewed",
        job_uid="u",
        pod_index=0,
        pod_uid="p",
        plan=Plan(1, 1, ranks, Cursor(), allow_uneven=True),
        spec=spec,
        manifest_path=str(path),
        run_dir=str(folder),
        read_ahead_bytes=budget,
        **more,
    )


@contextmanager
def run_folder() -> Iterator[Path]:
    """A folder in tmpfs."""
    folder = Path(tempfile.mkdtemp(prefix="lf-skew-", dir=os.environ.get("LANEFEED_SHM_ROOT", "/dev/shm")))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def sidecar(cgroup: Cgroup, pod: PodConfig, fault: str = "") -> Iterator["subprocess.Popen[bytes]"]:
    """The process, told to end at the end. `fault`: Python that it runs before its own."""
    folder = Path(pod.run_dir)
    (folder / "pod.json").write_text(pod.to_json())
    start = f"{fault}\nimport sys; from lanefeed_sidecar.main import main; sys.exit(main())"
    command = [sys.executable, *(["-c", start] if fault else ["-m", "lanefeed_sidecar"])]
    command += ["--config", str(folder / "pod.json")]
    with (folder / "sidecar.log").open("wb") as log:
        process = subprocess.Popen(cgroup.command(command), stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def feed(
    cgroup: Cgroup,
    pod: PodConfig,
    manifest: Manifest,
    make: Rows | None,
    *,
    seconds: float = 300,
    fault: str = "",
    after: str = "",
) -> Fed:
    """Read the whole stream as all ranks and compare it (`make` None: only ids); an error of a loader ends it.

    Ranks attach once the sidecar has logged `after`.
    """
    folder, errors, steps, arena, rss, metrics = Path(pod.run_dir), [], 0, 0, 0, ""
    lanes = Lanes(pod.spec, manifest.shard_rows)
    end = time.monotonic() + seconds
    with sidecar(cgroup, pod, fault) as process:
        while after not in (folder / "sidecar.log").read_text():
            assert time.monotonic() < end, f"the sidecar did not log {after!r} in {seconds:g} s"
            time.sleep(0.05)
        loaders = [_connect(pod, rank) for rank in range(pod.plan.world)]
        streams = [_batches(loader) for loader in loaders]
        try:
            while time.monotonic() < end:
                batches = [next(stream, None) for stream in streams]
                if batches[0] is None:
                    assert not any(batches)
                    break
                arena = arena or sum(path.stat().st_size for path in folder.glob("arena-*"))
                for rank, batch in enumerate(batches):
                    _check(lanes, pod, rank, batch, make)
                steps += 1
            else:
                raise AssertionError(f"not done after {seconds:g} s, at step {steps}")
        except lanefeed.LanefeedError as error:
            errors.append(f"{type(error).__name__}: {error}")
        # A fatal error ends the process: then only the cgroup knows.
        with contextlib.suppress(OSError):
            rss, metrics = _high_water(process.pid), _metrics(folder)
        peak = cgroup.peak()
        for loader in loaders:
            loader.close()
    return Fed(peak, rss, arena, steps, metrics, (folder / "sidecar.log").read_text(), errors)


def _batches(loader: Any) -> Iterator[Any]:
    for _ in loader.epochs():
        yield from loader


def _connect(pod: PodConfig, rank: int) -> Any:
    return lanefeed.connect(
        rank=rank, world=pod.plan.world, tensors="numpy", run_dir=pod.run_dir, plan_generation=1, attach_timeout=60
    )


def _check(lanes: Lanes, pod: PodConfig, rank: int, batch: Any, make: Rows | None) -> None:
    ids, _ = lanes.batch(batch.epoch, batch.step % lanes.steps_per_epoch)
    low, high = rank_slice(len(ids), pod.plan.world, rank)
    assert batch.ids.tolist() == ids[low:high].tolist(), f"rank {rank}, step {batch.step}: another order"
    if make is None:
        return
    want = make(ids[low:high])
    for name in want.schema.names:
        got, column = batch[name], want.column(name).combine_chunks()
        if isinstance(got, lanefeed.Ragged):
            assert np.array_equal(got.offsets, np.frombuffer(column.buffers()[1], np.int32)), f"{name}: {batch.step}"
            got = got.values
        if pa.types.is_string(column.type):
            expected = np.frombuffer(column.buffers()[2], np.uint8)
        else:
            expected = (column.values if pa.types.is_nested(column.type) else column).to_numpy()
        assert np.array_equal(got.reshape(-1), expected), f"rank {rank}, step {batch.step}: column {name} differs"


def _high_water(pid: int) -> int:
    """The most that the process's RSS ever was."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise ProcessLookupError(pid)


def _metrics(folder: Path) -> str:
    from http.client import HTTPConnection

    connection = HTTPConnection((folder / "metrics.addr").read_text().strip(), timeout=60)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def figures(fed: Fed, budget: int) -> str:
    """One line for a message."""
    found = {"peak": fed.peak, "rss": fed.rss, "arena": fed.arena, "budget": budget}
    return json.dumps({key: value // MIB for key, value in found.items()})
