"""The loader over a fake feed: epochs, states at every step, look-ahead wrappers, commits, ends."""

import gc
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import lanefeed
from lanefeed.testing import assert_exact_resume, fake_loader, feed_of, fingerprint
from lanefeed_core.cursor import Cursor
from lanefeed_core.expected import prefix
from lanefeed_core.ledger import Ledger
from support.lookahead import one_ahead


def make(**kwargs: Any) -> lanefeed.Loader:
    kwargs = {"global_batch_size": 4, "epochs": 3, "window": 8, "last_batch": "Partial", **kwargs}
    return fake_loader({"x": np.arange(23), "t": [f"r{i}" for i in range(23)]}, **kwargs)


def ids(batch: lanefeed.Batch) -> list[int]:
    return np.asarray(batch.ids).tolist()


def many_ahead(count: int) -> Callable[[lanefeed.Loader], Iterator[lanefeed.Batch]]:
    def wrap(loader: lanefeed.Loader) -> Iterator[lanefeed.Batch]:
        queue: list[lanefeed.Batch] = []
        for batch in loader:
            queue.append(batch)
            if len(queue) > count:
                yield queue.pop(0)
        while queue:
            yield queue.pop(0)

    return wrap


# ---- order and epochs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last_batch", ["Drop", "Partial", "Pad"])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_together_give_the_global_batches(last_batch: str, world: int) -> None:
    loaders = [make(last_batch=last_batch, world=world, rank=r) for r in range(world)]
    lanes = feed_of(loaders[0]).lanes
    for epoch in range(3):
        batches = [list(loader) for loader in loaders]
        assert {len(b) for b in batches} == {len(loaders[0])} == {lanes.steps_per_epoch}
        for step in range(lanes.steps_per_epoch):
            got = [i for rank in batches for i in ids(rank[step])]
            assert got == lanes.batch(epoch, step)[0].tolist()


def test_each_iteration_is_an_epoch_and_epochs_counts_them() -> None:
    loader = make()
    seen = []
    for epoch in loader.epochs():
        for batch in loader:
            assert (batch.epoch, loader.epoch) == (epoch, epoch)
        seen.append(epoch)
        assert loader.step == (epoch + 1) * len(loader)
    assert seen == [0, 1, 2]
    assert list(loader) == []
    assert list(loader.epochs()) == []


def test_leaving_a_loop_loses_nothing() -> None:
    other = make()
    whole = [fingerprint(b) for _ in other.epochs() for b in other]
    loader, got, visits = make(), [], 0
    for _ in loader.epochs():
        visits += 1
        for batch in loader:
            got.append(fingerprint(batch))
            if len(got) % 4 == 0:
                break
    assert len(got) == 18
    assert got == whole
    assert visits > 3


def test_a_body_that_reads_nothing_is_an_error_not_a_hang() -> None:
    with pytest.raises(lanefeed.UsageError, match=r"the body of epochs\(\) read no batch at step 0"):
        for _ in make().epochs():
            pass


def test_threads_share_an_iteration() -> None:
    loader = make(epochs=1)
    it, got, lock = iter(loader), [], threading.Lock()

    def work() -> None:
        for batch in it:
            with lock:
                got.append(ids(batch))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(i for batch in got for i in batch) == list(range(23))


# ---- states ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [None, one_ahead, many_ahead(3)], ids=["plain", "one ahead", "three ahead"])
@pytest.mark.parametrize("tensors", ["numpy", "torch"])
@pytest.mark.parametrize("frame_steps", [1, 4])
def test_every_step_resumes_exactly(wrap: Any, tensors: str, frame_steps: int) -> None:
    tried = assert_exact_resume(lambda: make(tensors=tensors, frame_steps=frame_steps), wrap=wrap)
    assert tried == 19


def test_the_oracle_notices_a_cursor_that_is_one_off() -> None:
    """Counting what was yielded under a wrapper that reads ahead is the fault that `lookahead='off'` plants."""
    with pytest.raises(AssertionError, match="the state taken after step 1 says step 2"):
        assert_exact_resume(lambda: make(lookahead="off"), wrap=one_ahead)


def test_the_oracle_notices_other_bytes() -> None:
    seeds = iter([0] + [0] * 5 + [0] * 50)
    shift = iter([0.0, 0.0, 0.0, 1.0] + [0.0] * 50)

    def maker() -> lanefeed.Loader:
        return fake_loader({"x": np.arange(23.0) + next(shift)}, global_batch_size=4, seed=next(seeds))

    with pytest.raises((AssertionError, lanefeed.StateMismatch)):
        assert_exact_resume(maker)


def test_a_wrapper_that_touches_ahead_counts_by_marks() -> None:
    """Such as one that copies to a device at fetch."""

    def touching(loader: lanefeed.Loader) -> Iterator[lanefeed.Batch]:
        for batch in one_ahead_touching(loader):
            yield batch
            loader.mark_consumed(batch)

    def one_ahead_touching(loader: lanefeed.Loader) -> Iterator[lanefeed.Batch]:
        queue = []
        for batch in loader:
            batch["x"]
            queue.append(batch)
            if len(queue) == 2:
                yield queue.pop(0)
        yield from queue

    loader = make(lookahead="manual")
    steps = []
    for _ in loader.epochs():
        steps.extend(loader.step for _ in touching(loader))
    assert steps == list(range(18))
    assert loader.step == 18


