"""The loader's commits, its end, stops and misuse, over a fake feed."""

import gc
import json
import os
from typing import Any

import numpy as np
import pytest

import lanefeed
from lanefeed.testing import fake_loader, feed_of
from lanefeed_core.expected import epoch_entry
from lanefeed_core.ledger import Ledger
from support.lookahead import one_ahead


def make(**kwargs: Any) -> lanefeed.Loader:
    kwargs = {"global_batch_size": 4, "epochs": 3, "window": 8, "last_batch": "Partial", **kwargs}
    return fake_loader({"x": np.arange(23), "t": [f"r{i}" for i in range(23)]}, **kwargs)


def ids(batch: lanefeed.Batch) -> list[int]:
    return np.asarray(batch.ids).tolist()


# ---- commits --------------------------------------------------------------------------------------------------------


def chain(loader: lanefeed.Loader) -> Ledger:
    """The sum of a loader's commits, which must connect."""
    total, at = Ledger(), feed_of(loader).commits[0].start
    for commit in feed_of(loader).commits:
        assert commit.start == at
        total, at = total + Ledger.from_dict(json.loads(commit.ledger_json)), commit.stop
    return total


def test_commits_connect_and_prove_every_epoch() -> None:
    loaders = [make(world=2, rank=r) for r in range(2)]
    for loader in loaders:
        for _ in loader.epochs():
            for number, _batch in enumerate(loader):
                if number % 4 == 2:
                    loader.commit(f"s{loader.step}")
        loader.close()
    lanes = feed_of(loaders[0]).lanes
    total = chain(loaders[0]) + chain(loaders[1])
    for epoch in range(3):
        total.check(epoch, epoch_entry(lanes, epoch))


def test_a_commit_means_the_state_that_was_saved() -> None:
    loader = make()
    it = iter(loader)
    next(it), next(it)
    loader.state_dict()
    next(it)
    loader.commit("async")
    next(it)
    loader.commit()
    assert [(c.start, c.stop, c.name) for c in feed_of(loader).commits] == [(0, 2, "async"), (2, 4, "")]
    assert loader.last_commit == lanefeed.Commit(4, "", 1)


def test_a_refused_commit_raises_and_may_be_repeated() -> None:
    loader = make()
    next(iter(loader))
    feed_of(loader).refuse = "this process was replaced"
    with pytest.raises(lanefeed.CommitRefused, match="replaced"):
        loader.commit("a")
    feed_of(loader).refuse = ""
    loader.commit("a")
    assert [(c.start, c.stop) for c in feed_of(loader).commits] == [(0, 1)]


@pytest.mark.parametrize("how", ["close", "with", "collected"])
def test_the_end_is_committed_by_itself(how: str) -> None:
    loader = make(epochs=1)
    feed = feed_of(loader)
    for _ in loader:
        pass
    loader.commit("last") if how == "with" else None
    if how == "close":
        loader.close()
    elif how == "with":
        with loader:
            pass
    else:
        del loader
        gc.collect()
    assert sum(c.stop - c.start for c in feed.commits) == 6
    assert feed.commits[-1].name == ("last" if how == "with" else "")


def test_an_end_that_was_not_reached_or_failed_is_not_committed() -> None:
    loader = make(epochs=1)
    for batch in loader:
        if batch.step == 3:
            break
    loader.close()
    assert feed_of(loader).commits == []
    failed = make(epochs=1)

    def train() -> None:
        with failed:
            assert len(list(failed)) == 6
            raise RuntimeError("the last save failed")

    with pytest.raises(RuntimeError):
        train()
    assert feed_of(failed).commits == []


@pytest.mark.parametrize("told", [4, 6])
def test_the_end_has_the_name_of_the_checkpoint_that_there_is(told: int) -> None:
    """What fails after the end (an export, a launcher that exits with 1) starts again from a file that exists."""
    loader = make(epochs=1)
    for batch in loader:
        if batch.step == 3:
            saved = loader.state_dict()
            loader.commit("c4")
    loader.close()
    assert [(c.start, c.stop, c.name) for c in feed_of(loader).commits] == [(0, 4, "c4"), (4, 6, "c4")]
    again = make(epochs=1)
    # Of a life that ended before its end was committed, or after.
    feed_of(again).last_commit = lanefeed.Commit(told, "c4", 1)
    again.load_state_dict(saved)
    assert len(list(again)) == 2
    again.close()
    assert [(c.start, c.stop, c.name) for c in feed_of(again).commits] == [(4, 6, "c4")]


def test_an_end_that_waits_for_a_commit_has_its_name() -> None:
    loader = make(epochs=1)
    assert len(list(loader)) == 6
    commits = loader._commits
    real = commits._turn.acquire

    class Turn:
        """A commit of another thread goes out while the end waits for its turn."""

        def acquire(self, timeout: float) -> bool:
            commits.checkpoint = "c6"
            return real(timeout=timeout)

        def release(self) -> None:
            turn.release()

    turn, commits._turn = commits._turn, Turn()  # type: ignore[assignment]
    loader.close()
    assert feed_of(loader).commits[-1].name == "c6"


def test_a_life_that_began_anew_does_not_end_with_a_former_ones_checkpoint() -> None:
    loader = make(epochs=1)
    feed_of(loader).last_commit = lanefeed.Commit(4, "c4", 1)
    assert len(list(loader)) == 6
    loader.close()
    assert [(c.start, c.stop, c.name) for c in feed_of(loader).commits] == [(0, 6, "")]


def test_finish_commits_early() -> None:
    loader = make()
    next(iter(loader))
    loader.finish()
    assert [(c.start, c.stop) for c in feed_of(loader).commits] == [(0, 1)]
    assert loader._stream.report().finished


def test_stop_is_requested_when_its_step_is_consumed() -> None:
    loader = make()
    feed_of(loader).stop(4, "resize")
    steps = []
    for _ in one_ahead(loader):
        _["x"]
        steps.append((loader.step, loader.stop_requested))
        if loader.stop_requested:
            break
    assert steps[1:] == [(2, False), (3, False), (4, True)]
    assert loader.stop_reason == "resize"
    with pytest.raises(SystemExit) as left:
        raise lanefeed.Stopped
    assert left.value.code == 75


# ---- misuse ---------------------------------------------------------------------------------------------------------


def test_a_fork_is_told_the_way_out() -> None:
    loader = make()
    it = iter(loader)
    next(it)
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        said = ""
        for call in (lambda: next(it), loader.state_dict, lambda: iter(loader), loader.commit, lambda: len(loader)):
            try:
                call()
                said += "no error;"
            except lanefeed.ForkError as error:
                said += str(error)
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    assert said.count("num_workers=0") == 5
    assert "set_start_method('spawn')" in said
    assert "no error" not in said
    assert len(list(loader)) == 5


def test_a_closed_loader_says_so() -> None:
    loader = make()
    it = iter(loader)
    batch = next(it)
    loader.close()
    loader.close()
    with pytest.raises(lanefeed.NotConnected, match="was closed"):
        next(it)
    with pytest.raises(lanefeed.NotConnected, match="was closed"):
        loader.state_dict()
    assert len(batch["x"]) == 4


def test_stats_count() -> None:
    loader = make(epochs=1)
    for _ in loader:
        pass
    stats = loader.stats()
    assert stats.batches == 6
    assert stats.copied == 0
    assert stats.step_seconds > 0
    assert 0 <= stats.stall_percent <= 100
