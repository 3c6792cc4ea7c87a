"""Decoded caches for `bench`: a whole one for a workload, filled once, and empty ones for runs that begin without.

Filling reads one epoch with the engine and lets it write whatever it decodes; a run that only reads finds everything.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench import workloads
from bench.pods import manifest_of, pod

__all__ = ["BYTES", "FRESH", "filled", "fresh"]

#: Larger than any workload.
BYTES = 16 << 30
#: The option's value that stands for an empty folder of the run's own.
FRESH = "{fresh}"


def _home(name: str) -> Path:
    return Path(workloads.folder(name)).parents[1] / "decoded" / name


def fresh(name: str) -> Path:
    """An empty folder on the same disk; the caller removes it."""
    home = _home(name).parent
    home.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=home, prefix="fresh-"))


def filled(name: str) -> Path:
    """The folder with every row group of the workload, made where there is none or where another build made it."""
    home = _home(name)
    if not (home / "done").exists() or _epoch(name, home, write=False):
        shutil.rmtree(home, ignore_errors=True)
        _epoch(name, home, write=True)
        missed = _epoch(name, home, write=False)
        if missed:
            raise SystemExit(f"{missed} row groups of {name} were decoded again although {home} should hold them all")
        (home / "done").write_text("")
    for entry in sorted(home.rglob("*")):
        # Into the page cache, as the shards are.
        if entry.is_file():
            entry.read_bytes()
    return home


def _epoch(name: str, home: Path, *, write: bool) -> int:
    """Read an epoch; with `write` whatever is decoded is kept. The number of row groups that were decoded."""
    from lanefeed_core.stream import StreamSpec
    from lanefeed_sidecar.cache import Allowance
    from lanefeed_sidecar.pipeline import Engine, Stats

    # As `lanefeed.open` indexes: names of entries hold the files' digests where it makes them.
    workload = workloads.WORKLOADS[name]
    manifest = manifest_of(workload)
    config = pod(
        StreamSpec(seed=7, global_batch_size=workload.batch, lanes=2, window=1024),
        epochs=2,
        cache_dir=str(home),
        cache_bytes=BYTES,
    )
    allowance: Any = Allowance
    before, allowance.open = allowance.open, write
    stats = Stats()
    engine = Engine(config, manifest, stats=stats)
    try:
        engine.start()
        slot, step = np.empty(engine.slot_bytes, np.uint8), 0
        while step < engine.total_steps // 2 + 1:
            meta = engine.fill(0, step, slot, cancelled=lambda: False)
            step += meta.steps if meta else engine.total_steps
        return int(stats.snapshot().counts.get("row_groups", 0))
    finally:
        engine.close()
        allowance.open = before
