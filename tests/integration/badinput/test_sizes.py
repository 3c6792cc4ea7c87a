"""Sizes that do not fit: batches, ranks, slots, shared memory. Numbers and the field to change come back."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lanefeed
from lanefeed_core.board import board_bytes
from lanefeed_core.layout import HEADER_BYTES
from support.badinput import folder, read, said
from support.tmpfs import mounted


def test_fewer_samples_than_ranks(tmp_path: Path) -> None:
    uri = folder(tmp_path / "d")
    assert said(lanefeed.UsageError, uri, rank=3, world=16) == (
        "batching.globalBatchSize is 8, smaller than the 16 ranks (replicas x ranksPerReplica): a rank would get no "
        "sample; use fewer ranks or a larger global batch"
    )


def test_an_uneven_world_that_was_not_allowed(tmp_path: Path) -> None:
    uri = folder(tmp_path / "d")
    assert said(lanefeed.UsageError, uri, rank=0, world=3) == (
        "batching.globalBatchSize 8 is not a multiple of 3 ranks, so rank batches would differ by one sample: set "
        "batching.uneven to Allow, or use 1, 2, 4 ranks"
    )
    assert read(uri, rank=0, world=3, uneven=True) == 8 * 2
    assert "ranks run from 0 to 2" in said(lanefeed.UsageError, uri, rank=3, world=3)
    assert "give both" in said(lanefeed.UsageError, uri, rank=3)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"global_batch_size": 0}, "global_batch_size is 0: it must be a whole number of at least 1"),
    ({"global_batch_size": "8"}, "global_batch_size is '8': it must be a whole number of at least 1"),
    ({"global_batch_size": None}, "global_batch_size is None: it must be a whole number of at least 1"),
    ({"seed": -1}, "seed is -1: it must be a whole number of at least 0"),
    ({"seed": 1 << 64}, "shuffle.seed is 18446744073709551616: it must lie in 0..2**64-1"),
    ({"window": 0}, "window is 0: it must be a whole number of at least 1, or None for what fits"),
    ({"lanes": 100}, "batching.lanes is 100: it must lie in 1..8 (globalBatchSize)"),
    ({"epochs": 0}, "epochs is 0: it must be a whole number of at least 1, or None for no end"),
    ({"decode_threads": -1}, "decode_threads is -1: it must be a whole number of at least 0"),
    ({"slots": 1}, "slots is 1: it must be a whole number of at least 2"),
    ({"last_batch": "drop"}, "batching.lastBatch is 'drop': it must be one of Drop, Partial, Pad"),
    ({"lookahead": "on"}, "lookahead is 'on': it must be one of auto, off, manual"),
    ({"tensors": "jax"}, "tensors is 'jax': it must be one of torch, numpy, or None for what is installed"),
    ({"device": "tpu", "tensors": "torch"}, "device 'tpu' is not supported: use 'cpu' or 'cuda:N'"),
    ({"shuffle": "False"}, "shuffle is 'False': write shuffle=True or shuffle=False"),
    ({"shuffle": 0}, "shuffle is 0: write shuffle=True or shuffle=False"),
    ({"uneven": "Forbid"}, "uneven is 'Forbid': write uneven=True or uneven=False"),
    ({"columns": [1]}, "columns has 1: give columns by their names, such as columns=['x', 'label']"),
    ({"columns": ["id", ""]}, "columns has '': give columns by their names"),
    ({"columns": 3}, "columns is 3: give a list of names, such as columns=['x', 'label']"),
    ({"images": 3}, "images is 3: give a list of them, such as images=[ImageColumn(...)]"),
    ({"images": ["x"]}, "images: 'x' is no image column; give column, height and width, and mode, resize or layout"),
    (
        {"images": [{"column": "x", "heigth": 2, "width": 2}]},
        "images: {'column': 'x', 'heigth': 2, 'width': 2} is no image column: it has 'heigth'; give column, height and",
    ),
    ({"images": [{"column": "x"}]}, "images: {'column': 'x'} is no image column: it lacks height, width; give"),
    ({"images": [{"column": 1, "height": 2, "width": 2}]}, "images: a column is 1: name the column that holds"),
    ({"packed": {"sequence_length": 8, "eos_token": -1}}, "packed.eosToken is -1: it must be a token's number, 0 or"),
    ({"stall_timeout": -1}, "stall_timeout is -1: it must be a number of seconds above 0"),
    ({"stall_timeout": None}, "stall_timeout is None: it must be a number of seconds above 0"),
    ({"attach_timeout": "60"}, "attach_timeout is '60': it must be a number of seconds above 0"),
    ({"rank": "0", "world": "1"}, "rank is '0': it must be a whole number of at least 0"),
    ({"run_dir": 3}, "run_dir is 3: give the path of a folder, such as run_dir='/dev/shm/mine'"),
    ({"cache_dir": b"/x"}, "cache_dir is b'/x': give the path of a folder"),
]


@pytest.mark.parametrize(("options", "text"), WRONG, ids=[str(o) for o, _ in WRONG])
def test_arguments(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    assert said(lanefeed.UsageError, folder(tmp_path / "d"), **options).startswith(text)


@pytest.mark.parametrize("uri", [3, None, [3], b"data", ["d", None]], ids=str)
def test_a_path_that_is_none(uri: Any) -> None:
    wrong = uri[-1] if isinstance(uri, list) else uri
    assert said(lanefeed.UsageError, uri) == (
        f"open() was given {wrong!r}, which is no path: name a file, a folder or a glob such as 'data/*.parquet', or "
        "give a list of them"
    )


def test_numbers_and_flags_of_numpy_are_numbers_and_flags(tmp_path: Path) -> None:
    uri = folder(tmp_path / "d")
    given = {"global_batch_size": np.int64(8), "slots": np.uint8(4), "shuffle": np.bool_(False)}
    assert read(uri, stall_timeout=np.float32(60), **given) == 64


def test_a_read_ahead_that_cannot_hold_the_windows(tmp_path: Path) -> None:
    text = said(lanefeed.UsageError, folder(tmp_path / "d"), read_ahead_bytes=100)
    assert text.startswith("sidecar.readAheadBytes is 100 and two open windows for each of this pod's ")
    assert "raise sidecar.readAheadBytes, or for a new job lower shuffle.window or batching.lanes" in text


def test_a_sample_larger_than_a_slot(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    texts = ["x" * 10] * 15 + ["y" * 200_000]
    pq.write_table(pa.table({"id": np.arange(16), "t": texts}), tmp_path / "d" / "0.parquet")
    text = said(lanefeed.BatchTooLarge, tmp_path / "d")
    assert text.startswith("a rank batch of 8 rows takes 200")
    assert "and a slot holds 65536: raise sidecar.slotBytes to at least 200" in text
    needed = int(text.split("at least ")[1].split(",")[0])
    assert read(tmp_path / "d", slot_bytes=needed) == 16, "the remedy that the message names works"


@pytest.fixture
def small_tmpfs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A real tmpfs of 2 MiB, in use for run folders."""
    with mounted("2m") as place:
        monkeypatch.setenv("LANEFEED_SHM_ROOT", str(place))
        yield place


