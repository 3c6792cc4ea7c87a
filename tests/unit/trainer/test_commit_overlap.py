"""Commits from a saver's thread while the trainer goes on, and commits that fail, over a fake feed."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import lanefeed
from lanefeed.testing import fake_loader, feed_of
from lanefeed_core.expected import epoch_entry
from lanefeed_core.ledger import Ledger
from lanefeed_core.proto import lanefeed_pb2 as pb

WAIT = 10.0


class Saver:
    """A loader whose commits wait for `go`, or fail while `lost`; each `commit` runs in a thread of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loader = fake_loader({"x": np.arange(160)}, global_batch_size=4, epochs=1, window=8)
        self.feed = feed_of(self.loader)
        self.came, self.go = threading.Event(), threading.Event()
        self.lost = False
        self._batches: Iterator[lanefeed.Batch] = iter(self.loader)
        self._threads: list[threading.Thread] = []
        self._keep = self.feed.commit
        monkeypatch.setattr(self.feed, "commit", self._commit)

    def _commit(self, message: pb.RankCommit, seconds: float) -> None:
        assert 0 < seconds <= 120
        self.came.set()
        assert self.go.wait(WAIT)
        if self.lost:
            raise lanefeed.SidecarLost("gone")
        self._keep(message, seconds)

    def train(self, step: int) -> None:
        """Consume up to total step `step`."""
        while self.loader.step < step:
            next(self._batches)

    def commit(self, name: str) -> None:
        """Commit in a thread, as savers do; returns once that thread has picked its state."""
        thread = threading.Thread(target=self._report, args=(lambda: self.loader.commit(name),))
        thread.start()
        self._threads.append(thread)
        assert self.came.wait(WAIT)
        if len(self._threads) > 1:
            commits, end = self.loader._commits, time.monotonic() + WAIT
            while commits._used is not commits.taken and time.monotonic() < end:
                time.sleep(0.001)

    def _report(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except lanefeed.LanefeedError:
            assert self.lost

    def answer(self, *, lost: bool = False) -> None:
        """The sidecar answers all commits that wait."""
        self.lost = lost
        self.go.set()
        for thread in self._threads:
            thread.join(WAIT)
            assert not thread.is_alive()
        self._threads.clear()
        self.lost = False

    @property
    def sent(self) -> list[tuple[int, int, str]]:
        return [(c.start, c.stop, c.name) for c in self.feed.commits]

    def total(self) -> Ledger:
        """The sum of what was sent."""
        total = Ledger()
        for commit in self.feed.commits:
            ledger = Ledger.from_dict(json.loads(commit.ledger_json))
            assert sum(ledger[e].count for e in ledger.epochs) == 4 * (commit.stop - commit.start)
            total = total + ledger
        return total


@pytest.fixture
def saver(monkeypatch: pytest.MonkeyPatch) -> Saver:
    return Saver(monkeypatch)


def prove(saver: Saver) -> None:
    saver.train(40)
    saver.loader.close()
    assert saver.sent[-1][1] == 40
    saver.total().check(0, epoch_entry(saver.feed.lanes, 0))


def test_a_state_is_taken_while_an_older_one_is_committed(saver: Saver) -> None:
    saver.train(10)
    saver.loader.state_dict()
    saver.commit("ckpt-10")
    saver.train(20)
    saver.loader.state_dict()
    saver.answer()
    saver.train(30)
    saver.loader.commit("ckpt-20")
    saver.loader.state_dict()
    saver.loader.commit("ckpt-30")
    assert saver.sent == [(0, 10, "ckpt-10"), (10, 20, "ckpt-20"), (20, 30, "ckpt-30")]
    prove(saver)


def test_a_commit_waits_for_its_turn_and_means_the_state_of_its_call(saver: Saver) -> None:
    saver.train(10)
    saver.loader.state_dict()
    saver.commit("ckpt-10")
    saver.train(20)
    saver.loader.state_dict()
    saver.commit("ckpt-20")
    saver.train(30)
    saver.loader.state_dict()
    assert saver.sent == []
    saver.answer()
    assert saver.sent == [(0, 10, "ckpt-10"), (10, 20, "ckpt-20")]
    saver.loader.commit("ckpt-30")
    assert saver.sent[2:] == [(20, 30, "ckpt-30")]
    prove(saver)


def test_without_a_state_since_a_commit_under_way_the_current_step_counts(saver: Saver) -> None:
    saver.train(10)
    saver.loader.state_dict()
    saver.commit("ckpt-10")
    saver.train(20)
    saver.commit("now")
    saver.answer()
    assert saver.sent == [(0, 10, "ckpt-10"), (10, 20, "now")]
    prove(saver)


def test_an_older_state_is_left_alone_once_a_newer_one_is_committed(
    saver: Saver, caplog: pytest.LogCaptureFixture
) -> None:
    saver.go.set()
    saver.train(10)
    older = saver.loader._commits.snapshot()
    saver.train(20)
    saver.loader.state_dict()
    saver.loader.commit("ckpt-20")
    saver.loader._commits.taken = older
    with caplog.at_level(logging.WARNING, "lanefeed"):
        saver.loader.commit("ckpt-10")
    assert "'ckpt-10' of step 10 is not committed: step 20 is already" in caplog.text
    assert saver.sent == [(0, 20, "ckpt-20")]
    prove(saver)


def test_a_commit_that_failed_means_the_same_state_when_it_is_repeated(saver: Saver) -> None:
    saver.train(10)
    saver.loader.state_dict()
    saver.train(11)
    saver.go.set()
    saver.lost = True
    with pytest.raises(lanefeed.SidecarLost):
        saver.loader.commit("ckpt-10")
    saver.lost = False
    saver.loader.commit("ckpt-10")
    saver.loader.commit("ckpt-11")
    assert saver.sent == [(0, 10, "ckpt-10"), (10, 11, "ckpt-11")]
    prove(saver)


def test_a_newer_state_covers_one_whose_commit_failed(saver: Saver) -> None:
    saver.train(10)
    saver.loader.state_dict()
    saver.commit("ckpt-10")
    saver.train(20)
    saver.loader.state_dict()
    saver.answer(lost=True)
    saver.train(30)
    saver.loader.commit("ckpt-20")
    assert saver.sent == [(0, 20, "ckpt-20")]
    prove(saver)


def test_waiting_for_the_turn_ends_at_the_deadline(saver: Saver) -> None:
    saver.train(10)
    saver.loader.state_dict()
    saver.commit("ckpt-10")
    saver.train(20)
    saver.loader.state_dict()
    with pytest.raises(lanefeed.SidecarLost, match=r"commit of step 20 had to wait .* 0\.05 s"):
        saver.loader._commits.commit("ckpt-20", 0.05)
    saver.train(30)
    saver.answer()
    saver.loader.commit("ckpt-20")
    assert saver.sent == [(0, 10, "ckpt-10"), (10, 20, "ckpt-20")]
    prove(saver)


def test_a_commit_of_a_former_life_says_nothing_of_the_next(saver: Saver) -> None:
    saver.train(10)
    state = saver.loader.state_dict()
    saver.train(20)
    saver.loader.state_dict()
    saver.commit("ckpt-20")
    saver.loader.load_state_dict(state)
    batches = iter(saver.loader)
    next(batches)
    saver.answer()
    saver.loader.commit("again")
    assert saver.sent == [(0, 20, "ckpt-20"), (10, 11, "again")]
