"""What depends on the device's own ways: several streams over one frame, and arenas that are pinned."""

import contextlib
import gc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import lanefeed
from lanefeed._arena.frame import Frame
from lanefeed._device.cuda import CudaDevice
from lanefeed._device.frame import DeviceFrame
from lanefeed.testing import fake_loader
from support.fake_device import FakeDevice


def make(device: FakeDevice) -> lanefeed.Loader:
    data = {
        "x": np.arange(40, dtype=np.int64),
        "y": np.arange(40, dtype=np.int64),
        "t": [f"row {i}" for i in range(40)],
    }
    return fake_loader(data, global_batch_size=4, frame_steps=4, tensors="torch", device=device, last_batch="Pad")


LOOKS: dict[str, Any] = {
    "a column": lambda batch: batch["x"],
    "a ragged column": lambda batch: batch["t"],
    "all columns": dict,
    "side by side": lambda batch: batch.stack(["x", "y"]),
    "a move": lambda batch: batch.to("cpu"),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_each_stream_that_looks_at_a_frame_waits_for_its_copy(look: Any) -> None:
    """Also for values that were made ahead while another stream was current."""
    device = FakeDevice(10**9)
    it = iter(make(device))
    for stream in ("a", "b", "a", "b"):
        device.stream = stream
        look(next(it))
    assert device.copies[0].ordered == ["a", "b"], "once for each stream, not for each look"
    assert device.copies[1].ordered == []
    look(next(it))
    assert device.copies[1].ordered == ["b"]


def test_tooth_a_frame_that_does_not_order_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("value", "values"):
        monkeypatch.setattr(DeviceFrame, name, getattr(Frame, name))
    with pytest.raises(AssertionError, match="once for each stream"):
        test_each_stream_that_looks_at_a_frame_waits_for_its_copy(LOOKS["a column"])


def test_a_stream_that_was_not_current_at_the_next_call_waits_too() -> None:
    device = FakeDevice(10**9)
    batch = next(iter(make(device)))
    device.stream = "late"
    assert torch.equal(batch["x"], batch.ids)
    assert device.copies[0].ordered == ["late"]


# ---- pinned memory ---------------------------------------------------------------------------------------------


class Runtime:
    """What the CUDA runtime does with registrations."""

    def __init__(self) -> None:
        self.pinned: list[int] = []
        self.calls = 0

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        self.calls += 1
        assert address not in self.pinned
        self.pinned.append(address)
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        self.pinned.remove(address)
        return 0


def arena(memory: np.ndarray) -> Any:
    """A mapping of the one session."""
    return SimpleNamespace(session="s", root=np.frombuffer(memory, dtype=np.uint8))


def test_each_mapping_of_a_session_is_pinned_as_long_as_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    device = CudaDevice("cuda:0")
    places = [np.zeros(4096, dtype=np.uint8) for _ in range(2)]
    first, second = map(arena, places)
    for mapping in (first, second, second):
        device.register(mapping)
    assert runtime.pinned == [place.ctypes.data for place in places], "another attach, the same session"
    assert runtime.calls == 2
    del first, mapping
    gc.collect()
    assert runtime.pinned == [places[1].ctypes.data]
    again = arena(places[0])
    device.register(again)
    assert runtime.pinned == [places[1].ctypes.data, places[0].ctypes.data], "another mapping at the same address"


def test_a_refusal_is_said_and_frames_go_on(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    runtime = SimpleNamespace(cudaHostRegister=lambda *args: 1)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    mapping = arena(np.zeros(4096, dtype=np.uint8))
    CudaDevice("cuda:0").register(mapping)
    assert "cannot be pinned (cudaHostRegister: error 1)" in caplog.text
