"""Batches of many columns: made together, each as if made alone; and side by side as one matrix."""

from typing import Any

import numpy as np
import pytest
import torch

import lanefeed
from lanefeed._arena import pieces
from lanefeed.testing import fake_loader
from support.fake_device import FakeDevice

ROWS = 66
RNG = np.random.default_rng(5)
#: Bits of any kind, NaNs and -0.0 among them.
TABLE: dict[str, Any] = {
    **{f"f{c}": RNG.integers(0, 1 << 32, ROWS, np.uint32).view(np.float32) for c in range(7)},
    "text": [f"row {i}" for i in range(ROWS)],
    **{f"i{c}": RNG.integers(-(1 << 62), 1 << 62, ROWS) for c in range(5)},
    **{f"b{c}": RNG.integers(0, 2, ROWS).astype(bool) for c in range(3)},
    **{f"m{c}": RNG.integers(0, 99, (ROWS, 3)).astype(np.int16) for c in range(2)},
}
FLOATS = [f"f{c}" for c in range(7)]
KINDS = ["numpy", "torch", "device"]


def make(kind: str = "torch", **more: Any) -> lanefeed.Loader:
    more = {"global_batch_size": 5, "window": 16, "last_batch": "Partial", **more}
    if kind == "device":
        return fake_loader(TABLE, tensors="torch", device=FakeDevice(1), **more)
    return fake_loader(TABLE, tensors=kind, **more)


def check(name: str, got: Any, ids: np.ndarray) -> None:
    want = TABLE[name]
    if isinstance(want, np.ndarray):
        assert np.asarray(got).tobytes() == want[ids].tobytes(), name
        assert tuple(got.shape) == want[ids].shape
    else:
        assert got.to_list() == [want[i] for i in ids]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("size", "steps"), [(5, 1), (5, 3), (16, 4), (1, 40), (8, 2)])
def test_all_columns_at_once_are_those_looked_at_one_by_one(kind: str, size: int, steps: int) -> None:
    """Blocks with and without a gap between them, steps that are made ahead and taken in any manner."""
    for number, batch in enumerate(make(kind, global_batch_size=size, frame_steps=steps)):
        ids = np.asarray(batch.ids)
        if number % 3 == 1:
            for name in ("i1", "text", "f6"):
                check(name, batch[name], ids)
        if number % 3 < 2:
            assert list(batch) == list(TABLE)
        for name, value in batch.items():
            check(name, value, ids)


def test_columns_and_steps_are_strangers_to_autograd() -> None:
    """A change in place of one is no change of the others, although they were cut out of one tensor."""
    weight = torch.ones(5, requires_grad=True)
    first, second = (batch for _, batch in zip(range(2), make(frame_steps=3), strict=False))
    tuple(first.values())
    tuple(second.values())
    loss = (first["f0"].nan_to_num(0, 0, 0) * weight).sum() + (first["f1"] * weight).nan_to_num(0, 0, 0).sum()
    first["f2"].zero_()
    first["f3"].mul_(weight)
    second["f1"].add_(1)
    loss.backward()
    assert weight.grad is not None
    assert first["f4"].requires_grad_().is_leaf


def test_tooth_views_of_one_tensor_are_no_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "cut_up", torch.split)
    with pytest.raises(RuntimeError, match=r"modified by an inplace|modified inplace"):
        test_columns_and_steps_are_strangers_to_autograd()


def test_tooth_a_cut_that_is_off_by_a_row_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = pieces.cut_up
    monkeypatch.setattr(pieces, "cut_up", lambda values, sizes: [*real(values, sizes)[1:], real(values, sizes)[0]])
    with pytest.raises(AssertionError):
        test_all_columns_at_once_are_those_looked_at_one_by_one("torch", 5, 3)


# ---- side by side ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_of_one_type_are_one_view(kind: str) -> None:
    for number, batch in enumerate(make(kind)):
        ids = np.asarray(batch.ids)
        if number % 3 == 0:
            tuple(batch.values())
        x = batch.stack(FLOATS)
        assert tuple(x.shape) == (len(ids), 7)
        for at, name in enumerate(FLOATS):
            check(name, np.ascontiguousarray(x[:, at]), ids)
        if len(ids):
            x[0, 3] = 7
            assert batch["f3"][0] == 7, "a view of the same memory"
        assert np.asarray(batch.stack(["f1", "f3", "f5"])).tobytes() == np.asarray(x[:, 1::2]).tobytes()
        assert tuple(batch.stack(["i2"]).shape) == (len(ids), 1)
        assert np.array_equal(batch.stack(["b0", "b1", "b2"])[:, 1], batch["b1"])


@pytest.mark.parametrize("kind", KINDS)
def test_other_columns_are_copied(kind: str) -> None:
    batch = next(iter(make(kind)))
    for names in (["f3", "f1"], ["f0", "f1", "f3"], ["m0", "m1"], ["i0", "i0"]):
        x = batch.stack(names)
        for at, name in enumerate(names):
            check(name, np.ascontiguousarray(x[:, at]), np.asarray(batch.ids))
        x[:] = 0
        assert np.asarray(batch[names[0]]).any()


def test_columns_of_the_users_own_count() -> None:
    batch = next(iter(make()))
    batch["f1"] = torch.full((5,), 3.0)
    x = batch.stack(["f0", "f1", "f2"])
    assert torch.equal(x[:, 1], torch.full((5,), 3.0))
    batch["f1"] = batch["f0"]
    assert x[:, 1].sum() == 15
    assert np.asarray(batch.stack(["f1", "f2"])[:, 0]).tobytes() == np.asarray(batch["f0"]).tobytes()
    batch["mine"] = torch.zeros(5)
    assert tuple(batch.stack(["f2", "mine"]).shape) == (5, 2)
    plain = lanefeed.Batch({"a": np.zeros(3), "b": np.ones(3)})
    assert plain.stack(["a", "b"]).tolist() == [[0, 1]] * 3


def test_a_moved_batch_stacks_too_and_a_look_counts() -> None:
    batch = next(iter(make()))
    moved = batch.to("cpu", copy=True)
    assert batch._watch is not None
    assert np.asarray(moved.stack(FLOATS)).tobytes() == np.asarray(batch.stack(FLOATS)).tobytes()
    assert batch._watch is None or batch._watch._watch is None  # type: ignore[attr-defined]


def test_a_view_keeps_its_slot() -> None:
    kept = [batch.stack(FLOATS) for batch in make(slots=20, frame_steps=1)]
    ids = [np.asarray(batch.ids) for batch in make(slots=20, frame_steps=1)]
    for x, rows in zip(kept, ids, strict=True):
        check("f6", np.ascontiguousarray(x[:, 6]), rows)


def test_what_cannot_be_one_tensor_is_said() -> None:
    batch = next(iter(make()))
    with pytest.raises(lanefeed.UsageError, match=r"column .i0. is torch.int64"):
        batch.stack(["f0", "i0"])
    with pytest.raises(lanefeed.UsageError, match="column 'text' is ragged"):
        batch.stack(["text", "f0"])
    with pytest.raises(lanefeed.UsageError, match="a list of columns"):
        batch.stack("f0")
    with pytest.raises(lanefeed.UsageError, match="a list of columns"):
        batch.stack([])
    with pytest.raises(KeyError, match="'nope': this batch has the columns"):
        batch.stack(["f0", "nope"])
