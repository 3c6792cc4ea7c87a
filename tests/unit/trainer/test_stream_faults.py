"""An exception between a frame's coming and its first batch loses nothing: the next call gives that very batch."""

import gc
import warnings
from typing import Any

import numpy as np
import pytest

import lanefeed
from lanefeed import _stream
from lanefeed.testing import fake_loader, feed_of
from support.fake_device import FakeDevice

DATA = {"x": np.arange(60, dtype=np.int64), "y": np.arange(60, dtype=np.float32)}


def make(**more: Any) -> lanefeed.Loader:
    return fake_loader(DATA, **{"global_batch_size": 4, "epochs": 1, "frame_steps": 2, "tensors": "torch", **more})


def read(loader: lanefeed.Loader, kinds: Any = (), keep: bool = False) -> tuple[list[list[int]], list[int]]:
    """The ids of all batches, asking again after each exception of `kinds`; and before which batches those came."""
    got: list[list[int]] = []
    failed: list[int] = []
    kept: list[lanefeed.Batch] = []
    it = iter(loader)
    while True:
        try:
            batch = next(it)
        except StopIteration:
            break
        except kinds:
            failed.append(len(got))
            assert not loader._stream.ended
            continue
        assert batch.step == len(got)
        assert batch["x"].tolist() == batch["y"].tolist() == batch.ids.tolist()
        got.append(batch.ids.tolist())
        kept += [batch] * keep
    for batch, ids in zip(kept, got, strict=False):
        assert batch["x"].tolist() == batch.ids.tolist() == ids
    return got, failed


WHOLE = read(make())[0]
OOM = RuntimeError("CUDA out of memory")


def device_that(*failures: Exception | None) -> FakeDevice:
    device = FakeDevice(3)
    device.failures = list(failures)
    return device


@pytest.mark.parametrize(
    ("failures", "failed"),
    [
        pytest.param([OOM], [0], id="the first frame"),
        pytest.param([OOM, OOM, OOM], [0, 0, 0], id="again and again"),
        pytest.param([None, OOM], [], id="ahead, then there is room"),
        pytest.param([None, OOM, OOM, OOM], [2, 2], id="ahead, and when it is needed"),
        pytest.param([None, MemoryError()] * 4, [], id="ahead, each time"),
        pytest.param([None, KeyError("a bug")], [0], id="ahead, of another kind"),
        pytest.param([None] * 7 + [OOM, OOM], [14], id="the last frame, with the end seen"),
    ],
)
def test_a_copy_that_fails_is_tried_again(failures: list[Exception | None], failed: list[int]) -> None:
    loader = make(device=device_that(*failures))
    assert read(loader, (RuntimeError, KeyError)) == (WHOLE, failed)
    assert loader.stats().batches == len(WHOLE)


def test_the_stream_has_not_ended_while_its_last_frame_is_in_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    real, failures = _stream.device_frame, [MemoryError(), MemoryError()]

    def poor(*args: Any) -> Any:
        if args[0].first_step == len(WHOLE) - 1 and failures:
            raise failures.pop()
        return real(*args)

    monkeypatch.setattr(_stream, "device_frame", poor)
    loader = make(device=FakeDevice(3))
    assert read(loader, MemoryError) == (WHOLE, [len(WHOLE) - 1] * 2)
    assert loader._stream.ended


def test_a_frame_that_fails_on_the_way_is_proved_once() -> None:
    loader = make(device=device_that(OOM, None, OOM, OOM))
    read(loader, RuntimeError)
    part = loader.state_dict()
    other = make()
    read(other)
    assert part == other.state_dict()


@pytest.mark.parametrize("how", ["seek", "load", "close"])
def test_a_pending_frame_is_forgotten_with_the_rest(how: str) -> None:
    loader = make(device=device_that(RuntimeError("CUDA out of memory")))
    with pytest.raises(RuntimeError, match="CUDA"):
        next(iter(loader))
    gc.collect()
    assert len(feed_of(loader)._leases.held("fake")) == 1
    if how == "seek":
        loader._stream.seek()
    elif how == "load":
        loader.load_state_dict(make().state_dict())
        loader._start()
    else:
        loader.close()
    assert feed_of(loader)._leases.held("fake") == []
    if how != "close":
        assert read(loader)[0] == WHOLE


# ---- the host --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tensors", ["torch", "numpy"])
def test_a_warning_that_is_an_error_costs_no_batch(tensors: str) -> None:
    loader = make(tensors=tensors, slots=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", lanefeed.KeptBatchesWarning)
        got, failed = read(loader, lanefeed.KeptBatchesWarning, keep=True)
    assert got == WHOLE
    assert len(failed) == 1
    assert loader.stats().copied == len(WHOLE) - failed[0], "each batch is copied once and counts once"


def test_no_memory_for_a_copy_costs_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = _stream.Stream._copied_out, []

    def poor(self: Any, came: Any) -> Any:
        calls.append(came)
        if len(calls) % 2:
            raise MemoryError
        return real(self, came)

    monkeypatch.setattr(_stream.Stream, "_copied_out", poor)
    loader = make(slots=3)
    with pytest.warns(lanefeed.KeptBatchesWarning):
        got, failed = read(loader, MemoryError, keep=True)
    assert got == WHOLE
    assert len(failed) == len(calls) // 2 > 2


# ---- what cannot be mended is said -----------------------------------------------------------------------------


@pytest.mark.parametrize("device", [None, FakeDevice(2)], ids=["host", "device"])
def test_a_lost_frame_is_an_error_and_stays_one(device: Any) -> None:
    loader = make(device=device)
    it = iter(loader)
    next(it)
    # As if an exception had come between the feed and the stream.
    feed_of(loader).inbox.get_nowait()
    # The device has one more in hand.
    given = 4 if device else 2
    while loader._stream.progress.given < given:
        next(it)
    for _ in range(3):
        with pytest.raises(lanefeed.SidecarError, match=f"begins at step {given + 2} and step {given} is next.*report"):
            next(it)
    loader._stream.seek()
    assert [batch.step for batch in loader] == list(range(given, len(WHOLE)))
