"""What a user does wrong, done through the front door, and the words that come back (docs/bad-input.md)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lanefeed

#: Small enough that a sidecar starts at once.
SMALL: dict[str, Any] = {
    "global_batch_size": 8,
    "epochs": 1,
    "tensors": "numpy",
    "slots": 4,
    "slot_bytes": 1 << 16,
    "decode_threads": 1,
    "read_ahead_bytes": 32 << 20,
    "attach_timeout": 60.0,
    "stall_timeout": 60.0,
}


def shard(path: Path, ids: Sequence[int] | np.ndarray, **options: Any) -> Path:
    """One Parquet file with the columns `id` and `x`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"id": np.asarray(ids, np.int64), "x": np.asarray(ids, np.float32)})
    pq.write_table(table, path, row_group_size=16, **options)
    return path


def folder(path: Path, files: int = 2, rows: int = 32) -> Path:
    """A good dataset."""
    for number in range(files):
        shard(path / f"{number}.parquet", np.arange(number * rows, (number + 1) * rows))
    return path


def read(uri: Any, state: dict[str, Any] | None = None, **options: Any) -> int:
    """Open, read to the end; the number of samples."""
    with lanefeed.open(uri, **(SMALL | options)) as loader:
        if state is not None:
            loader.load_state_dict(state)
        return sum(len(batch["id"]) for batch in loader)


def said(error: type[Exception], uri: Any, state: dict[str, Any] | None = None, **options: Any) -> str:
    """The text of the error that the user gets."""
    with pytest.raises(error) as caught:
        read(uri, state, **options)
    assert type(caught.value) is error
    return str(caught.value)


def sidecar_pid(root: Path) -> int:
    """Pid of the one sidecar that lanefeed.open has started."""
    (found,) = root.glob("lanefeed-open-*/sidecar.pid")
    return int(found.read_text())
