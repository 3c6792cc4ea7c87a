"""commits.jsonl: nothing answered is ever lost, half lines are, and a long outage stays bounded."""

import json
from pathlib import Path

import pytest

from lanefeed_core.book import Book, Segment
from lanefeed_core.ledger import Ledger
from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_operator.coordinator.core import Coordinator
from lanefeed_operator.coordinator.reports import PodReport, RankCommit, RankReport
from lanefeed_sidecar.errors import SidecarError
from lanefeed_sidecar.report.commits import BATCH, CommitLog
from support.report_bed import LANES, TOTAL, ledger

#: Commits in one report here, fewer than the stream has steps.
LIMIT = 12


def coordinator() -> Coordinator:
    """Of a job of one pod with two ranks, which knows of no commit yet."""
    core = Coordinator("job", LANES, TOTAL)
    core.new_plan(1, 1, 2)
    core.expect(1, 0, "u0")
    return core


def real_commit(start: int, stop: int, rank: int) -> pb.RankCommit:
    """With what the rank of two does consume there."""
    whole = sum((ledger(2, rank, step, step + 1) for step in range(start, stop)), Ledger())
    return pb.RankCommit(rank=rank, start=start, stop=stop, ledger_json=json.dumps(whole.to_dict()))


def commit(start: int, stop: int, rank: int = 0, name: str = "") -> pb.RankCommit:
    ledger = Ledger()
    ledger.add(0, stop - start, 7 * (stop - start) * (rank + 1))
    return pb.RankCommit(rank=rank, start=start, stop=stop, name=name, ledger_json=json.dumps(ledger.to_dict()))


def test_commits_outlive_the_process_and_acknowledged_ones_do_not(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, 1)
    for step in range(3):
        assert log.append(commit(step, step + 1, name=f"ckpt/{step}"))
    log.close()
    again = CommitLog(tmp_path, 1)
    batch = again.batch()
    assert [p.message for p in batch] == [commit(s, s + 1, name=f"ckpt/{s}") for s in range(3)]
    again.acknowledge([p.number for p in batch[:2]])
    again.append(commit(3, 4))
    again.close()
    last = CommitLog(tmp_path, 1)
    assert [p.message.stop for p in last.batch()] == [3, 4]
    last.acknowledge([p.number for p in last.batch()])
    assert (tmp_path / "commits.jsonl").stat().st_size == 0, "supervisors take an empty file for all is reported"
    last.close()


def test_a_commit_that_is_sent_again_is_kept_once(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, 1)
    assert log.append(commit(0, 5))
    assert not log.append(commit(0, 5))
    assert len(log) == 1
    log.close()


def test_half_a_line_was_never_answered(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, 1)
    log.append(commit(0, 5))
    log.close()
    file = tmp_path / "commits.jsonl"
    whole = file.read_bytes()
    for cut in range(1, len(whole)):
        file.write_bytes(whole + whole[:cut])
        again = CommitLog(tmp_path, 1)
        assert [p.message for p in again.batch()] == [commit(0, 5)]
        again.append(commit(5, 6))
        again.close()
        assert len(file.read_bytes().splitlines()) == 2, "the next line must not be glued to the half one"


def test_lines_of_another_plan_or_damaged_ones_are_void(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, 1)
    log.append(commit(0, 5))
    log.close()
    with (tmp_path / "commits.jsonl").open("a") as file:
        file.write(
            '{"planGeneration":1,"rank":0}\nnonsense\n{"planGeneration":1,"rank":0,"start":0,"stop":1,"name":"","ledger":"[1]"}\n'
        )
    assert len(CommitLog(tmp_path, 1)) == 1
    assert len(CommitLog(tmp_path, 2)) == 0


def test_a_long_outage_joins_commits_and_the_book_comes_out_the_same(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, 1, keep_per_rank=8)
    for step in range(100):
        for rank in range(2):
            log.append(commit(step, step + 1, rank, f"ckpt/{step + 1}"))
    assert len(log) <= 2 * 8
    log.close()
    log = CommitLog(tmp_path, 1, keep_per_rank=8)
    book, whole = Book(1, 2), Book(1, 2)
    for pending in log.batch(1000):
        m = pending.message
        book.add(Segment(m.rank, m.start, m.stop, Ledger.from_dict(json.loads(m.ledger_json)), m.name), 1)
    for step in range(100):
        for rank in range(2):
            m = commit(step, step + 1, rank, f"ckpt/{step + 1}")
            whole.add(Segment(m.rank, m.start, m.stop, Ledger.from_dict(json.loads(m.ledger_json)), m.name), 1)
    assert (book.last.step, book.last.name) == (100, "ckpt/100")
    assert book.last.ledger == whole.last.ledger
    log.close()