def test_batches_that_a_dropped_wrapper_had_fetched_come_again() -> None:
    loader = make()
    wrapper, got = one_ahead(loader), []
    for batch in wrapper:
        got.append(ids(batch))
        if len(got) == 3:
            break
    del batch, wrapper
    gc.collect()
    assert loader.step == 3
    got += [ids(b) for b in one_ahead(loader)]
    assert sorted(i for b in got for i in b) == list(range(23))
    state = loader.state_dict()
    assert state["part"]["ledger"]["0"][0] == "23"


def test_a_batch_still_in_somebodys_hands_does_not_come_again() -> None:
    """An endless reader with one batch in hand begins the next epoch: that batch must not be served twice."""
    loader = make(epochs=2)

    def endless() -> Iterator[lanefeed.Batch]:
        while loader.step < 11:
            yield from loader

    it, got = endless(), []
    current = next(it)
    for following in it:
        got.append(ids(current))
        current = following
    got.append(ids(current))
    assert len(got) == 12
    assert sorted(i for b in got for i in b) == sorted(2 * list(range(23)))


def test_moving_a_batch_ahead_of_time_is_no_look_at_it() -> None:
    """Accelerate calls batch.to(device) when it fetches; the copy is what the trainer looks at."""

    def moving(loader: lanefeed.Loader) -> Iterator[lanefeed.Batch]:
        it = (b.to("cpu") for b in loader)
        current = next(it)
        for following in it:
            yield current
            current = following
        yield current

    assert assert_exact_resume(lambda: make(tensors="torch"), wrap=moving) == 19


def test_a_state_loads_at_any_time() -> None:
    loader = make()
    it = iter(loader)
    first = [ids(next(it)) for _ in range(5)]
    fresh = make()
    for _ in range(3):
        next(iter(fresh))
    loader.load_state_dict(fresh.state_dict())
    assert loader.step == 3
    assert loader.state_dict()["cursor"] == {"epoch": 0, "step": 3}
    assert ids(next(it)) == first[3]
    loader.load_state_dict(fresh.state_dict())
    assert [ids(b) for b in loader][:2] == first[3:5]


def test_states_travel_through_json_and_are_small() -> None:
    loader = make()
    for _ in loader:
        pass
    text = json.dumps(loader.state_dict())
    assert len(text) < 1000
    other = make()
    other.load_state_dict(json.loads(text))
    assert other.epoch == 1
    assert other.step == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 9}, "saved with shuffle.seed 0 and this job has 9"),
        ({"global_batch_size": 8}, "saved with batching.globalBatchSize 4 and this job has 8"),
        ({"window": 16}, "saved with shuffle.window 8 and this job has 16"),
        ({"last_batch": "Pad"}, "saved with batching.lastBatch 'Partial' and this job has 'Pad'"),
    ],
)
def test_a_state_of_another_stream_is_refused_with_both_values(change: dict[str, Any], message: str) -> None:
    state = make().state_dict()
    loader = make(**change)
    loader.load_state_dict(state)
    with pytest.raises(lanefeed.StateMismatch, match=message):
        next(iter(loader))
    known = make(**change)
    len(known)
    with pytest.raises(lanefeed.StateMismatch, match=message):
        known.load_state_dict(state)


def test_a_state_of_other_data_or_version_is_refused() -> None:
    state = fake_loader({"x": np.arange(24)}, global_batch_size=4, window=8, last_batch="Partial").state_dict()
    loader = make()
    len(loader)
    with pytest.raises(lanefeed.StateMismatch, match=r"the state belongs to the dataset .* files were added"):
        loader.load_state_dict(state)
    with pytest.raises(lanefeed.StateMismatch, match="has version 7 and this Lanefeed knows 1"):
        loader.load_state_dict({**state, "version": 7})
    with pytest.raises(lanefeed.StateMismatch, match="not a Lanefeed state"):
        loader.load_state_dict({"model": 1})
    assert issubclass(lanefeed.StateMismatch, ValueError)


# ---- merge ----------------------------------------------------------------------------------------------------------


def test_merge_adds_up_and_refuses_half_of_the_ranks() -> None:
    loaders = [make(world=4, rank=r) for r in range(4)]
    for loader in loaders:
        for _ in range(3):
            next(iter(loader))
    states = [loader.state_dict() for loader in loaders]
    lanes = feed_of(loaders[0]).lanes
    whole = lanefeed.merge(states)
    assert Ledger.from_dict(whole["part"]["ledger"]) == prefix(lanes, Cursor(0, 3))
    single = make()
    single.load_state_dict(whole)
    assert single.step == 3
    with pytest.raises(lanefeed.StateMismatch, match=r"states of ranks \[1, 3\] are missing: 4 ranks made"):
        lanefeed.merge([states[0], states[2]])
    with pytest.raises(lanefeed.StateMismatch, match=r"ranks \[0\] are there more than once"):
        lanefeed.merge([*states, states[0]])
    next(iter(loaders[1]))
    with pytest.raises(lanefeed.StateMismatch, match="not of one checkpoint"):
        lanefeed.merge([states[0], loaders[1].state_dict(), *states[2:]])
    with pytest.raises(lanefeed.StateMismatch, match="no state"):
        lanefeed.merge([])
