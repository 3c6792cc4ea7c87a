"""`make bench-sweeps`: where are the cliffs? Lanes, ranks, threads, row size, columns, two sidecars; one plot.

Each point is a fresh sidecar with its readers for a second or two (`bench.bed`), first epoch, no cache. Rates say what
the machine gave just then; CPU seconds per GB say what it cost and hardly depend on who else was there. Writes
results/sweeps.json and results/sweeps.png, after every sweep, so that `--only` measures a part anew. Row size and
columns have data of their own: random values, so that decoding is copying and what is left is ours.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench import workloads
from bench.bed import Point, PointFailed, measure_point

__all__ = ["SWEEPS", "Sweep", "table"]

RESULTS = Path(__file__).resolve().parent / "results"
#: Of the data sets that are made for row size and columns.
DATA_BYTES = 128 << 20
SHARDS = 8
#: A rank's batch, in bytes, where rows are smaller than that.
BATCH_BYTES = 256 << 10
ROW_BYTES = [64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 8 << 20]
COLUMNS = [1, 8, 32, 100, 250, 500]


@dataclass(frozen=True, slots=True)
class Sweep:
    """One axis: its values, and the point for each."""

    title: str
    axis: str
    values: list[int]
    point: Callable[[int], Point]


def _w4(**changes: Any) -> Point:
    return replace(Point(files=str(workloads.folder("W4") / "*.parquet"), batch=16), **changes)


def _write(name: str, make: Callable[[np.random.Generator], Any], rows: int, group: int) -> str:
    """A data set of SHARDS equal tables, made once; its glob."""
    import pyarrow.parquet as pq

    folder = workloads.data_root() / "sweeps" / name
    if not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for shard in range(SHARDS):
            table = make(np.random.default_rng([workloads.SEED, shard]))
            assert table.num_rows == rows
            pq.write_table(table, folder / f"{shard}.parquet", row_group_size=group, use_dictionary=False)
        (folder / "done").touch()
    return str(folder / "*.parquet")


def _row_point(size: int) -> Point:
    """One column of fixed-size lists of `size` bytes."""
    import pyarrow as pa

    rows = max(4, DATA_BYTES // SHARDS // size)

    def make(rng: np.random.Generator) -> Any:
        values = rng.integers(0, 1 << 31, rows * size // 4, dtype=np.int32)
        return pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(values), size // 4)})

    group = max(1, min(rows, (4 << 20) // size))
    files = _write(f"row-{size}", make, rows, group)
    batch = max(2, BATCH_BYTES // size)
    # The least window that Lanefeed chooses is 256 rows: of 1 MB and more it fits no budget of this size.
    window = None if size < 1 << 20 else max(1, (32 << 20) // size)
    return Point(files=files, batch=batch, window=window)


def _column_point(columns: int) -> Point:
    """float32 columns, 1,024 rows a batch whatever their number."""
    import pyarrow as pa

    rows = max(8192, DATA_BYTES // SHARDS // 4 // columns)

    def make(rng: np.random.Generator) -> Any:
        return pa.table({f"c{c}": rng.random(rows, np.float32) for c in range(columns)})

    return Point(files=_write(f"columns-{columns}", make, rows, 4096), batch=1024)


SWEEPS = {
    "lanes": Sweep("Lanes (W4, 64 rows a batch)", "lanes", [1, 2, 4, 8, 16, 32, 64], lambda n: _w4(batch=64, lanes=n)),
    "ranks": Sweep("Ranks on one sidecar (W4)", "ranks", [1, 2, 4, 8], lambda n: _w4(ranks=n, lanes=32, batch=32)),
    "threads": Sweep("Decode threads (W4)", "threads", [1, 2, 4, 8], lambda n: _w4(threads=n)),
    "row_bytes": Sweep("Row size (one column)", "bytes a row", ROW_BYTES, _row_point),
    "columns": Sweep("Columns (float32, 1,024 rows a batch)", "columns", COLUMNS, _column_point),
    "sidecars": Sweep("Sidecars side by side (W4)", "sidecars", [1, 2, 3], lambda n: _w4(sidecars=n, threads=1)),
}


def run_sweep(sweep: Sweep, seconds: float, warm_up: float) -> list[dict[str, Any]]:
    """All points of one axis. One that Lanefeed refuses is a row with the refusal in it."""
    rows = []
    for value in sweep.values:
        try:
            found = measure_point(replace(sweep.point(value), seconds=seconds, warm_up=warm_up))
            row = {key: round(v, 3) if isinstance(v, float) else v for key, v in found.items()}
        except PointFailed as failure:
            row = {"failed": str(failure)[-400:]}
        rows.append({"value": value, **row})
        print(sweep.axis, json.dumps(rows[-1]), flush=True)
    return rows


def plot(results: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Small multiples: MB/s in blue against the left, CPU seconds per GB in grey against the right."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(12.5, 6.4), layout="constrained")
    for axis, (name, sweep) in zip(axes.flat, SWEEPS.items(), strict=True):
        rows = [row for row in results.get(name, []) if "mb_s" in row]
        labels = [_short(row["value"]) for row in rows]
        other = axis.twinx()
        (rate,) = axis.plot(labels, [row["mb_s"] for row in rows], "o-", color="#1f6f8b", label="MB/s")
        cost = [row["cpu_s_per_gb"] for row in rows]
        (cpu,) = other.plot(labels, cost, "s--", color="#c0792b", label="CPU s / GB", markersize=4)
        axis.set(title=sweep.title, xlabel=sweep.axis, ylim=(0, None))
        other.set_ylim(0, max([1.0, *cost]) * 1.15)
        axis.spines[["top"]].set_visible(False)
        other.spines[["top"]].set_visible(False)
        axis.set_ylabel("MB/s", color="#1f6f8b")
        other.set_ylabel("CPU s / GB", color="#c0792b")
        axis.legend(handles=[rate, cpu], loc="best", frameon=False, fontsize=8)
    figure.savefig(path, dpi=80)
    plt.close(figure)


def _short(value: int) -> str:
    for unit, size in (("M", 1 << 20), ("K", 1 << 10)):
        if value >= size and value % size == 0:
            return f"{value // size}{unit}"
    return str(value)


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """Markdown: one line a point."""
    lines = ["| sweep | value | MB/s | batches/s | CPU s / GB | us in next() | of each sidecar |"]
    lines.append("|---|---|---|---|---|---|---|")
    for name, rows in results.items():
        for row in rows:
            cells = [f"{row[key]:.0f}" if key in row else "-" for key in ("mb_s", "batches_s")]
            cost = f"{row['cpu_s_per_gb']:.2f}" if "mb_s" in row else "refused"
            call = f"{row['next_cpu_us']:.1f}" if "next_cpu_us" in row else "-"
            each = " / ".join(f"{rate:.0f}" for rate in row.get("of_each", [])) if name == "sidecars" else ""
            lines.append(f"| {name} | {_short(row['value'])} | {' | '.join(cells)} | {cost} | {call} | {each} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, write, plot."""
    parser = argparse.ArgumentParser(description="Sweep sizes and counts for cliffs.")
    parser.add_argument("--only", default="", help=f"of {','.join(SWEEPS)}")
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--warm-up", type=float, default=0.7)
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(SWEEPS)
    unknown = sorted(set(names) - set(SWEEPS))
    if unknown:
        sys.exit(f"unknown sweeps {', '.join(unknown)}: there are {', '.join(SWEEPS)}")
    workloads.ensure("W4")
    workloads.warm("W4")
    path = RESULTS / "sweeps.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in names:
        results[name] = run_sweep(SWEEPS[name], args.seconds, args.warm_up)
        path.write_text(json.dumps({name: results[name] for name in SWEEPS if name in results}, indent=1) + "\n")
        plot(results, RESULTS / "sweeps.png")
    print(table({name: results[name] for name in SWEEPS if name in results}))


if __name__ == "__main__":
    main()
