"""`python -m lanefeed_sidecar trial`: what can this dataset deliver on this machine, and what holds it up?

Runs the data plane as a job would (index, read, decode, shuffle, assemble frames) for some seconds, with a trainer that
takes everything at once and a shared memory that nobody else reads, and prints one JSON object. The `lanefeed` command
(`lanefeed bench`) calls it and makes a table. No gRPC, no GPU, no proof: a real job is a little slower.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lanefeed_core.cursor import Cursor
from lanefeed_core.errors import CoreError
from lanefeed_core.images import image_bytes, image_columns
from lanefeed_core.manifest import Manifest
from lanefeed_core.plan import Plan
from lanefeed_core.podconfig import PodConfig
from lanefeed_core.stream import StreamSpec, default_lanes, default_window
from lanefeed_sidecar.errors import SidecarError
from lanefeed_sidecar.index.options import add_packing, packing_of
from lanefeed_sidecar.pipeline.stats import Snapshot, Stats

__all__ = ["limit", "main"]

#: Of the time in which threads decode: above this share without CPU they wait for storage, or for a core.
WAITING_SHARE = 0.4
#: Of all cores: below this share something other than CPU is missing.
IDLE_SHARE = 0.7


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 measured, 2 the data or the arguments cannot be used (the last line of stderr says why)."""
    args = _arguments(argv)
    try:
        print(json.dumps(_measure(args)))
    except (SidecarError, CoreError) as error:
        kind = error.kind if isinstance(error, SidecarError) else type(error).__name__
        print(" ".join(f"{kind}: {error}".split()), file=sys.stderr)
        return 2
    return 0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="lanefeed-sidecar trial", description="What can this dataset deliver?")
    parser.add_argument("uri", nargs="+", help="files, folders or globs")
    parser.add_argument("--base", default=None, help="folder that relative URIs start from")
    parser.add_argument("--columns", default="", help="comma-separated columns (all)")
    add_packing(parser)
    parser.add_argument("--images", default="[]", help="JSON list: columns that will be delivered as pixels (none)")
    parser.add_argument("--batch", type=int, default=256, help="samples of a global batch")
    parser.add_argument("--threads", type=int, default=0, help="decode threads (as a sidecar would choose)")
    parser.add_argument("--read-ahead", type=int, default=512 << 20, help="bytes")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--no-shuffle", action="store_true")
    return parser.parse_args(argv)


@dataclass(frozen=True, slots=True)
class _Mark:
    at: float
    cpu: float
    stats: Snapshot


def _measure(args: argparse.Namespace) -> dict[str, Any]:
    from lanefeed_sidecar.index import build_manifest
    from lanefeed_sidecar.pipeline.engine import Engine

    began = time.monotonic()
    columns = tuple(c for c in args.columns.split(",") if c)
    args.images = image_columns(json.loads(args.images))
    manifest = build_manifest(
        args.uri,
        base=args.base,
        columns=columns,
        images=args.images,
        packing=packing_of(args),
        digest="Never",
        on_corrupt="",
    ).manifest
    indexed = time.monotonic()
    stats = Stats()
    threads = args.threads or max(1, min(4, len(os.sched_getaffinity(0))))
    config = _config(args, manifest, columns, threads)
    engine = Engine(config, manifest, stats=stats)
    try:
        engine.start()
        slots = [np.ones(engine.slot_bytes, np.uint8) for _ in range(config.slots)]
        step, number, start, first = 0, 0, None, 0.0
        end = time.monotonic() + args.seconds
        # Two frames at least, the first of which is not counted: slow storage must not look like none.
        while time.monotonic() < end or number < 2:
            meta = engine.fill(0, step, slots[number % len(slots)], cancelled=lambda: False)
            if meta is None:
                break
            if start is None:
                # The first frame waits for whole windows; the rest is the steady state. Time and counts begin together:
                # that wait without its samples would make fast data look slow.
                start = _Mark(time.monotonic(), time.process_time(), stats.snapshot())
                first = start.at - indexed
                end = start.at + args.seconds
            step, number = step + meta.steps, number + 1
        stop = _Mark(time.monotonic(), time.process_time(), stats.snapshot())
    finally:
        engine.close()
    fixed = sum(column.row_bytes for column in engine.columns if not column.ragged)
    row_bytes = fixed if all(not column.ragged for column in engine.columns) else max(fixed, manifest.row_bytes)
    found = _report(start or stop, stop, row_bytes, threads)
    return found | {
        "index_seconds": indexed - began,
        "first_batch_seconds": first,
        "threads": threads,
        "lanes": config.spec.lanes,
        "window": config.spec.window,
    }


