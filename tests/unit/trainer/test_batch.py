"""Batches as users see them: a dict in every way that wrappers use one, made lazily, bit for bit; Ragged columns."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import lanefeed
from lanefeed.testing import fake_loader

NAN = np.array([0x7FF8DEADBEEF0001], dtype=np.uint64).view(np.float64)[0]


def columns() -> dict[str, Any]:
    n = 20
    return {
        "i": np.arange(n, dtype=np.int64),
        "f": np.array([NAN, -0.0, 0.0, np.inf] * 5, dtype=np.float64),
        "m": np.arange(n * 6, dtype=np.float32).reshape(n, 2, 3),
        "b": np.arange(n) % 3 == 0,
        "u16": np.arange(n, dtype=np.uint16) + 65000,
        "u32": np.arange(n, dtype=np.uint32) + 4_000_000_000,
        "u64": np.arange(n, dtype=np.uint64) + (1 << 63),
        "h": np.arange(n, dtype=np.float16),
        "text": [f"caf\u00e9 {i}" * (i % 3) for i in range(n)],
        "raw": [bytes(range(i)) for i in range(n)],
        "list": [np.arange(i % 4, dtype=np.int32) for i in range(n)],
    }


def loader(**kwargs: Any) -> lanefeed.Loader:
    return fake_loader(columns(), global_batch_size=4, window=8, **kwargs)


@pytest.mark.parametrize("tensors", ["numpy", "torch"])
def test_every_type_arrives_bit_for_bit(tensors: str) -> None:
    table = columns()
    seen = 0
    for batch in loader(tensors=tensors):
        ids = np.asarray(batch.ids)
        for name, values in table.items():
            if isinstance(values, np.ndarray):
                got = np.asarray(batch[name])
                assert got.tobytes() == values[ids].tobytes(), name
                assert got.shape == values[ids].shape
                assert (batch[name].dtype == torch.bool) if (name, tensors) == ("b", "torch") else True
            else:
                want = [v.tolist() if isinstance(v, np.ndarray) else v for v in (values[i] for i in ids)]
                assert batch[name].to_list() == want, name
        seen += len(ids)
    assert seen == 20


def test_unsigned_types_are_torchs_own() -> None:
    batch = next(iter(loader(tensors="torch")))
    assert (batch["u16"].dtype, batch["u32"].dtype, batch["u64"].dtype) == (torch.uint16, torch.uint32, torch.uint64)


def test_tensors_behave_as_the_users_own() -> None:
    """In-place changes with autograd, and leaves that need gradients: what views of a split tensor would refuse."""
    batch = next(iter(loader(tensors="torch")))
    weight = torch.ones(4, 2, 3, requires_grad=True)
    x = batch["m"]
    x.add_(weight)
    x.sum().backward()
    assert weight.grad is not None
    leaf = next(iter(loader(tensors="torch")))["m"].requires_grad_()
    (leaf * 2).sum().backward()
    assert torch.equal(leaf.grad, torch.full_like(leaf, 2))


def test_a_batch_is_a_dict_in_every_way() -> None:
    batch = next(iter(loader()))
    names = list(columns())
    assert isinstance(batch, dict)
    assert len(batch) == len(names)
    assert "i" in batch
    assert "nope" not in batch
    assert batch.get("nope", 5) == 5
    assert list(batch) == names == list(batch.keys())
    assert {k: id(v) for k, v in batch.items()} == {k: id(v) for k, v in zip(names, batch.values(), strict=True)}
    assert list(dict(batch)) == names
    assert list({**batch}) == names
    assert (lambda **kw: list(kw))(**batch) == names
    assert list(batch | {"z": 1}) == [*names, "z"]
    assert list({"z": 1} | batch) == ["z", *names]
    assert list(reversed(batch)) == names[::-1]


@pytest.mark.parametrize("how", ["spread", "dict", "items", "update", "list"])
def test_the_first_look_may_be_of_any_kind(how: str) -> None:
    """C code that copies dicts must not see an empty one."""
    batch = next(iter(loader()))
    if how == "spread":
        assert len({**batch}) == 11
    elif how == "dict":
        assert len(dict(batch)) == 11
    elif how == "items":
        assert len(list(batch.items())) == 11
    elif how == "update":
        target: dict[str, Any] = {}
        target.update(batch)
        assert len(target) == 11
    else:
        assert len(list(batch)) == 11


def test_what_a_trainer_writes_into_a_batch_stays() -> None:
    batch = next(iter(loader()))
    batch["i"] = "mine"
    batch["new"] = 1
    assert batch["i"] == "mine"
    assert next(iter(batch)) == "i"
    assert list(batch)[-1] == "new"
    del batch["f"]
    assert "f" not in batch
    with pytest.raises(KeyError):
        batch["f"]
    assert batch.pop("new") == 1
    assert batch.setdefault("i", 3) == "mine"


def test_values_are_the_same_object_each_time_and_writable() -> None:
    batch = next(iter(loader()))
    batch["m"][:] = 7
    assert batch["m"] is batch["m"]
    assert (batch["m"] == 7).all()


def test_a_wrong_column_names_the_right_ones() -> None:
    with pytest.raises(KeyError, match="'tokens': this batch has the columns i, f, m, b"):
        next(iter(loader()))["tokens"]


def test_copies_pickles_and_repr() -> None:
    batch = next(iter(loader()))
    for other in (copy.copy(batch), batch.copy(), pickle.loads(pickle.dumps(batch))):
        assert isinstance(other, lanefeed.Batch)
        assert list(other) == list(batch)
        assert np.array_equal(other.ids, batch.ids)
        assert (other.weight, other.epoch, other.step, other.rows) == (1.0, 0, 0, 4)
    assert "i: int64 [4]" in repr(batch)


def test_a_batch_put_together_by_hand_has_columns_only() -> None:
    made = lanefeed.Batch({"a": 1})
    assert dict(made) == {"a": 1}
    with pytest.raises(lanefeed.UsageError, match="made from a plain dict"):
        _ = made.ids


def test_to_moves_every_tensor_and_keeps_what_belongs_to_it() -> None:
    batch = next(iter(loader(tensors="torch")))
    moved = batch.to("meta")
    assert {v.device.type for v in moved.values() if isinstance(v, torch.Tensor)} == {"meta"}
    assert moved["list"].values.device.type == "meta"
    assert torch.equal(moved.ids, batch.ids)
    assert moved.step == batch.step
    with pytest.raises(lanefeed.UsageError, match="tensors='torch'"):
        next(iter(loader())).to("cpu")


def test_partial_and_padded_last_steps() -> None:
    data = {"x": np.arange(10)}
    partial = list(fake_loader(data, global_batch_size=4, last_batch="Partial", world=4, rank=1))
    assert [b.rows for b in partial] == [1, 1, 1]
    assert [b.weight for b in partial] == [1.0, 1.0, 2.0]
    none = list(fake_loader(data, global_batch_size=4, last_batch="Partial", world=4, rank=0))
    assert [b.rows for b in none] == [1, 1, 0]
    assert none[2].weight == 0.0
    assert none[2]["x"].shape == (0,)
    padded = list(fake_loader(data, global_batch_size=4, last_batch="Pad"))
    assert [b.mask is None for b in padded] == [True, True, False]
    assert padded[2].mask.sum() == 2
    assert padded[2].rows == 4


def test_ragged_pads_nests_and_indexes() -> None:
    ragged = lanefeed.Ragged(np.arange(6, dtype=np.int32), np.array([0, 2, 2, 6]))
    assert ragged.lengths.tolist() == [2, 0, 4]
    assert ragged.to_padded(-1).tolist() == [[0, 1, -1, -1], [-1] * 4, [2, 3, 4, 5]]
    assert ragged.to_padded(9, length=1).tolist() == [[0], [9], [2]]
    assert ragged[2].tolist() == [2, 3, 4, 5]
    assert ragged[-3].tolist() == [0, 1]
    with pytest.raises(IndexError, match="row 3 of 3"):
        ragged[3]
    tensors = lanefeed.Ragged(torch.arange(6), torch.tensor([0, 2, 2, 6]))
    assert tensors.to_padded(-1).tolist() == ragged.to_padded(-1).tolist()
    assert [t.tolist() for t in tensors.to_nested().unbind()] == [[0, 1], [], [2, 3, 4, 5]]
    nulls = lanefeed.Ragged(
        np.frombuffer(b"ab", np.uint8), np.array([0, 2, 2]), logical="string", validity=np.array([True, False])
    )
    assert nulls.to_list() == ["ab", None]
