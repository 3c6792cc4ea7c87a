"""The report service: who is believed, what adds up, what is acknowledged when, and the wire around it."""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from lanefeed_core.ledger import Ledger
from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.proto import lanefeed_pb2_grpc as rpc
from lanefeed_core.wire import PROTOCOL_VERSION, TOKEN_METADATA
from lanefeed_operator.api.status import LedgerStatus, PlanStatus, Status
from lanefeed_operator.coordinator.core import Coordinator
from lanefeed_operator.coordinator.reports import PodReport, RankCommit, RankReport, Reply
from lanefeed_operator.coordinator.service import Server, serve
from lanefeed_operator.errors import CoordinatorError
from sim.pods import EPOCHS, lanes_of, rank_ids, rank_sum

LANES = lanes_of("Partial")
TOTAL = EPOCHS * LANES.steps_per_epoch
TOKEN = "0123456789abcdef" * 4


def ledger(world: int, rank: int, start: int, until: int) -> Ledger:
    found = Ledger()
    for total in range(start, until):
        count = len(rank_ids("Partial", total, world, rank))
        found.add(total // LANES.steps_per_epoch, count, rank_sum("Partial", total, world, rank))
    return found


def commit(rank: int, start: int, until: int, name: str = "", world: int = 2) -> RankCommit:
    return RankCommit(rank, start, until, name or f"c{until}", ledger(world, rank, start, until))


class Bed:
    """A coordinator of two pods with a rank each."""

    def __init__(self, status: Status | None = None) -> None:
        self.core = Coordinator("job", LANES, TOTAL, status)
        if status is None:
            self.core.new_plan(1, 2, 1)
        for index in range(2):
            self.core.expect(1, index, f"u{index}")
        self.sequence = 0

    def say(self, rank: int, consumed: int, *commits: RankCommit, started: int = 0, **more: Any) -> Reply:
        self.sequence += 1
        report = PodReport("job", rank, f"u{rank}", 1, f"s{rank}", self.sequence)
        life = RankReport(rank, started, started > 0, consumed, attached=True)
        return self.core.report(replace(report, ranks=(life,), commits=commits, **more), 100.0)

    def save(self) -> Status:
        feed = self.core.snapshot(100.0)
        self.core.persisted(feed.version)
        plan = PlanStatus(generation=feed.plan_generation, replicas=2)
        ledgers = LedgerStatus(verified=feed.proven, epochs=list(feed.proofs))
        return Status.model_validate(
            json.loads(json.dumps(Status(book=feed.book, plan=plan, ledger=ledgers).to_dict()))
        )

    @property
    def last(self) -> tuple[int, str]:
        feed = self.core.snapshot(100.0)
        return feed.last_step, feed.last_name


def test_a_commit_of_all_ranks_is_the_jobs_and_is_acknowledged_once_it_is_persisted() -> None:
    bed = Bed()
    bed.say(0, 7, commit(0, 0, 7))
    assert bed.last == (0, "")
    reply = bed.say(1, 7, commit(1, 0, 7))
    assert bed.last == (7, "c7")
    assert (reply.commits_taken, reply.last_commit) == (0, None)
    bed.save()
    reply = bed.say(1, 7, commit(1, 0, 7))
    assert reply.commits_taken == 1
    assert reply.last_commit is not None
    assert (reply.last_commit.step, reply.last_commit.name) == (7, "c7")


def test_a_control_plane_that_is_killed_before_it_persisted_hears_of_the_commits_again() -> None:
    bed = Bed()
    kept = bed.save()
    bed.say(0, 7, commit(0, 0, 7))
    bed.say(1, 7, commit(1, 0, 7))
    again = Bed(kept)
    assert again.last == (0, "")
    again.say(0, 8, commit(0, 0, 7))
    again.say(1, 8, commit(1, 0, 7))
    assert again.last == (7, "c7")


def test_a_rank_killed_alone_restarts_from_the_last_commit_while_others_go_on() -> None:
    bed = Bed()
    for rank in range(2):
        bed.say(rank, 7, commit(rank, 0, 7))
    bed.say(0, 14, commit(0, 7, 14))
    bed.say(0, 21, commit(0, 7, 14), commit(0, 14, 21))
    bed.core.expect(1, 1, "u1b")
    bed.say(1, 14, commit(1, 7, 14), pod_uid="u1b", session="b", started=7)
    assert bed.last == (14, "c14")
    bed.say(1, 21, commit(1, 7, 14), commit(1, 14, 21), pod_uid="u1b", session="b", started=7)
    assert bed.last == (21, "c21")
    assert bed.core.snapshot(0).proofs[0].verified
    assert not bed.core.snapshot(0).disagree


@pytest.mark.parametrize(
    ("change", "fenced", "words"),
    [
        ({"plan_generation": 0}, True, "was replaced by 1"),
        ({"plan_generation": 2}, False, "try again"),
        ({"pod_uid": "other"}, False, "not known yet"),
        ({"job_uid": "x"}, True, "of job x"),
        ({"protocol": 9}, True, "protocol 9"),
        ({"pod_index": 7}, False, "not known yet"),
    ],
)
def test_who_is_not_believed(change: dict[str, Any], fenced: bool, words: str) -> None:
    bed = Bed()
    reply = bed.say(0, 7, commit(0, 0, 7), **change)
    assert reply.fenced is fenced
    assert words in reply.reason
    assert bed.core.snapshot(0).ranks == {}


def test_replaced_pods_and_fenced_pods_are_refused_for_good() -> None:
    bed = Bed()
    bed.say(0, 3)
    bed.core.expect(1, 0, "new")
    assert bed.say(0, 5).fenced
    bed.core.expect(1, 0, "u0")
    assert bed.say(0, 5).fenced, "a pod that was replaced never comes back"
    bed.core.fence(1, 1, "u1", "test")
    assert bed.say(1, 5).fenced


def test_former_sessions_and_old_sequence_numbers_change_nothing() -> None:
    bed = Bed()
    bed.say(0, 5)
    bed.say(0, 9, session="second")
    assert bed.say(0, 30).fenced
    bed.say(0, 2, session="second", sequence=1)
    assert bed.core.snapshot(0).ranks[0].consumed == 9


def test_commits_that_can_never_count_are_said_and_not_sent_again() -> None:
    bed = Bed()
    bad = [
        commit(1, 0, 7),
        replace(commit(0, 7, 3)),
        replace(commit(0, 0, 7), ledger=None),
        commit(0, 0, 7, "x" * 513),
        commit(0, 0, 7, "a\nb"),
    ]
    reply = bed.say(0, 7, *bad)
    assert reply.commits_taken == len(reply.refused) == 5
    assert "pod 0 has ranks 0 to 0" in reply.refused[0]
    assert bed.last == (0, "")


def test_a_checkpoint_that_no_commit_named_stands_in_but_is_never_handed_out() -> None:
    bed = Bed()
    for rank in range(2):
        bed.say(rank, 9, started=9)
    assert bed.last == (0, "")
    for rank in range(2):
        bed.say(rank, 14, commit(rank, 9, 14), started=9)
    assert bed.last == (14, "c14")
    for rank in range(2):
        bed.say(rank, 25, commit(rank, 9, 14), commit(rank, 14, 25), started=9)
    proof = bed.core.snapshot(0).proofs[0]
    assert proof.verified
    assert proof.recomputed


def test_the_checkpoint_wins_over_later_commits_and_a_void_one_can_come_back() -> None:
    bed = Bed()
    for step in (7, 14, 21):
        for rank in range(2):
            bed.say(rank, step, commit(rank, step - 7, step))
    assert bed.last == (21, "c21")
    bed = Bed(bed.save())
    for rank in range(2):
        bed.say(rank, 7, started=7)
    assert bed.last == (7, "c7")
    bed = Bed(bed.save())
    for rank in range(2):
        bed.say(rank, 21, started=21)
    assert bed.last == (21, "c21")
    for rank in range(2):
        bed.say(rank, 25, commit(rank, 21, 25), started=21)
    assert bed.last == (25, "c25")
    assert [p.verified for p in bed.core.snapshot(0).proofs] == [True]


def test_a_void_commit_does_not_stand_for_ranks_that_have_not_made_it_again() -> None:
    bed = Bed()
    for step in (7, 14):
        for rank in range(2):
            bed.say(rank, step, commit(rank, step - 7, step))
    for rank in range(2):
        bed.say(rank, 7, started=7)
    assert bed.last == (7, "c7")
    bed.say(0, 14, commit(0, 7, 14), started=7)
    assert bed.last == (7, "c7")
    bed.say(1, 14, commit(1, 7, 14), started=7)
    assert bed.last == (14, "c14")


def test_a_new_plan_forgets_the_old_ones_half_commits() -> None:
    bed = Bed()
    bed.say(0, 7, commit(0, 0, 7))
    bed.core.new_plan(2, 1, 1)
    assert bed.say(1, 7, commit(1, 0, 7)).fenced
    assert bed.last == (0, "")
    with pytest.raises(CoordinatorError, match="only go forward"):
        bed.core.new_plan(1, 2, 1)


def test_ranks_that_begin_apart_are_told_of() -> None:
    bed = Bed()
    for rank in range(2):
        bed.say(rank, 7, commit(rank, 0, 7))
    bed.core.new_plan(2, 2, 1)
    for index in range(2):
        bed.core.expect(2, index, f"n{index}")
    bed.say(0, 7, plan_generation=2, pod_uid="n0", session="n0", started=7)
    bed.say(1, 0, plan_generation=2, pod_uid="n1", session="n1")
    assert bed.core.snapshot(0).disagree == {1: 0}


def test_a_wrong_ledger_is_a_mismatch_and_its_commit_does_not_count() -> None:
    bed = Bed()
    wrong = replace(commit(0, 0, 21), ledger=ledger(2, 0, 0, 20))
    bed.say(0, 21, wrong)
    bed.say(1, 21, commit(1, 0, 21))
    feed = bed.core.snapshot(0)
    assert feed.mismatch is None, "epoch 0 has 20 steps and the fault lies in epoch 1"
    bed = Bed()
    bed.say(0, 21, replace(wrong, ledger=ledger(2, 0, 1, 21)))
    bed.say(1, 21, commit(1, 0, 21))
    feed = bed.core.snapshot(0)
    assert feed.mismatch is not None
    assert "6 samples were never used" in feed.mismatch.message
    assert feed.last_step == 0


def test_the_end_inside_of_an_epoch_is_proven_too() -> None:
    core = Coordinator("job", LANES, 25)
    core.new_plan(1, 1, 1)
    core.expect(1, 0, "u0")
    life = RankReport(0, 0, False, 25, True)
    core.report(PodReport("job", 0, "u0", 1, "s", 1, (life,), (commit(0, 0, 25, world=1),)), 1.0)
    assert [(p.epoch, p.verified, p.partial) for p in core.snapshot(1).proofs] == [(0, True, False), (1, True, True)]


# ---- the wire --------------------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Bed, Server]]:
    bed = Bed()
    running = serve(bed.core, f"unix:{tmp_path}/c.sock", TOKEN, time.time)
    yield bed, running
    running.stop(0.1)
    assert not (tmp_path / "c.sock").exists()


def send(address: str, request: pb.ReportRequest, token: str = TOKEN) -> pb.ReportReply:
    with grpc.insecure_channel(address) as channel:
        return rpc.CoordinatorStub(channel).Report(request, timeout=60, metadata=((TOKEN_METADATA, token),))


def message(rank: int, *, text: str | None = None) -> pb.ReportRequest:
    request = pb.ReportRequest(
        protocol=PROTOCOL_VERSION, job_uid="job", pod_index=rank, pod_uid=f"u{rank}", plan_generation=1
    )
    request.session, request.sequence, request.ready = f"s{rank}", 1, True
    request.ranks.add(rank=rank, consumed=7, attached=True)
    body = text if text is not None else json.dumps(ledger(2, rank, 0, 7).to_dict())
    request.commits.add(rank=rank, start=0, stop=7, name="c7", ledger_json=body)
    return request


def test_over_the_wire_a_commit_is_acknowledged_as_soon_as_it_is_persisted(server: tuple[Bed, Server]) -> None:
    bed, running = server
    woken = threading.Event()
    bed.core.on_change = woken.set

    def shell() -> None:
        while bed.last[0] < 7:
            assert woken.wait(60)
            woken.clear()
        bed.core.persisted(bed.core.snapshot(0).version)

    thread = threading.Thread(target=shell)
    thread.start()
    bed.core.stop(1, 99, "Resize")
    send(running.address, message(0))
    reply = send(running.address, message(1))
    thread.join(60)
    assert reply.commits_taken == 1
    assert reply.last_commit.name == "c7"
    assert (reply.stop_at.step, reply.stop_at.reason) == (99, "Resize")
    assert bed.core.ready(1)


def test_a_wrong_token_is_refused(server: tuple[Bed, Server]) -> None:
    _, running = server
    for token in ("wrong", "\u00e9".encode().hex()):
        with pytest.raises(grpc.RpcError) as caught:
            send(running.address, message(0), token)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', '{"0": ["x", "y"]}'])
def test_a_ledger_that_is_none_is_refused_not_a_crash(server: tuple[Bed, Server], text: str) -> None:
    reply = send(server[1].address, message(0, text=text))
    assert "its ledger cannot be read" in reply.refused[0]


def test_a_weak_token_is_refused() -> None:
    with pytest.raises(CoordinatorError, match="at least 16"):
        serve(Bed().core, "127.0.0.1:0", "short", time.time)


def test_tcp_takes_any_free_port() -> None:
    running = serve(Bed().core, "127.0.0.1:0", TOKEN, time.time)
    assert int(running.address.rpartition(":")[2]) > 0
    running.stop(0.1)


def test_whoever_begins_anew_says_since_when_and_a_plan_of_its_own_is_no_find() -> None:
    bed = Bed()
    assert bed.core.snapshot(50.0).found == 0.0
    bed.say(0, 7, commit(0, 0, 7))
    bed.say(1, 7, commit(1, 0, 7))
    again = Bed(bed.save())
    assert again.core.snapshot(60.0).found == 60.0
    assert again.core.snapshot(70.0).found == 60.0
    again.core.new_plan(2, 3, 1)
    assert again.core.snapshot(80.0).found == 0.0
