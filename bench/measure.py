"""How a number is made: touching a batch, a training step, CPU and memory of a process tree, the measuring window.

Shared by `one` (loaders) and `limits` (the bare machine), so that both sides of every ratio count in the same way. Only
NumPy and the standard library: it also runs in the peers' environment. Linux only (/proc).
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["STEPS", "Noise", "Window", "digest", "leaves", "measure", "memory", "noise_since", "touch", "tree_cpu"]

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
#: Seconds of batches that are taken before the window: they drain what was prefetched before the first batch came.
WARM_UP_SECONDS = 1.0


def leaves(batch: Any) -> Iterator[NDArray[Any]]:
    """The arrays of a batch in a fixed order: dicts by key, lists in order, tensors as NumPy views."""
    if isinstance(batch, dict):
        for key in sorted(batch):
            yield from leaves(batch[key])
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from leaves(value)
    elif isinstance(batch, np.ndarray):
        yield batch
    elif hasattr(batch, "numpy"):
        yield batch.numpy()


def touch(batch: Any) -> int:
    """Read one byte of each 4 KiB page of every array, as a consumer must at least; the cheapest way that NumPy has."""
    seen = 0
    for array in leaves(batch):
        seen |= int(np.bitwise_or.reduce(array.reshape(-1).view(np.uint8)[::4096]))
    return seen


def digest(batch: Any) -> str:
    """A digest of a batch's content in order; integer width does not count, since loaders differ in it."""
    found = hashlib.blake2b(digest_size=8)
    for array in leaves(batch):
        wide = array.astype(np.int64) if array.dtype.kind in "iu" else array
        found.update(np.ascontiguousarray(wide).tobytes())
    return found.hexdigest()


def _work(seconds: float) -> None:
    """Hold the GIL and a core for `seconds`: a trainer that is busy in Python."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


#: What a training step does for its milliseconds: nothing at all, wait (the GPU works), or hold the GIL.
STEPS: dict[str, Callable[[float], None]] = {"none": lambda _: None, "sleep": time.sleep, "busy": _work}


def _stat(pid: int) -> list[str]:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()


def tree(roots: Iterable[int]) -> dict[int, list[str]]:
    """/proc/PID/stat fields (from the state on) of `roots` and of all their living descendants."""
    todo, found = list(roots), {}
    while todo:
        pid = todo.pop()
        if pid in found:
            continue
        try:
            found[pid] = _stat(pid)
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as file:
                    todo += [int(child) for child in file.read().split()]
        except OSError:
            continue
    return found


def tree_cpu(roots: Iterable[int]) -> float:
    """CPU seconds of the processes and their descendants, with what they have reaped; ticks of 10 ms."""
    return sum(sum(int(x) for x in stat[11:15]) for stat in tree(roots).values()) / TICKS


def memory(pid: int) -> dict[str, int]:
    """Bytes of a process by kind (rss, anon, file, shmem), its file descriptors and threads."""
    with open(f"/proc/{pid}/status") as file:
        status = dict(line.split(":", 1) for line in file.read().splitlines() if ":" in line)
    names = {"rss": "VmRSS", "anon": "RssAnon", "file": "RssFile", "shmem": "RssShmem"}
    found = {key: int(status[name].split()[0]) * 1024 for key, name in names.items()}
    return {**found, "fds": len(os.listdir(f"/proc/{pid}/fd")), "threads": int(status["Threads"])}


@dataclass(frozen=True, slots=True)
class Noise:
    """Clock and CPU counters of the whole machine at one moment, in seconds."""

    at: float
    busy: float
    stolen: float

    @classmethod
    def now(cls) -> "Noise":
        """Read /proc/stat."""
        with open("/proc/stat") as file:
            ticks = [int(x) for x in file.readline().split()[1:9]]
        user, nice, system, _idle, _wait, irq, softirq, steal = ticks
        return cls(time.monotonic(), (user + nice + system + irq + softirq) / TICKS, steal / TICKS)


def noise_since(start: Noise, own_cpu: float) -> dict[str, float]:
    """Cores that other people's processes used since `start`, and cores that the hypervisor took."""
    end = Noise.now()
    wall = max(1e-9, end.at - start.at)
    return {
        "foreign_cores": round(max(0.0, end.busy - start.busy - own_cpu) / wall, 3),
        "stolen_cores": round((end.stolen - start.stolen) / wall, 3),
    }