def test_what_was_sent_is_never_joined(tmp_path: Path) -> None:
    # The control plane may have it although its answer was lost: a joined commit would not connect there.
    log = CommitLog(tmp_path, 1, keep_per_rank=2)
    log.append(commit(0, 1))
    sent = log.batch()
    for step in range(1, 20):
        log.append(commit(step, step + 1))
    assert sent[0].message == commit(0, 1)
    assert log.batch()[0].message == commit(0, 1)
    log.close()


def report(core: Coordinator, log: CommitLog, sequence: int, consumed: int) -> int:
    """One report of the pod with all its ranks, and its answer; how many commits were taken."""
    batch = log.batch(LIMIT)
    commits = tuple(
        RankCommit(m.rank, m.start, m.stop, m.name, Ledger.from_dict(json.loads(m.ledger_json)))
        for m in (p.message for p in batch)
    )
    assert len(commits) <= LIMIT
    ranks = tuple(RankReport(rank, 0, False, consumed, attached=True) for rank in range(2))
    reply = core.report(PodReport("job", 0, "u0", 1, "s", sequence, ranks, commits), 100.0)
    assert not reply.refused
    log.acknowledge([p.number for p in batch[: reply.commits_taken]])
    return reply.commits_taken


@pytest.mark.parametrize("forgetful", [False, True])
def test_a_rank_that_commits_much_more_often_than_another_holds_up_nothing(tmp_path: Path, forgetful: bool) -> None:
    """`if rank == 0: loader.commit(...)`: the other rank commits once, at the end, and by then all of rank 0's wait.

    `forgetful`: the operator is another one for each report, and knows what its status says.
    """
    log, end = CommitLog(tmp_path, 1), TOTAL
    core = coordinator()
    sequence = 0
    for step in range(end):
        log.append(real_commit(step, step + 1, 0))
        sequence += 1
        core = coordinator() if forgetful else core
        assert report(core, log, sequence, step + 1) == 0
    assert len(log) <= LIMIT
    log.append(real_commit(0, end, 1))
    for _ in range(4):
        sequence += 1
        core = coordinator() if forgetful and core.snapshot(100.0).last_step == 0 else core
        report(core, log, sequence, end)
        feed = core.snapshot(100.0)
        core.persisted(feed.version)
    assert core.snapshot(100.0).last_step == end
    assert not len(log)
    log.close()


def test_commits_that_do_not_connect_leave_room_for_those_of_other_ranks(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, 1)
    for life in range(100):
        log.append(commit(life * 10, life * 10 + 5))
    log.append(commit(0, 7, 1))
    found = [(p.message.rank, p.message.stop) for p in log.batch()]
    assert found[-1] == (1, 7)
    assert found[:-1] == [(0, life * 10 + 5) for life in range(100 - BATCH // 2, 100)], "the newest lives count"
    log.close()


def test_a_late_answer_acknowledges_nothing_of_what_was_joined_since(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, 1)
    for step in range(BATCH):
        log.append(commit(step, step + 1))
    sent = [p.number for p in log.batch()]
    for step in range(BATCH, BATCH + 10):
        log.append(commit(step, step + 1))
    middle = next(p for p in log.batch() if p.message.stop - p.message.start > 1)
    assert (middle.message.start, middle.message.stop) == (BATCH // 2, BATCH // 2 + 11)
    log.acknowledge(sent)
    assert next((p.message.start, p.message.stop) for p in log.batch()) == (BATCH // 2, BATCH // 2 + 11)
    log.close()


def test_what_an_earlier_session_left_is_never_joined(tmp_path: Path) -> None:
    """That session may have sent it, with its last words if not before."""
    log = CommitLog(tmp_path, 1, keep_per_rank=2)
    log.append(commit(0, 1))
    log.batch()
    log.close()
    again = CommitLog(tmp_path, 1, keep_per_rank=2)
    for step in range(1, 20):
        again.append(commit(step, step + 1))
    assert [p.message.start for p in again.batch()] == [0, 1, 19], "what came since is joined"
    assert again.batch()[0].message == commit(0, 1)
    again.close()


def test_a_file_that_cannot_grow_refuses_and_keeps_what_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    log = CommitLog(tmp_path, 1)
    log.append(commit(0, 1))
    before = (tmp_path / "commits.jsonl").read_bytes()
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:10]))
    with pytest.raises(SidecarError, match=r"only 10 of .* bytes were written; make the tmpfs larger"):
        log.append(commit(1, 2))
    monkeypatch.undo()
    assert (tmp_path / "commits.jsonl").read_bytes() == before
    assert len(log) == 1
    log.close()
