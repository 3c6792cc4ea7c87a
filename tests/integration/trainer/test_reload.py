"""A state that is loaded again in the same process: the frames that were read ahead give their slots back at once."""

import gc
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lanefeed


@pytest.fixture
def uri(tmp_path: Path) -> str:
    folder = tmp_path / "d"
    folder.mkdir()
    pq.write_table(pa.table({"x": np.arange(200_000, dtype=np.int64)}), folder / "0.parquet", row_group_size=20_000)
    return str(folder)


@pytest.fixture
def without_collector() -> Iterator[None]:
    """What only the cyclic collector would free stays."""
    gc.disable()
    yield
    gc.enable()


def _wait_until_full(loader: lanefeed.Loader) -> None:
    """Until the sidecar has announced as many frames as there are slots."""
    board = loader._feed._session.board  # type: ignore[attr-defined]
    end = time.monotonic() + 60
    seen, since = board.published, time.monotonic()
    while time.monotonic() - since < 0.5:
        assert time.monotonic() < end
        time.sleep(0.02)
        if board.published != seen:
            seen, since = board.published, time.monotonic()


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("slots", [4, 8])
def test_a_state_can_be_loaded_again_and_again(uri: str, slots: int) -> None:
    options = {"global_batch_size": 16, "epochs": 1, "seed": 3, "tensors": "numpy", "read_ahead_bytes": 64 << 20}
    with lanefeed.open(uri, slots=slots, slot_bytes=1 << 20, stall_timeout=30, **options) as loader:
        taken = [next(iter(loader))["x"].tolist()]
        for _ in range(3):
            _wait_until_full(loader)
            loader.load_state_dict(loader.state_dict())
            taken.append(next(iter(loader))["x"].tolist())
            held = loader._feed.leases.held(loader._feed._last_session)  # type: ignore[attr-defined]
            assert len(held) <= 2, f"slots {held} are held by nobody's batches"
    with lanefeed.open(uri, **options) as loader:
        assert [batch["x"].tolist() for _, batch in zip(range(4), loader, strict=False)] == taken
