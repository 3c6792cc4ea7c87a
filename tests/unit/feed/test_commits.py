"""commits.jsonl: nothing answered is ever lost, half lines are, and a long outage stays bounded."""

import json
from pathlib import Path

import pytest

from lanefeed_core.book import Book, Segment
from lanefeed_core.ledger import Ledger
from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_sidecar.errors import SidecarError
from lanefeed_sidecar.report.commits import CommitLog


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