def _config(args: argparse.Namespace, manifest: Manifest, columns: tuple[str, ...], threads: int) -> PodConfig:
    lanes = default_lanes(global_batch_size=args.batch, ranks=1, row_groups=manifest.num_row_groups)
    row_bytes = manifest.row_bytes + image_bytes(args.images)
    window = default_window(lanes=lanes, row_bytes=row_bytes, budget_bytes=args.read_ahead)
    return PodConfig(
        job="trial",
        job_uid="trial",
        pod_index=0,
        pod_uid="trial",
        plan=Plan(1, 1, 1, Cursor()),
        spec=StreamSpec(seed=0, global_batch_size=args.batch, lanes=lanes, window=window, shuffle=not args.no_shuffle),
        epochs=1_000_000_000,
        manifest_path="",
        columns=columns,
        images=args.images,
        run_dir="",
        read_ahead_bytes=args.read_ahead,
        decode_threads=threads,
    )


def _report(start: _Mark, stop: _Mark, row_bytes: float, threads: int) -> dict[str, Any]:
    wall = max(1e-9, stop.at - start.at)

    def seconds(name: str) -> float:
        return stop.stats.seconds.get(name, 0.0) - start.stats.seconds.get(name, 0.0)

    def count(name: str) -> int:
        return stop.stats.counts.get(name, 0) - start.stats.counts.get(name, 0)

    samples = count("samples")
    whole = wall * threads
    shares = {
        "decode_cpu": seconds("decode_cpu") / whole,
        "decode_waiting": max(0.0, seconds("decode") - seconds("decode_cpu")) / whole,
        "opening": seconds("read") / whole,
        "scatter": seconds("scatter") / whole,
    }
    cores = len(os.sched_getaffinity(0))
    busy = (stop.cpu - start.cpu) / wall / cores
    code, text = limit(shares, busy, again=count("decoded_again"), groups=count("row_groups"))
    return {
        "seconds": wall,
        "samples_per_second": samples / wall,
        "bytes_per_second": samples * row_bytes / wall,
        "read_bytes_per_second": count("bytes_read") / wall,
        "cores": cores,
        "cores_busy": busy * cores,
        "shares": shares,
        "assemble_share": seconds("assemble") / wall,
        "decoded_again": count("decoded_again"),
        "limit": code,
        "advice": text,
    }


def limit(shares: Mapping[str, float], busy: float, *, again: int, groups: int) -> tuple[str, str]:
    """(what limits, what to do), from shares of the decode threads' time and the share of all cores that was busy."""
    decode = shares["decode_cpu"] + shares["decode_waiting"]
    if groups and again > groups / 5:
        return "memory", (
            "row groups are decoded more than once, since the read-ahead budget is too small to keep them: raise "
            "sidecar.readAheadBytes, lower batching.lanes, or write smaller row groups"
        )
    if shares["opening"] > decode:
        return (
            "opening",
            "shards are so small that opening them takes longer than reading them: write fewer, larger ones",
        )
    if shares["decode_waiting"] > WAITING_SHARE * decode and busy < IDLE_SHARE:
        return "storage", (
            "decode threads wait for bytes while cores are idle: more decode threads hide more latency "
            "(sidecar.decodeThreads); faster or nearer storage helps"
        )
    if busy < IDLE_SHARE:
        return "threads", "cores are idle and decode threads are not: raise sidecar.decodeThreads"
    return "decoding", (
        "all cores decode: give the sidecar more CPU, or write files that decode faster (`lanefeed index` says how); "
        "later epochs need none of it with a decoded cache (sidecar.cache)"
    )