@dataclass(slots=True)
class Window:
    """What was seen in the measuring window; seconds, except where a name says otherwise."""

    batches: int = 0
    wall: float = 0.0
    blocked: float = 0.0
    #: As `blocked`, with the time in which columns were made.
    opened: float = 0.0
    #: CPU of the consuming thread in next() and in making all columns, and of all threads of its process.
    next_cpu: float = 0.0
    process_cpu: float = 0.0
    tree_cpu: float = 0.0
    waits: list[float] = field(default_factory=list)
    noise: dict[str, float] = field(default_factory=dict)

    def to_dict(self, batch_bytes: int) -> dict[str, float]:
        """Rates and shares. `*_cpu_us` are per batch; the clock's own cost is taken off `next_cpu_us`."""
        waits = np.sort(np.array(self.waits)) * 1e3
        gigabytes = self.batches * batch_bytes / 1e9
        return {
            "batches": self.batches,
            "batches_s": self.batches / self.wall,
            "mb_s": gigabytes * 1e3 / self.wall,
            "stall_percent": 100 * self.blocked / self.wall,
            "stall_with_columns_percent": 100 * self.opened / self.wall,
            "next_cpu_us": 1e6 * self.next_cpu / self.batches - clock_cost_us(),
            "process_cpu_us": 1e6 * self.process_cpu / self.batches,
            "cpu_s_per_gb": self.tree_cpu / gigabytes,
            "cores": self.tree_cpu / self.wall,
            "wait_p50_ms": float(waits[len(waits) // 2]),
            "wait_p99_ms": float(waits[int(len(waits) * 0.99)]),
            "wait_max_ms": float(waits[-1]),
            **self.noise,
        }


def clock_cost_us(tries: int = 2000) -> float:
    """CPU that one pair of time.thread_time() calls adds to what it measures."""
    total = 0.0
    for _ in range(tries):
        start = time.thread_time()
        total += time.thread_time() - start
    return 1e6 * total / tries


def measure(
    batches: Iterator[Any], *, seconds: float, step: str, step_ms: float, roots: Callable[[], list[int]]
) -> Window:
    """Take batches for `seconds` after the warm-up. `roots` names the processes whose CPU counts."""
    train, length = STEPS[step], step_ms / 1e3
    warm_end = time.monotonic() + WARM_UP_SECONDS
    while time.monotonic() < warm_end:
        train(length)
        touch(next(batches))
    seen, mine = Window(), roots()
    noise, cpu, process = Noise.now(), tree_cpu(mine), time.process_time()
    begin = time.monotonic()
    end = begin + seconds
    clock, thread_clock, waits = time.monotonic, time.thread_time, seen.waits
    opened = next_cpu = 0.0
    while True:
        train(length)
        # A system call, cold after the step: outside of what counts as waiting.
        cpu_start = thread_clock()
        start = clock()
        if start > end and seen.batches:
            break
        batch = next(batches)
        waits.append(clock() - start)
        if isinstance(batch, dict):
            tuple(batch.values())  # where columns become tensors when they are looked at, that is part of the price
        opened += clock() - start
        next_cpu += thread_clock() - cpu_start
        touch(batch)
        seen.batches += 1
    seen.wall = time.monotonic() - begin
    seen.blocked, seen.opened, seen.next_cpu = sum(waits), opened, next_cpu
    seen.process_cpu = time.process_time() - process
    seen.tree_cpu = tree_cpu(mine) - cpu
    seen.noise = noise_since(noise, seen.tree_cpu)
    return seen
