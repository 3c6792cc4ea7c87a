"""Memory of a sidecar under minutes of reading: RSS, file descriptors and threads, sampled; `python bench/memory.py`.

Asserts that the sidecar's RSS stays within arena + read-ahead budget + 200 MiB and does not grow, and that neither file
descriptors nor threads do. Numbers go into results/latest.json. RSS here is everything that the kernel counts for the
process: anonymous memory, pages of the arena, mapped files.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import measure as m  # noqa: E402
from bench import workloads  # noqa: E402
from bench.adapters.lanefeed_ import open_loader  # noqa: E402

__all__ = ["Bounds", "Samples", "numbers", "verdict"]

#: What the design allows above arena and budget, and what counts as growth (an allocator's last digits).
OVERHEAD_MB = 200.0
GROWTH_MB = 16.0
INTERVAL_SECONDS = 1.0
#: Samples before this share of the run are warm-up: every window, reader and slot is touched for the first time.
WARM_SHARE = 0.2
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the spec says that the sidecar may hold, bytes."""

    arena: int
    budget: int


@dataclass(slots=True)
class Samples:
    """Readings of the sidecar, one per interval, and of the trainer's RSS."""

    sidecar: list[dict[str, int]] = field(default_factory=list)
    trainer: list[dict[str, int]] = field(default_factory=list)
    #: Payload read.
    bytes: int = 0


def _growth(values: list[int]) -> float:
    """Median of the last quarter less median of the quarter after the warm-up."""
    warm = values[int(len(values) * WARM_SHARE) :]
    quarter = max(1, len(warm) // 4)
    return float(median(warm[-quarter:]) - median(warm[:quarter]))


def numbers(samples: Samples, bounds: Bounds, label: str) -> dict[str, float]:
    """The flat numbers of this run; MiB."""
    rss = [s["rss"] for s in samples.sidecar]
    allowed = bounds.arena + bounds.budget
    return {
        "sidecar_rss_over_budget_mb": round((max(rss) - allowed) / MIB, 1),
        "sidecar_rss_mb": round(max(rss) / MIB, 1),
        "sidecar_anon_mb": round(max(s["anon"] for s in samples.sidecar) / MIB, 1),
        "sidecar_mapped_files_mb": round(max(s["file"] for s in samples.sidecar) / MIB, 1),
        "sidecar_arena_mb": round(bounds.arena / MIB, 1),
        "sidecar_budget_mb": round(bounds.budget / MIB, 1),
        f"rss_growth_mb.{label}": round(_growth(rss) / MIB, 1),
        f"trainer_rss_growth_mb.{label}": round(_growth([s["rss"] for s in samples.trainer]) / MIB, 1),
        f"fd_growth.{label}": _growth([s["fds"] for s in samples.sidecar]),
        f"thread_growth.{label}": _growth([s["threads"] for s in samples.sidecar]),
        f"gigabytes_read.{label}": round(samples.bytes / 1e9, 1),
    }


def verdict(found: dict[str, float], label: str) -> list[str]:
    """What breaks a bound, in words."""
    wrong = []
    if found["sidecar_rss_over_budget_mb"] > OVERHEAD_MB:
        wrong.append(
            f"the sidecar held {found['sidecar_rss_mb']:.0f} MiB, {found['sidecar_rss_over_budget_mb']:.0f} above "
            f"arena {found['sidecar_arena_mb']:.0f} + read-ahead budget {found['sidecar_budget_mb']:.0f}: "
            f"{OVERHEAD_MB:.0f} is allowed"
        )
    for key, limit in (("rss_growth_mb", GROWTH_MB), ("fd_growth", 0.0), ("thread_growth", 0.0)):
        grown = found[f"{key}.{label}"]
        if grown > limit:
            wrong.append(f"{key}.{label} is {grown:g}: at most {limit:g} is no growth")
    return wrong


def _bounds(run_dir: Path) -> Bounds:
    arena = sum(path.stat().st_size for path in run_dir.glob("arena-*"))
    return Bounds(arena, int(json.loads((run_dir / "pod.json").read_text())["read_ahead_bytes"]))


def collect(loader: Any, run_dir: Path, minutes: float, show: bool = True) -> tuple[Samples, Bounds]:
    """Read as fast as the loader gives, and take a sample each second."""
    from rich.progress import Progress

    samples, size = Samples(), 0
    batches = (batch for _ in loader.epochs() for batch in loader)
    m.touch(next(batches))
    pid, bounds = int((run_dir / "sidecar.pid").read_text()), _bounds(run_dir)
    start = time.monotonic()
    end, sample_at = start + 60 * minutes, start
    with Progress(transient=True, disable=not show) as progress:
        task = progress.add_task("reading", total=60 * minutes)
        for batch in batches:
            m.touch(batch)
            size += sum(array.nbytes for array in m.leaves(batch))
            now = time.monotonic()
            if now >= sample_at:
                samples.sidecar.append(m.memory(pid))
                samples.trainer.append(m.memory(os.getpid()))
                sample_at += INTERVAL_SECONDS
                progress.update(task, completed=now - start, description=f"RSS {samples.sidecar[-1]['rss'] >> 20} MiB")
            if now >= end:
                break
    samples.bytes = size
    return samples, bounds


def main() -> None:
    """Run, write the numbers, exit 1 where a bound is broken."""
    parser = argparse.ArgumentParser(description="Sample a sidecar's memory under continuous reading.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--workload", default="W4")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--no-write", action="store_true", help="leave results/latest.json alone")
    args = parser.parse_args()
    parts = [str(ROOT / part) for part in ("trainer_lib", "sidecar")]
    sys.path[:0] = parts
    os.environ["PYTHONPATH"] = os.pathsep.join(parts)
    workloads.ensure(args.workload)
    label = f"{args.minutes:g}min"
    with tempfile.TemporaryDirectory(dir=os.environ.get("LANEFEED_SHM_ROOT", "/dev/shm")) as folder:
        loader = open_loader(args.workload, {"threads": args.threads, "run_dir": folder})
        try:
            samples, bounds = collect(loader, Path(folder), args.minutes)
        finally:
            loader.close()
    found = numbers(samples, bounds, label)
    for key, value in found.items():
        print(f"{key:36s} {value:10g}")
    if not args.no_write:
        path = ROOT / "bench" / "results" / "latest.json"
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**before, **found}, indent=1) + "\n")
    wrong = verdict(found, label)
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
