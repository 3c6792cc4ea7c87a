"""How often a sidecar reports: at the control plane's pace, at once on news, ever more seldom where nobody answers."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_sidecar.errors import Unavailable
from lanefeed_sidecar.report import CommitLog, Reporter
from lanefeed_sidecar.report.client import MAX_INTERVAL_SECONDS
from support.feed_client import eventually
from support.feed_pod import Pod


class Wire:
    """The channel: answers by `answer`, keeps what was sent and when."""

    def __init__(self) -> None:
        self.sent: list[tuple[float, pb.ReportRequest]] = []
        self.answer: Callable[[pb.ReportRequest], pb.ReportReply] = lambda _request: pb.ReportReply()
        self.away = False
        self.ended = 0

    def stub(self) -> "Wire":
        if self.away:
            raise Unavailable("nobody is there")
        return self

    @property
    def Report(self) -> "Wire":
        return self

    def future(self, request: pb.ReportRequest, **_: Any) -> Any:
        self.sent.append((time.monotonic(), request))
        reply = self.answer(request)

        class Call:
            def result(self) -> pb.ReportReply:
                return reply

            def cancel(self) -> None:
                pass

        return Call()

    def metadata(self) -> list[tuple[str, str]]:
        return []

    def worked(self) -> None:
        pass

    def failed(self) -> None:
        self.ended += 1

    def close(self) -> None:
        pass


class Bed:
    def __init__(self, folder: Path) -> None:
        config = Pod(folder, folder, coordinator="nowhere.ns.svc:1", report_seconds=0.05).config
        self.commits = CommitLog(folder, 1)
        self.reporter = Reporter(config, "a" * 32, self.commits, ready=lambda: True)
        self.wire = Wire()
        self.reporter._channel = self.wire  # type: ignore[assignment]

    def commit(self, stop: int) -> None:
        self.commits.append(pb.RankCommit(rank=0, start=stop - 1, stop=stop, ledger_json="{}"))


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    made = Bed(tmp_path)
    yield made
    made.reporter.close(0.1)
    made.commits.close()


def test_the_pace_is_the_control_planes_and_news_are_sent_at_once(bed: Bed) -> None:
    bed.reporter.start()
    with eventually() as check:
        check(lambda: len(bed.wire.sent) >= 5)
    bed.wire.answer = lambda _request: pb.ReportReply(next_report_seconds=30.0)
    with eventually() as check:
        check(lambda: bed.reporter._interval == 30.0)
    before = len(bed.wire.sent)
    time.sleep(0.5)
    assert len(bed.wire.sent) == before
    bed.wire.answer = lambda _request: pb.ReportReply()
    bed.reporter.wake()
    with eventually(20) as check:
        check(lambda: len(bed.wire.sent) >= before + 5)
    sequences = [request.sequence for _, request in bed.wire.sent]
    assert sequences == sorted(set(sequences))


@pytest.mark.parametrize(
    ("wanted", "interval"),
    [(0.0, 0.05), (-1.0, 0.05), (float("nan"), 0.05), (0.01, 0.05), (7.0, 7.0), (float("inf"), MAX_INTERVAL_SECONDS)],
)
def test_a_nonsensical_pace_hurts_nobody(bed: Bed, wanted: float, interval: float) -> None:
    bed.reporter._take(pb.ReportReply(next_report_seconds=wanted), [])
    assert bed.reporter._interval == interval


def test_where_nobody_answers_tries_are_ever_further_apart_and_never_at_one_beat(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.wire.away = True
    pauses: list[float] = []
    monkeypatch.setattr(bed.reporter, "_wait", lambda pause, never: pauses.append(pause) or time.sleep(0.001))
    bed.reporter.start()
    with eventually() as check:
        check(lambda: len(pauses) > 40)
    assert 0.1 <= pauses[0] <= 0.2
    assert all(2.5 <= pause <= 5.0 for pause in pauses[10:40])
    assert len(set(pauses[10:40])) == 30
    assert bed.wire.ended >= 40


def test_at_the_end_commits_are_sent_until_they_are_taken(bed: Bed) -> None:
    """A commit counts when other pods have made it too, and that takes them a moment."""
    bed.commit(5)
    began = time.monotonic()

    def answer(request: pb.ReportRequest) -> pb.ReportReply:
        return pb.ReportReply(commits_taken=len(request.commits) if len(bed.wire.sent) == 4 else 0)

    bed.wire.answer = answer
    bed.reporter.close(60.0)
    assert time.monotonic() - began > 0.15, "not one after the other without a pause"
    assert len(bed.commits) == 0
    assert len(bed.wire.sent) == 4


def test_at_the_end_a_report_that_did_not_count_is_sent_again(bed: Bed) -> None:
    """An operator that has just started does not know the pod yet."""
    answers = [pb.ReportReply(reason="pod is not known yet: try again")] * 2 + [pb.ReportReply()]
    bed.wire.answer = lambda _request: answers[min(len(bed.wire.sent), 3) - 1]
    bed.reporter.close(60.0)
    assert len(bed.wire.sent) == 3


def test_shards_set_aside_are_told_until_a_report_counts_then_now_and_then(bed: Bed) -> None:
    reporter, wire = bed.reporter, bed.wire
    reporter.quarantined = tuple((f"{n}.parquet", "x" * 900) for n in range(2000))
    wire.answer = lambda _request: pb.ReportReply(reason="try again")
    assert reporter._send(1.0)
    wire.answer = lambda _request: pb.ReportReply()
    assert all(reporter._send(1.0) for _ in range(3))
    reporter._quarantined_at -= 60
    assert reporter._send(1.0)
    told = [len(request.quarantined) for _, request in wire.sent]
    assert told == [1024, 1024, 0, 0, 1024]
    assert wire.sent[0][1].ByteSize() < 1 << 20


def test_the_end_has_a_limit(bed: Bed) -> None:
    bed.commit(5)
    began = time.monotonic()
    bed.reporter.close(0.5)
    assert 0.4 < time.monotonic() - began < 20
    assert len(bed.commits) == 1
