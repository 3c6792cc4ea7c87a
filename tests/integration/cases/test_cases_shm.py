"""Case 38: shared memory that is too small for the batches is refused with sizes and the field, never a bus error."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lanefeed
from support.tmpfs import mounted
from support.worlds import make_rows, take


@pytest.fixture
def small_tmpfs() -> Iterator[Path]:
    """A real tmpfs of 8 MiB."""
    with mounted("8m") as place:
        yield place


def test_case_38_a_small_shm_is_refused_with_both_sizes(
    tmp_path: Path, small_tmpfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pytorch#16979, kfp#6880: a small /dev/shm, big batches. The user sees needed and available bytes and the knob."""
    uri = make_rows(tmp_path / "d", [64])
    monkeypatch.setenv("LANEFEED_SHM_ROOT", str(small_tmpfs))
    with (
        pytest.raises(lanefeed.LanefeedError, match=r"(?s)needs \d+ bytes.*sidecar\.slots|sidecar\.slots.*bytes"),
        lanefeed.open(str(uri), global_batch_size=8, epochs=1, tensors="numpy", slots=8, slot_bytes=4 << 20) as loader,
    ):
        next(iter(loader))


def test_case_38_smaller_slots_work_in_a_small_shm(
    tmp_path: Path, small_tmpfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remedy that the message names works."""
    uri = make_rows(tmp_path / "d", [64])
    monkeypatch.setenv("LANEFEED_SHM_ROOT", str(small_tmpfs))
    options: dict[str, Any] = {
        "global_batch_size": 8,
        "epochs": 1,
        "tensors": "numpy",
        "slots": 4,
        "slot_bytes": 1 << 18,
    }
    with lanefeed.open(str(uri), **options) as loader:
        assert sum(map(len, take([loader]))) == 64
