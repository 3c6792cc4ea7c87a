"""Slots go back when the last view dies, kept tensors never change, and kept batches never starve the ring."""

import gc
import mmap
import struct
import threading
import warnings
import weakref
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch

import lanefeed
from lanefeed._arena.leases import Lease, Leases
from lanefeed._arena.mapping import Arena
from lanefeed.errors import ArenaError, ProtocolMismatch
from lanefeed.testing import fake_loader, feed_of
from lanefeed_core.layout import HEADER_BYTES, MAGIC

SESSION = "00112233445566778899aabbccddeeff"
SLOT = 8192


def arena_file(path: Path, *, slots: int = 3, version: int = 1, magic: bytes = MAGIC, session: str = SESSION) -> int:
    size = HEADER_BYTES + slots * SLOT
    header = struct.pack("<8sIIQQ16s", magic, version, slots, SLOT, 0, bytes.fromhex(session))
    data = bytearray(size)
    data[: len(header)] = header
    for slot in range(slots):
        at = HEADER_BYTES + slot * SLOT
        data[at : at + 24] = struct.pack("<QQQ", 3, 10 + slot, 100 * slot)
        data[at + 64 : at + 64 + 80] = np.arange(10, dtype=np.int64).tobytes()
    path.write_bytes(data)
    return size


def mapped(tmp_path: Path, **kwargs: Any) -> Arena:
    size = arena_file(tmp_path / "arena", **kwargs)
    return Arena(str(tmp_path / "arena"), size, SLOT, SESSION)


def view_of(base: np.ndarray, how: str) -> Any:
    array = np.ndarray((10,), np.int64, base, 64)
    return {
        "array": lambda: array,
        "view of a view": lambda: array[2:][1:].reshape(-1, 1),
        "tensor": lambda: torch.from_numpy(array),
        "tensor of a slice": lambda: torch.from_numpy(array[4:]),
        "slice of a tensor": lambda: torch.from_numpy(array)[3:5].view(1, 2),
        "memoryview": lambda: memoryview(array),
        "tensor back to array": lambda: torch.from_numpy(array)[1:].numpy(),
        "dlpack": lambda: torch.from_dlpack(array),
    }[how]()


@pytest.mark.parametrize(
    "how",
    [
        "array",
        "view of a view",
        "tensor",
        "tensor of a slice",
        "slice of a tensor",
        "memoryview",
        "tensor back to array",
        "dlpack",
    ],
)
def test_a_slot_is_leased_as_long_as_any_view_lives(tmp_path: Path, how: str) -> None:
    """NumPy gives views of views their first array as base; the finalizer must hang where none can skip it."""
    arena, leases = mapped(tmp_path), Leases()
    lease = leases.add(SESSION, 1)
    base = arena.slot(1, 11, 100)
    lease.watch(base)
    view = view_of(base, how)
    del base
    gc.collect()
    assert lease.alive
    del view
    gc.collect()
    assert not lease.alive
    assert leases.released.get_nowait() is lease
    assert leases.released.empty()


def test_the_mapping_outlives_arena_and_file(tmp_path: Path) -> None:
    arena = mapped(tmp_path)
    died: list[str] = []
    weakref.finalize(arena.root, died.append, "root")
    tensor = torch.from_numpy(np.ndarray((10,), np.int64, arena.slot(0, 10, 0), 64))
    (tmp_path / "arena").unlink()
    del arena
    gc.collect()
    assert not died
    assert tensor.tolist() == list(range(10))
    del tensor
    gc.collect()
    assert died == ["root"]


def test_arenas_that_are_not_what_was_said(tmp_path: Path) -> None:
    path = tmp_path / "arena"
    size = arena_file(path)
    with pytest.raises(ArenaError, match=r"has .* bytes and the sidecar said"):
        Arena(str(path), size + 1, SLOT, SESSION)
    with pytest.raises(ArenaError, match="belongs to session 0011"):
        Arena(str(path), size, SLOT, "ff" * 16)
    with pytest.raises(ArenaError, match=r"cannot open the arena .*: No such file"):
        Arena(str(tmp_path / "none"), size, SLOT, SESSION)
    arena_file(path, magic=b"LANEFOOD")
    with pytest.raises(ArenaError, match="is no arena"):
        Arena(str(path), size, SLOT, SESSION)
    arena_file(path, version=9)
    with pytest.raises(ProtocolMismatch, match="layout version 9 and this trainer library knows 1"):
        Arena(str(path), size, SLOT, SESSION)


