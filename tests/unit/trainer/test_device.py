"""The device path on the CPU: whole frames, one ahead, slots released after their copy and never before."""

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lanefeed
from lanefeed._arena.leases import Lease
from lanefeed._device.copier import FrameCopier
from lanefeed.testing import assert_exact_resume, fake_loader
from support.fake_device import FakeDevice


def make(device: Any, **kwargs: Any) -> lanefeed.Loader:
    n = 60
    data = {
        "x": np.arange(n, dtype=np.int64),
        "y": np.arange(n * 3, dtype=np.float32).reshape(n, 3),
        "b": np.arange(n) % 2 == 0,
        "t": [f"row {i}" for i in range(n)],
    }
    kwargs = {"global_batch_size": 4, "epochs": 2, "last_batch": "Pad", "window": 16, **kwargs}
    return fake_loader(data, tensors="torch", device=device, **kwargs)


def scribble_on_release(patch: pytest.MonkeyPatch) -> list[int]:
    """From here on a slot is overwritten at the moment of its release, as a sidecar may; returns the slots released."""
    released: list[int] = []

    def watch(lease: Lease, base: Any) -> None:
        # The memory itself, not the base: that would keep the slot.
        memory = base.base

        def scribble() -> None:
            np.frombuffer(memory, dtype=np.uint8)[:] = 0xEE
            released.append(lease.slot)
            lease.drop()

        weakref.finalize(base, scribble).atexit = False

    patch.setattr(Lease, "watch", watch)
    return released


@pytest.mark.parametrize("patience", [1, 2, 7, 10**9])
def test_batches_are_right_however_late_copies_end(patience: int, monkeypatch: pytest.MonkeyPatch) -> None:
    released = scribble_on_release(monkeypatch)
    device = FakeDevice(patience)
    loader = make(device)
    kept = []
    for _ in loader.epochs():
        for batch in loader:
            ids = batch.ids
            assert torch.equal(batch["x"], ids)
            assert torch.equal(batch["y"][:, 0], ids * 3.0)
            assert torch.equal(batch["b"], ids % 2 == 0)
            assert batch["t"].to_list() == [f"row {i}" for i in ids.tolist()]
            kept.append((batch, batch["x"].clone()))
    loader.close()
    assert len(released) == len(device.copies) == 2 * 5
    for batch, x in kept:
        assert torch.equal(batch["x"], x)


def test_the_fake_device_has_teeth(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copier that lets go of a slot when the copy begins delivers the scribble."""
    scribble_on_release(monkeypatch)
    monkeypatch.setattr(FrameCopier, "submit", lambda self, source: self.device.copy(source))
    device = FakeDevice(10**9)
    loader = make(device)
    real = device.copy
    monkeypatch.setattr(device, "copy", lambda source: real(np.frombuffer(source.base.base, np.uint8)[: len(source)]))
    assert not all(torch.equal(batch["x"], batch.ids) for batch in loader)


def test_one_frame_is_copied_ahead_and_not_more() -> None:
    device = FakeDevice(10**9)
    loader = make(device, frame_steps=2)
    it = iter(loader)
    batch = next(it)
    assert len(device.copies) == 2
    assert [copy.ordered for copy in device.copies] == [[], []]
    batch["x"]
    assert [copy.ordered for copy in device.copies] == [["default"], []]
    next(it)
    assert len(device.copies) == 2
    next(it)
    assert len(device.copies) == 3


def test_a_slot_is_held_until_its_copy_ends() -> None:
    device = FakeDevice(10**9)
    copier = FrameCopier(device)
    sources = [np.full(64, k, dtype=np.uint8) for k in range(3)]
    copies = [copier.submit(source) for source in sources]
    copies[1].end()
    copier.poll()
    assert len(copier) == 2
    copies[2].end()
    copier.poll()
    assert len(copier) == 1
    copier.drain()
    assert len(copier) == 0
    assert [int(copy.target[0]) for copy in copies] == [0, 1, 2]


def test_states_are_exact_with_a_device() -> None:
    assert assert_exact_resume(lambda: make(FakeDevice(3)), every=3, tail=8) == 11


def test_masks_and_ids() -> None:
    loader = make(FakeDevice(2), global_batch_size=8)
    last = list(loader)[-1]
    assert last.mask is not None
    assert int(last.mask.sum()) == 4
    assert isinstance(last.ids, torch.Tensor)


def test_devices_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(lanefeed.UsageError, match="needs tensors='torch'"):
        lanefeed.connect(device="cuda:0", tensors="numpy", run_dir=str(tmp_path))
    with pytest.raises(lanefeed.UsageError, match="device 'tpu' is not supported"):
        lanefeed.connect(device="tpu", run_dir=str(tmp_path))
    assert lanefeed.connect(device="cpu", run_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("device", "gpus", "built", "said"),
    [
        ("cuda:0", 0, None, "device is 'cuda:0', and torch .* is built without CUDA: install one that has it, or use "),
        ("cuda", 0, "13.0", "device is 'cuda', and torch .* is built for CUDA 13.0 and finds no GPU .*: look at nv"),
        ("cuda:2", 2, "13.0", "device is 'cuda:2', and torch sees 2 GPUs: use 'cuda:0', 'cuda:1', or look at CUDA_VIS"),
        ("cuda:1", 1, "13.0", "device is 'cuda:1', and torch sees 1 GPU: use 'cuda:0', or look at CUDA_VISIBLE_DEV"),
        ("cuda:x", 1, "13.0", "device is 'cuda:x', which is no device's name: write 'cpu', 'cuda' or 'cuda:0'"),
    ],
)
def test_a_gpu_that_is_not_there_is_told_in_words(
    device: str, gpus: int, built: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(gpus))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(lanefeed.UsageError, match=said):
        lanefeed.connect(device=device, tensors="torch", run_dir=str(tmp_path))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_cuda_keeps_the_contract() -> None:
    """The very test above, on the real device; the CPU part of CI skips it."""
    loader = make("cuda:0")
    for batch in loader:
        assert torch.equal(batch["x"].cpu(), batch.ids)
        assert torch.equal(batch["y"][:, 0].cpu(), batch.ids * 3.0)
