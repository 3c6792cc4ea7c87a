"""Ours: `lanefeed.open` on the workload's files, shuffle and proof on, torch tensors, endless epochs."""

import atexit
import os
import shutil
from collections.abc import Iterator
from typing import Any

from bench import decoded, workloads
from bench.adapters import Loader

__all__ = ["build", "open_loader"]

SEED = 7


def open_loader(workload: str, options: dict[str, Any]) -> Any:
    """A `lanefeed.Loader`. options: threads, matrices, and anything else that `open` takes."""
    import lanefeed

    rest = {key: value for key, value in options.items() if key not in ("threads", "matrices")}
    if rest.get("cache_dir") == decoded.FRESH:
        rest["cache_dir"] = decoded.fresh(workload)
        atexit.register(shutil.rmtree, rest["cache_dir"], ignore_errors=True)
    return lanefeed.open(
        str(workloads.folder(workload) / "*.parquet"),
        global_batch_size=workloads.WORKLOADS[workload].batch,
        seed=SEED,
        tensors="torch",
        decode_threads=options.get("threads") or os.cpu_count() or 1,
        **{**workloads.WORKLOADS[workload].opened_with, **rest},
    )


def _batches(loader: Any) -> Iterator[Any]:
    for _ in loader.epochs():
        yield from loader


def _matrices(loader: Any) -> Iterator[Any]:
    """Features of one type as one matrix, turned so that touching it copies nothing, and the label."""
    for batch in _batches(loader):
        yield [*(batch.stack(names).T for names in workloads.MATRICES), batch["label"]]


def build(loader: str, workload: str, options: dict[str, Any], *, state: Any = None) -> Loader:
    """The sidecar is a child of this process, so that the process tree has it."""
    del loader
    opened = open_loader(workload, options)
    if state is not None:
        opened.load_state_dict(state)
    batches = _matrices(opened) if options.get("matrices") else _batches(opened)
    return Loader(batches, state=lambda _taken: opened.state_dict(), close=opened.close)
