"""Several readers and sidecars at once on one dataset: `bench.run` (ranks) and `bench.sweeps` measure points with it.

Every reader is a process of its own that takes batches as fast as they come; ranks of one sidecar share its decoding.
`python -m bench.bed SPAWNED JSON` is one point as a job of `bench.run`; `... --read JSON` is one reader. What a point
says is rates, CPU of the whole tree per GB, and each sidecar's part; it knows nothing of what is swept.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import measure as m

__all__ = ["Point", "PointFailed", "measure_point", "running"]

START_SECONDS = 60.0
STOP_SECONDS = 20.0
#: A reader that is too slow for its `warm_mib` is measured after so long.
WARM_SECONDS = 6.0
#: Windows, as one, in which it may fall behind a quarter of that.
LONGEST = 4
#: Cells of the readers' shared counters: [0] says stop; reader n has three from 1 + 3n on: bytes, batches, and
#: nanoseconds of its thread's CPU in next() and in making all columns.
Counters = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What is read, and by whom. `batch` is a rank's; None lets Lanefeed choose."""

    files: str
    batch: int
    ranks: int = 1
    sidecars: int = 1
    lanes: int | None = None
    window: int | None = None
    threads: int = 2
    budget_mib: int = 512
    #: Folder of a decoded cache; "": none.
    cache: str = ""
    tensors: str = "numpy"
    #: The window begins after so long, and after each reader has had so much.
    warm_up: float = 1.0
    warm_mib: int = 160
    seconds: float = 2.0

    def to_json(self) -> str:
        """For a command line."""
        return json.dumps(asdict(self))


class PointFailed(Exception):
    """A point that gave no batch; the text ends with what its readers said."""


def measure_point(point: Point) -> dict[str, Any]:
    """Run it: MB/s of all readers, CPU seconds per GB, MB/s of each sidecar, foreign cores. Raises PointFailed."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("LANEFEED_SHM_ROOT", "/dev/shm")) as folder:
        cells = _counters(Path(folder) / "counters", point.ranks * point.sidecars)
        with _readers(point, Path(folder), cells) as readers:
            pids = [reader.pid for reader in readers]
            _await_first(readers, cells)
            _warm_up(point, cells)
            noise, cpu, before, start = m.Noise.now(), m.tree_cpu(pids), cells.copy(), time.monotonic()
            _window(point, cells, int(before[1::3].sum()))
            wall, used, seen = time.monotonic() - start, m.tree_cpu(pids) - cpu, cells - before
            around = m.noise_since(noise, used)
    sizes, batches = seen[1::3].reshape(point.sidecars, point.ranks), int(seen[2::3].sum())
    gigabytes = float(sizes.sum()) / 1e9
    if not gigabytes:
        raise PointFailed(f"no batch came within {point.seconds:g} s of {point}")
    return {
        "mb_s": gigabytes * 1e3 / wall,
        "batches_s": batches / wall,
        "cpu_s_per_gb": used / gigabytes,
        "next_cpu_us": float(seen[3::3].sum()) / 1e3 / batches,
        "cores": used / wall,
        "of_each": [round(float(size) / 1e6 / wall, 1) for size in sizes.sum(axis=1)],
        **around,
    }


@contextmanager
def running(point: Point) -> Iterator["list[subprocess.Popen[bytes]]"]:
    """The point's readers, warm and at full speed, for somebody else to look at."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("LANEFEED_SHM_ROOT", "/dev/shm")) as folder:
        cells = _counters(Path(folder) / "counters", point.ranks * point.sidecars)
        with _readers(point, Path(folder), cells) as readers:
            _await_first(readers, cells)
            _warm_up(point, cells)
            yield readers


def _counters(path: Path, readers: int) -> Counters:
    if not path.exists():
        path.write_bytes(bytes(8 * (1 + 3 * readers)))
    return np.memmap(path, np.int64, "r+")


