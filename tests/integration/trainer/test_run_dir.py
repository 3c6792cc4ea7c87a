"""`lanefeed.open(run_dir=D)` again and again in one folder, with real sidecars: each run reads what it asked for."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lanefeed
from support.worlds import make_rows, take

OPTIONS: dict[str, Any] = {
    "global_batch_size": 8,
    "epochs": 1,
    "lanes": 8,
    "tensors": "numpy",
    "read_ahead_bytes": 32 << 20,
    "decode_threads": 1,
    "slots": 4,
}


@pytest.fixture
def folder(shm_root: Path) -> Iterator[Path]:
    """A folder in tmpfs that the user named."""
    made = shm_root / "mine"
    yield made
    shutil.rmtree(made, ignore_errors=True)


def numbers(folder: Path, rows: int, first: int) -> Path:
    """One shard whose column `y` counts from `first`."""
    folder.mkdir(exist_ok=True)
    name = f"{len(list(folder.iterdir()))}.parquet"
    pq.write_table(pa.table({"y": np.arange(first, first + rows)}), folder / name, row_group_size=16)
    return folder


def values(uri: Path, run_dir: Path | None) -> list[int]:
    with lanefeed.open(uri, run_dir=run_dir, **OPTIONS) as loader:
        return [y for batch in loader for y in batch["y"].tolist()]


def read_world(uri: Path, run_dir: Path, size: int, *, commit: str = "") -> list[list[int]]:
    """Global batches of a whole epoch; with `commit`, of two steps, which are committed under that name."""
    with ExitStack() as stack:
        loaders = [
            stack.enter_context(lanefeed.open(uri, rank=rank, world=size, run_dir=run_dir, **OPTIONS))
            for rank in range(size)
        ]
        assert [loader.last_commit for loader in loaders] == [None] * size
        rows = take(loaders, 2 if commit else None)
        for loader in loaders if commit else []:
            loader.commit(commit)
        return rows


def test_other_data_and_data_that_have_changed(tmp_path: Path, folder: Path) -> None:
    a, b = numbers(tmp_path / "a", 64, 1000), numbers(tmp_path / "b", 48, 5000)
    assert sorted(values(a, folder)) == list(range(1000, 1064))
    assert values(b, folder) == values(b, None)
    numbers(b, 16, 9000)
    assert sorted(values(b, folder)) == [*range(5000, 5048), *range(9000, 9016)]


@pytest.mark.parametrize("sizes", [(1, 2), (2, 1)])
def test_another_world_after_one_that_committed(tmp_path: Path, folder: Path, sizes: tuple[int, int]) -> None:
    uri = make_rows(tmp_path / "d", [64, 32])
    before, after = sizes
    begun = read_world(uri, folder, before, commit="ckpt")
    rows = read_world(uri, folder, after)
    assert rows[:2] == begun
    assert sorted(i for batch in rows for i in batch) == list(range(96))


def test_the_checkpoint_says_where_a_later_run_goes_on(tmp_path: Path, folder: Path) -> None:
    uri = make_rows(tmp_path / "d", [64, 32])
    with lanefeed.open(uri, run_dir=folder, **OPTIONS) as loader:
        first = [batch.ids.tolist() for _, batch in zip(range(5), loader, strict=False)]
        state = json.loads(json.dumps(loader.state_dict()))
        loader.commit("ckpt")
    with lanefeed.open(uri, run_dir=folder, **OPTIONS) as loader:
        loader.load_state_dict(state)
        rest = [batch.ids.tolist() for batch in loader]
        # The end of the epoch is proven there: a book that does not know of it would refuse the commit.
        loader.commit("end")
    assert first + rest == read_world(uri, folder, 1)


def test_a_sidecar_that_dies_under_living_ranks_keeps_its_book(tmp_path: Path, folder: Path) -> None:
    uri = make_rows(tmp_path / "d", [64, 32])
    with lanefeed.open(uri, run_dir=folder, **OPTIONS) as loader:
        reading = iter(loader)
        for _ in range(4):
            next(reading)
        loader.commit("ckpt")
        os.kill(int((folder / "sidecar.pid").read_text()), signal.SIGKILL)
        assert len(list(reading)) == 8
        assert json.loads((folder / "book.json").read_text())["commits"][-1]["step"] == 4
