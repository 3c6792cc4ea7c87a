"""Remote data: the share of a store's bandwidth that reaches batches at 50 ms a request. `python -m bench.remote`.

A real S3 server (moto's) behind a proxy that adds latency and caps the bandwidth of all connections together, each a
process of its own; the engine reads one epoch through it. `python -m bench.remote SPAWNED JSON` is a job of
`bench.run`. `s3_ratio` = bytes of the shards / seconds of the whole
epoch, its start included / the cap; `s3_unhidden_ratio` is the same with fetching left to the decode threads. Writes
both into results/latest.json where `--write` is given; to be run on a quiet machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.pods import pod

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

__all__: list[str] = []

RESULTS = ROOT / "bench" / "results" / "latest.json"
LATENCY_SECONDS = 0.05
#: Low enough that moto and the proxy, which are Python, are not what limits.
CAP_MB_S = 40.0
SHARDS, GROUPS, ROWS, TOKENS = 24, 6, 256, 2048
ROUNDS = 2


def _write_shards(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(1)
    for number in range(SHARDS):
        flat = pa.array(rng.integers(0, 1 << 31, GROUPS * ROWS * TOKENS, dtype=np.int32))
        table = pa.table({"tokens": pa.FixedSizeListArray.from_arrays(flat, TOKENS)})
        path = folder / f"{number:03d}.parquet"
        pq.write_table(table, path, row_group_size=ROWS, compression="none", use_dictionary=False)


def _serve_proxy(upstream: int, cap: float) -> None:
    """In a process of its own: prints its port, serves until its input ends."""
    from support.fault_proxy import FaultProxy

    with FaultProxy(upstream, latency=LATENCY_SECONDS, cap=cap) as proxy:
        print(proxy.port, flush=True)
        sys.stdin.read()


@contextmanager
def _proxy(upstream: int, cap: float) -> Iterator[str]:
    command = [sys.executable, "-m", "bench.remote", "--serve", str(upstream), str(cap)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.communicate("", timeout=10)


def _epoch(manifest: Any, *, ahead: bool) -> tuple[float, int, dict[str, int]]:
    """(seconds, bytes of shards, counts) of one epoch."""
    from lanefeed_core.stream import StreamSpec
    from lanefeed_sidecar.formats import remote
    from lanefeed_sidecar.pipeline import Engine, Stats

    config = pod(
        StreamSpec(seed=7, global_batch_size=16, lanes=8, window=512),
        epochs=1,
        read_ahead_bytes=512 << 20,
    )
    stats = Stats()
    engine = Engine(config, manifest, stats=stats)
    if not ahead:
        shards = remote.RemoteShards(manifest, engine.columns, stats)
        engine.close()
        engine = Engine(config, manifest, stats=stats, open_shard=shards.open)
        engine._fetch = None
        engine._store.fetched = lambda _: True
    try:
        began = time.monotonic()
        engine.seek(0, 0)
        engine.start()
        slot, step = np.empty(engine.slot_bytes, np.uint8), 0
        while (meta := engine.fill(0, step, slot, cancelled=lambda: False)) is not None:
            step += meta.steps
        counts = stats.snapshot().counts
        return time.monotonic() - began, counts["remote_bytes"], counts
    finally:
        engine.close()
        if not ahead:
            shards.close()


def _measure(cap: float, rounds: int) -> dict[str, float]:
    from lanefeed_sidecar.index import build_manifest
    from support.s3 import s3_server

    found: dict[str, list[float]] = {"s3_ratio": [], "s3_unhidden_ratio": []}
    with tempfile.TemporaryDirectory() as folder, s3_server() as server:
        _write_shards(Path(folder))
        server.put_folder(Path(folder), "train")
        with _proxy(server.port, cap) as url:
            endpoint = {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
            os.environ.update({**endpoint, "AWS_EC2_METADATA_DISABLED": "true", "AWS_DEFAULT_REGION": "us-east-1"})
            manifest = build_manifest(["s3://data/train"]).manifest
            for _ in range(rounds):
                for key, ahead in (("s3_ratio", True), ("s3_unhidden_ratio", False)):
                    seconds, size, counts = _epoch(manifest, ahead=ahead)
                    found[key].append(size / seconds / cap)
                    print(
                        f"{key}: {found[key][-1]:.3f} ({size / 1e6:.0f} MB in {seconds:.1f} s, {counts})",
                        file=sys.stderr,
                        flush=True,
                    )
    numbers = {key: round(float(np.median(values)), 3) for key, values in found.items()}
    return numbers | {f"spread.{key}": round(max(values) - min(values), 3) for key, values in found.items()}


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", nargs=2, default=None)
    parser.add_argument("--cap", type=float, default=CAP_MB_S, help="MB/s")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("job", nargs="*", help="as bench.run starts it: prints a RESULT line")
    args = parser.parse_args()
    if args.serve:
        _serve_proxy(int(args.serve[0]), float(args.serve[1]))
        return
    numbers = _measure(args.cap * 1e6, args.rounds)
    print(("RESULT " if args.job else "") + json.dumps(numbers), flush=True)
    if args.write:
        known = json.loads(RESULTS.read_text())
        RESULTS.write_text(json.dumps({**known, **numbers}, indent=1) + "\n")


if __name__ == "__main__":
    main()