@contextmanager
def _readers(point: Point, folder: Path, cells: Counters) -> Iterator["list[subprocess.Popen[bytes]]"]:
    """All readers, started; at the end told to stop, and waited for."""
    readers = []
    with (folder / "log").open("wb") as log:
        try:
            for number in range(point.ranks * point.sidecars):
                place = {"number": number, "folder": str(folder), "point": asdict(point)}
                command = [sys.executable, "-m", "bench.bed", "--read", json.dumps(place)]
                readers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
            yield readers
        except PointFailed as failure:
            said = (folder / "log").read_text(errors="replace")[-2000:]
            raise PointFailed(f"{failure}; its readers said:\n{said}") from None
        finally:
            cells[0] = 1
            _end(readers)


def _end(readers: "list[subprocess.Popen[bytes]]") -> None:
    end = time.monotonic() + STOP_SECONDS
    for reader in readers:
        try:
            reader.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            reader.kill()
            reader.wait()


def _await_first(readers: "list[subprocess.Popen[bytes]]", cells: Counters) -> None:
    """Until every reader has had a batch."""
    end = time.monotonic() + START_SECONDS
    while not cells[1::3].all():
        gone = [reader.returncode for reader in readers if reader.poll() is not None]
        if gone or time.monotonic() > end:
            raise PointFailed(f"waited for every reader's first batch: counts {cells[2::3]}, exit codes {gone}")
        time.sleep(0.01)


def _warm_up(point: Point, cells: Counters) -> None:
    """Until every slot has been touched on both sides: fresh memory costs more than all that is measured here."""
    start = time.monotonic()
    while True:
        time.sleep(point.warm_up)
        enough = int(cells[1::3].sum()) >= (point.warm_mib << 20) * point.sidecars * point.ranks
        if enough or time.monotonic() - start > WARM_SECONDS:
            return


def _batches(loader: Any) -> Iterator[Any]:
    for _ in loader.epochs():
        yield from loader


def _window(point: Point, cells: Counters, before: int) -> None:
    """Frames come whole: the window is longer where hardly any came, since the machine is busy."""
    for _ in range(LONGEST):
        time.sleep(point.seconds)
        if int(cells[1::3].sum()) - before >= max(1, point.warm_mib << 18):
            return


def _read(place: dict[str, Any]) -> None:
    """One reader: rank `number % ranks` of its sidecar."""
    import lanefeed

    point, folder, number = Point(**place["point"]), Path(place["folder"]), place["number"]
    cells = _counters(folder / "counters", point.ranks * point.sidecars)
    sidecar, rank = divmod(number, point.ranks)
    loader = lanefeed.open(
        point.files,
        global_batch_size=point.batch * point.ranks,
        seed=7 + sidecar,
        lanes=point.lanes,
        window=point.window,
        tensors=point.tensors,
        decode_threads=point.threads,
        read_ahead_bytes=point.budget_mib << 20,
        rank=rank,
        world=point.ranks,
        cache_dir=point.cache or None,
        run_dir=folder / f"sidecar-{sidecar}",
    )
    try:
        batches, mine, clock = _batches(loader), cells[1 + 3 * number :], time.thread_time_ns
        while not cells[0]:
            start = clock()
            batch = next(batches)
            tuple(batch.values())
            mine[2] += clock() - start
            m.touch(batch)
            mine[0] += sum(array.nbytes for array in m.leaves(batch))
            mine[1] += 1
    finally:
        loader.close()


def main() -> None:
    """A reader, or one point as a job."""
    if sys.argv[1] == "--read":
        _read(json.loads(sys.argv[2]))
        return
    print("RESULT " + json.dumps(measure_point(_of_request(json.loads(sys.argv[2])))), flush=True)


def _of_request(request: dict[str, Any]) -> Point:
    """A job's request: the workload's own batch for each rank."""
    from bench import workloads

    name = request["workload"]
    files = str(workloads.folder(name) / "*.parquet")
    return Point(files=files, batch=workloads.WORKLOADS[name].batch, seconds=request["seconds"], **request["options"])


if __name__ == "__main__":
    main()
