"""A whole world of ranks in one process: real loaders over real sidecars, read in lockstep, for tests of resizing."""

import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import lanefeed


def make_rows(folder: Path, shards: Sequence[int], *, row_group: int = 50, width: int = 4) -> Path:
    """Parquet shards of the given numbers of rows; column `id` is the sample id, `x` repeats it `width` times."""
    folder.mkdir(parents=True, exist_ok=True)
    low = 0
    for index, rows in enumerate(shards):
        ids = np.arange(low, low + rows, dtype=np.int64)
        x = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(ids.astype(np.float32), width)), width)
        pq.write_table(pa.table({"id": ids, "x": x}), folder / f"{index:04d}.parquet", row_group_size=row_group)
        low += rows
    return folder


@contextmanager
def world(uri: Path, size: int, state: dict[str, Any] | None = None, **options: Any) -> Iterator[list[lanefeed.Loader]]:
    """`size` ranks' loaders over one shared sidecar; all of them load `state`, if there is one."""
    run_dir = Path(os.environ["LANEFEED_SHM_ROOT"]) / f"world-{uuid.uuid4().hex[:8]}"
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, run_dir, ignore_errors=True)
        loaders = [
            stack.enter_context(
                lanefeed.open(str(uri), rank=rank, world=size, tensors="numpy", run_dir=run_dir, **options)
            )
            for rank in range(size)
        ]
        if state is not None:
            for loader in loaders:
                loader.load_state_dict(state)
        yield loaders


def take(loaders: list[lanefeed.Loader], steps: int | None = None) -> list[list[int]]:
    """Ids of the next global batches (of the rest of the epoch if `steps` is None), rank by rank in order."""
    iterators = [iter(loader) for loader in loaders]
    batches: list[list[int]] = []
    while steps is None or len(batches) < steps:
        parts = [next(iterator, None) for iterator in iterators]
        ended = [part is None for part in parts]
        assert all(ended) or not any(ended), f"ranks end at different steps: {ended}"
        if all(ended):
            break
        ids: list[int] = []
        for part in parts:
            assert part is not None
            mask = np.ones(len(part.ids), bool) if part.mask is None else np.asarray(part.mask)
            assert np.asarray(part["id"]).tolist() == np.asarray(part.ids).tolist()
            ids += np.asarray(part.ids)[mask].tolist()
        batches.append(ids)
    return batches
