"""The book in the pod: job commits, proofs, lives that go back, and a lost sample caught."""

import errno
import json
import os
from pathlib import Path

import pytest

from lanefeed_core.ledger import Ledger, sum_ids
from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_sidecar.errors import CommitRefused, LedgerMismatch, SidecarError
from lanefeed_sidecar.report import localbook
from lanefeed_sidecar.report.localbook import LocalBook
from support.feed_pod import Pod


class Books:
    """A book and the truth about what each rank consumes."""

    def __init__(self, tmp_path: Path, world: int) -> None:
        self.pod = Pod(tmp_path, tmp_path, ranks=world)
        self.world = world
        self.path = tmp_path
        self.book = self.open()

    def open(self) -> LocalBook:
        return LocalBook(self.path, self.pod.lanes, plan_generation=1, world=self.world, total_steps=self.pod.total)

    def commit(self, rank: int, start: int, stop: int, lose: int = 0) -> pb.RankCommit:
        ledger = Ledger()
        expected = self.pod.expected(rank)
        for step in range(start, stop):
            ids = expected[step][lose if step == start else 0 :]
            import numpy as np

            ledger.add(step // self.pod.lanes.steps_per_epoch, len(ids), sum_ids(np.array(ids, np.int64)))
        text = json.dumps(ledger.to_dict())
        return pb.RankCommit(rank=rank, start=start, stop=stop, name=f"ckpt/{stop}", ledger_json=text)


def test_a_step_is_the_jobs_once_all_ranks_committed_it(tmp_path: Path) -> None:
    b = Books(tmp_path, 2)
    for rank in range(2):
        b.book.attach(rank, 0, resuming=False)
    assert b.book.commit(b.commit(0, 0, 10)) is None
    assert b.book.last.step == 0
    made = b.book.commit(b.commit(1, 0, 10))
    assert made is not None
    assert (made.step, made.name) == (10, "ckpt/10")
    assert b.open().last.step == 10, "the book outlives the process"
    assert b.book.knows(10)


def test_epochs_are_proven_and_their_entries_dropped(tmp_path: Path) -> None:
    b = Books(tmp_path, 2)
    for rank in range(2):
        b.book.attach(rank, 0, resuming=False)
        b.book.commit(b.commit(rank, 0, 25))
    assert b.book.verified == 1
    assert b.book.last.ledger.epochs == [1]
    for rank in range(2):
        b.book.commit(b.commit(rank, 25, b.pod.total))
    assert b.book.verified == 2
    assert b.book.last.step == b.pod.total


def test_tooth_a_lost_sample_is_caught_at_the_epochs_end(tmp_path: Path) -> None:
    b = Books(tmp_path, 1)
    b.book.attach(0, 0, resuming=False)
    b.book.commit(b.commit(0, 0, 10, lose=1))
    with pytest.raises(LedgerMismatch, match="epoch 0: 1 samples were never used"):
        b.book.commit(b.commit(0, 10, 30))
    assert b.book.last.step == 10


def test_tooth_a_repeated_step_is_caught(tmp_path: Path) -> None:
    b = Books(tmp_path, 1)
    b.book.attach(0, 0, resuming=False)
    twice = b.commit(0, 0, 10)
    ledger = Ledger.from_dict(json.loads(twice.ledger_json)) + Ledger.from_dict(
        json.loads(b.commit(0, 9, 10).ledger_json)
    )
    twice.ledger_json = json.dumps(ledger.to_dict())
    b.book.commit(twice)
    with pytest.raises(LedgerMismatch, match="epoch 0: 8 samples were used more than once"):
        b.book.commit(b.commit(0, 10, 30))


def test_a_checkpoint_that_nobody_committed_wins(tmp_path: Path) -> None:
    b = Books(tmp_path, 2)
    for rank in range(2):
        b.book.attach(rank, 7, resuming=False)
    assert b.book.last.step == 0, "a stand-in is no checkpoint that anybody could be told to restore"
    assert b.book.covers(7)
    for rank in range(2):
        b.book.commit(b.commit(rank, 7, 21))
    assert b.book.verified == 1, "the prefix stands in for what came before"


def test_all_ranks_go_back_and_what_came_after_is_void(tmp_path: Path) -> None:
    b = Books(tmp_path, 2)
    for start in (0, 10):
        for rank in range(2):
            b.book.attach(rank, start, resuming=False)
        for rank in range(2):
            b.book.commit(b.commit(rank, start, start + 10))
    for rank in range(2):
        b.book.attach(rank, 10, resuming=False)
    assert b.book.last.step == 10
    for rank in range(2):
        b.book.commit(b.commit(rank, 10, b.pod.total))
    assert b.book.verified == 3, "epoch 0 is proven again"


def test_a_rank_alone_goes_back_to_the_last_commit_and_is_counted_once(tmp_path: Path) -> None:
    b = Books(tmp_path, 2)
    for rank in range(2):
        b.book.attach(rank, 0, resuming=False)
        b.book.commit(b.commit(rank, 0, 10))
    b.book.commit(b.commit(0, 10, 15))
    b.book.commit(b.commit(1, 10, 13))
    b.book.attach(1, 10, resuming=False)
    b.book.commit(b.commit(1, 10, 15))
    assert b.book.last.step == 15
    for rank in range(2):
        b.book.commit(b.commit(rank, 15, b.pod.total))
    assert b.book.verified == 2


def test_a_resumed_session_changes_nothing(tmp_path: Path) -> None:
    b = Books(tmp_path, 1)
    b.book.attach(0, 0, resuming=False)
    b.book.commit(b.commit(0, 0, 10))
    again = b.open()
    again.attach(0, 14, resuming=True)
    assert again.last.step == 10
    again.commit(b.commit(0, 10, b.pod.total))
    assert again.verified == 2


def test_another_worlds_rank_is_refused(tmp_path: Path) -> None:
    b = Books(tmp_path, 1)
    with pytest.raises(CommitRefused, match="rank 3 is not in the plan of 1 ranks"):
        b.book.commit(pb.RankCommit(rank=3, stop=5, ledger_json="{}"))


def test_a_commit_that_could_not_be_written_is_not_taken_when_it_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller forgets what was taken; then nobody has it but this process."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    b = Books(tmp_path, 1)
    b.book.attach(0, 0, resuming=False)
    with monkeypatch.context() as patched:
        patched.setattr(localbook, "write_atomically", full)
        for _ in range(2):
            with pytest.raises(SidecarError, match=r"book.json cannot be written: No space left on device; make the"):
                b.book.commit(b.commit(0, 0, 10))
    assert b.open().last.step == 0
    assert b.book.commit(b.commit(0, 0, 10)) is None
    assert b.book.covers(10)
    assert b.open().last.step == 10, "what is taken is in the file"
