"""The data plane alone, in one process: where its CPU goes. `python -m bench.engine W4` (or under py-spy or cProfile).

Index, decode, scatter, assemble into slots; no gRPC, no trainer. Prints the rate, CPU per GB, and what each stage took,
beside plain decoding in the same process.
"""

import argparse
import os
import resource
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench import decoded, limits, workloads
from bench import measure as m
from bench.one import Request
from bench.pods import manifest_of, pod, usual_spec

__all__ = ["measure_engine"]


def _config(manifest: Any, workload: workloads.Workload, args: argparse.Namespace) -> Any:
    budget = args.budget << 20
    spec = usual_spec(manifest, workload.batch, budget, workload.images)
    print(f"lanes {spec.lanes}, window {spec.window}, row bytes {manifest.row_bytes:.0f}")
    return pod(
        spec,
        epochs=100000,
        read_ahead_bytes=budget,
        decode_threads=args.threads,
        cache_dir=args.cache,
        cache_bytes=decoded.BYTES if args.cache else 0,
        images=workload.images,
    )


@dataclass(frozen=True, slots=True)
class _Mark:
    """Clocks and counters at one moment."""

    step: int
    wall: float
    cpu: float
    faults: int
    noise: m.Noise
    stats: Any

    @classmethod
    def now(cls, step: int, stats: Any) -> "_Mark":
        """Read them all."""
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        return cls(step, time.monotonic(), time.process_time(), faults, m.Noise.now(), stats.snapshot())


def _report(start: _Mark, end: _Mark, first: float, batch_bytes: int) -> None:
    gigabytes, wall, cpu = (end.step - start.step) * batch_bytes / 1e9, end.wall - start.wall, end.cpu - start.cpu
    print(
        f"first frame {first:.3f} s; {gigabytes * 1e3 / wall:.0f} MB/s, {cpu / gigabytes:.3f} CPU-s/GB, "
        f"{(end.faults - start.faults) / gigabytes:.0f} page faults/GB"
    )
    for name, value in end.stats.seconds.items():
        print(f"  {name:10s} {(value - start.stats.seconds.get(name, 0)) / gigabytes:7.3f} s/GB (wall of its threads)")
    for name, value in end.stats.waits.items():
        print(f"  wait {name} {(value - start.stats.waits.get(name, 0)) / wall:7.3f} of the time")
    print(" ", {k: v - start.stats.counts.get(k, 0) for k, v in end.stats.counts.items()})
    print(" ", m.noise_since(start.noise, cpu))


def measure_engine(workload: workloads.Workload, args: argparse.Namespace) -> None:
    """Run the engine for the window and print what it did."""
    from lanefeed_sidecar.pipeline import Engine, Stats

    # Entries of a cache are named by the files' digests.
    manifest = manifest_of(workload, **({} if args.cache else {"digest": "Never"}))
    config = _config(manifest, workload, args)
    stats = Stats()
    engine = Engine(config, manifest, stats=stats)
    slots = [np.ones(engine.slot_bytes, np.uint8) for _ in range(config.slots)]
    began = time.monotonic()
    engine.seek(0, 0)
    engine.start()
    step, number, first = 0, 0, 0.0
    warm_up, window = (int(gb * 1e9 / workload.batch_bytes) for gb in (args.warm_up, args.gigabytes))
    start: _Mark | None = None
    while step < warm_up + window:
        meta = engine.fill(0, step, slots[number % len(slots)], cancelled=lambda: False)
        first = first or time.monotonic() - began
        step, number = step + meta.steps, number + 1
        if start is None and step >= warm_up:
            start = _Mark.now(step, stats)
    _report(start, _Mark.now(step, stats), first, workload.batch_bytes)
    print(" ", engine.memory())
    engine.close()


def main() -> None:
    """Engine and plain decode, in turn."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", nargs="?", default="W4")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--warm-up", type=float, default=0.8, help="GB before the window")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="GB in the window")
    parser.add_argument("--budget", type=int, default=512, help="read-ahead budget, MiB")
    parser.add_argument("--cache", default="", help="folder of a decoded cache, or FILLED: one that holds all")
    parser.add_argument("--no-decode", action="store_true", help="the engine only, for a profiler")
    args = parser.parse_args()
    # As the sidecar sets it before Arrow is imported: without it a fifth of the CPU is fresh pages.
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "-1")
    workloads.ensure(args.workload)
    workloads.warm(args.workload)
    if args.cache == "FILLED":
        args.cache = str(decoded.filled(args.workload))
    if not args.no_decode:
        request = Request(loader="decode", workload=args.workload, options={"threads": args.threads})
        print("decode alone:", {k: round(v, 3) for k, v in limits.decode(request).items()})
    measure_engine(workloads.WORKLOADS[args.workload], args)


if __name__ == "__main__":
    main()
