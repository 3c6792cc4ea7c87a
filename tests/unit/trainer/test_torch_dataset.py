"""`lanefeed.torch.IterableDataset` under torch's own DataLoader."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import lanefeed
import lanefeed.torch
from lanefeed.testing import fake_loader


def make() -> lanefeed.Loader:
    return fake_loader(
        {"x": np.arange(20), "t": [f"r{i}" for i in range(20)]},
        global_batch_size=4,
        epochs=2,
        window=8,
        tensors="torch",
    )


def ids(batch: Any) -> list[int]:
    assert torch.equal(batch["x"], batch.ids)
    assert batch["t"].to_list() == [f"r{i}" for i in batch.ids.tolist()]
    return batch.ids.tolist()


def first(loader: "DataLoader[Any]") -> Any:
    """The first batch; the workers end also when an error's traceback keeps the iterator."""
    it = iter(loader)
    try:
        return next(it)
    finally:
        it._shutdown_workers()


def reference() -> list[list[int]]:
    loader = make()
    return [ids(b) for _ in loader.epochs() for b in loader]


@pytest.mark.parametrize(
    ("workers", "context"), [(0, None), (1, "fork"), (1, "spawn")], ids=["no worker", "forked", "spawned"]
)
def test_under_a_dataloader(workers: int, context: str | None) -> None:
    dataset = lanefeed.torch.IterableDataset(make)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=context)
    got = [ids(batch) for batch in loader]
    assert got == reference()[:5]
    if not workers:
        assert [ids(batch) for batch in loader] == reference()[5:]


def test_a_worker_attaches_by_itself_though_the_parent_has_a_loader() -> None:
    dataset = lanefeed.torch.IterableDataset(make)
    assert len(dataset) == 5
    loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="fork")
    assert [ids(batch) for batch in loader] == reference()[:5]


def test_states_work_without_and_with_a_worker() -> None:
    dataset = lanefeed.torch.IterableDataset(make)
    it = iter(DataLoader(dataset, batch_size=None))
    next(it), next(it)
    state = dataset.state_dict()
    for workers in (0, 1):
        other = lanefeed.torch.IterableDataset(make)
        other.load_state_dict(copy.deepcopy(state))
        loader = DataLoader(other, batch_size=None, num_workers=workers)
        assert [ids(batch) for batch in loader] == reference()[2:5]


def test_more_workers_are_refused() -> None:
    loader = DataLoader(lanefeed.torch.IterableDataset(make), batch_size=None, num_workers=2)
    with pytest.raises(lanefeed.UsageError, match=r"num_workers is 2.*use num_workers=0 \(best\) or 1"):
        first(loader)


def test_a_loader_does_not_travel() -> None:
    dataset = lanefeed.torch.IterableDataset(make())
    assert len([ids(b) for b in DataLoader(dataset, batch_size=None)]) == 5
    with pytest.raises(lanefeed.UsageError, match="give a function that makes it"):
        pickle.dumps(dataset)
    with pytest.raises(lanefeed.ForkError, match="use num_workers=0, or give a function"):
        first(DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="fork"))


def test_arguments_are_for_one_or_the_other() -> None:
    with pytest.raises(lanefeed.UsageError, match=r"give a loader or arguments for connect \(rank\)"):
        lanefeed.torch.IterableDataset(make, rank=1)