def test_a_slot_that_was_used_again_too_early_is_noticed(tmp_path: Path) -> None:
    arena = mapped(tmp_path)
    with pytest.raises(ArenaError, match=r"holds frame 11 \(step 100\), frame 12 \(step 101\) was signalled"):
        arena.slot(1, 12, 101)
    with pytest.raises(ArenaError, match="slot 3 lies outside"):
        arena.slot(3, 0, 0)


def test_finalizers_may_run_anywhere() -> None:
    """While the queue's own lock is held, in another thread's collection, twice: one release, no deadlock."""
    queue: SimpleQueue[Any] = SimpleQueue()
    lease = Lease("s", 4, 0, queue)

    class Cycle:
        def __init__(self) -> None:
            self.me, self.drop = self, lease.drop

        def __del__(self) -> None:
            self.drop()

    Cycle()
    threads = [threading.Thread(target=gc.collect) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    lease.drop()
    assert queue.get_nowait() is lease
    assert queue.empty()


def test_releases_from_before_an_attach_are_told_from_later_ones() -> None:
    """The sidecar frees what is not held at an attach; an old release must not free the slot's next frame."""
    leases = Leases()
    before, kept, other = leases.add("s", 0, 1), leases.add("s", 1, 1), leases.add("t", 2, 1)
    before.drop()
    assert leases.carry("s", 2) == [1]
    again = leases.add("s", 0, 2)
    for lease in (kept, other, again):
        lease.drop()
    sent = []
    while not leases.released.empty():
        lease = leases.released.get_nowait()
        assert lease is not None
        sent.append((lease.session, lease.slot, lease.turn))
    assert sent == [("s", 0, 1), ("s", 1, 2), ("t", 2, 1), ("s", 0, 2)]


def small(**kwargs: Any) -> lanefeed.Loader:
    data = {"x": np.arange(400, dtype=np.int64), "y": np.arange(800, dtype=np.float32).reshape(400, 2)}
    return fake_loader(data, global_batch_size=4, **kwargs)


@pytest.mark.parametrize("tensors", ["numpy", "torch"])
@pytest.mark.parametrize("slots", [1, 2, 3, 4, 8])
def test_who_keeps_everything_gets_copies_and_one_warning(slots: int, tensors: str) -> None:
    loader = small(slots=slots, tensors=tensors)
    with pytest.warns(lanefeed.KeptBatchesWarning, match=f"of this rank's {slots} slots") as seen:
        kept = [(b, b["y"]) for b in loader]
    assert len(seen) == 1
    assert len(kept) == 100
    for batch, y in kept:
        assert np.array_equal(np.asarray(y)[:, 0], np.asarray(batch.ids) * 2.0)
    feed = feed_of(loader)
    held = len(feed._leases.held("fake"))
    assert held <= max(1, slots - 1)
    assert loader.stats().copied > 0


@pytest.mark.parametrize("slots", [3, 4, 8])
def test_a_plain_loop_copies_nothing(slots: int) -> None:
    loader = small(slots=slots)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in loader:
            batch["x"]
    assert loader.stats().copied == 0


def test_a_batch_that_nobody_keeps_is_released_at_once() -> None:
    loader = small(slots=8)
    for number, batch in enumerate(loader):
        batch["x"]
        assert len(feed_of(loader)._leases.held("fake")) <= 2, number
    del batch
    assert feed_of(loader)._leases.held("fake") == []


def test_an_anonymous_mapping_shows_that_numpy_would_skip_a_plain_base() -> None:
    """Why `Arena.slot` goes through a memoryview: the tooth of the tests above."""
    root = np.frombuffer(mmap.mmap(-1, 8192), dtype=np.uint8)
    base = np.frombuffer(root, dtype=np.uint8, count=4096)
    assert base[10:].base is not base