def test_shared_memory_that_others_have_filled(tmp_path: Path, small_tmpfs: Path) -> None:
    """Too small a tmpfs is case 38 (tests/integration/cases/test_cases_shm.py); here it is large enough and full."""
    uri = folder(tmp_path / "d")
    (small_tmpfs / "model.bin").write_bytes(bytes(1 << 20))
    text = said(lanefeed.ArenaError, uri, slot_bytes=1 << 19)
    needed = HEADER_BYTES + 4 * (1 << 19) + board_bytes(4)
    assert text.startswith(f"the arena needs {needed} bytes (4 slots of 524288 bytes) and ")
    assert "of 2097152 bytes available: make the tmpfs larger (sizeLimit of the emptyDir, or /dev/shm)" in text
    with pytest.raises(OSError, match="No space left"):
        (small_tmpfs / "more.bin").write_bytes(bytes(2 << 20))
    text = said(lanefeed.UsageError, uri)
    assert "manifest.bin cannot be written: No space left on device; make room there" in text
    for name in ("model.bin", "more.bin"):
        (small_tmpfs / name).unlink()
    assert list(small_tmpfs.iterdir()) == [], "a failed start leaves nothing"
    assert read(uri) == 64


def test_shared_memory_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = folder(tmp_path / "d")
    monkeypatch.setenv("LANEFEED_SHM_ROOT", "/no/such/folder")
    text = said(lanefeed.UsageError, uri)
    assert text.startswith("/no/such/folder is not a folder: set LANEFEED_SHM_ROOT to a tmpfs folder")
    monkeypatch.setenv("LANEFEED_SHM_ROOT", "/proc/sys")
    assert "/proc/sys/lanefeed-open-" in said(lanefeed.LanefeedError, uri)


@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_a_run_folder_on_a_disk_works_and_is_told(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"22 1 254:0 / / rw - {kind} /dev/vda rw\n")
    monkeypatch.setattr("lanefeed._local.folder.MOUNTS", str(mounts))
    with caplog.at_level(logging.WARNING, "lanefeed"):
        assert read(folder(tmp_path / "d"), run_dir=tmp_path / "run") == 64
    text = f"the run folder {tmp_path}/run is on ext4, not in tmpfs: "
    assert caplog.text.count(text) == (kind == "ext4")
