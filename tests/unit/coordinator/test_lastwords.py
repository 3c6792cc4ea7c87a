"""A dead sidecar's last words count like the report that it could not send, once, and from the right pod alone."""

from dataclasses import replace

import pytest

from lanefeed_core import lastwords
from lanefeed_core.lastwords import Commit, Failure, LastWords, LastWordsError, Rank
from lanefeed_core.ledger import Ledger
from lanefeed_operator.coordinator.core import Coordinator
from lanefeed_operator.coordinator.lastwords import explain, reports_of
from lanefeed_operator.reconcile.types import FeedView
from sim.pods import EPOCHS, lanes_of, rank_ids, rank_sum

LANES = lanes_of("Partial")
TOTAL = EPOCHS * LANES.steps_per_epoch


def ledger(rank: int, start: int, until: int) -> Ledger:
    found = Ledger()
    for total in range(start, until):
        ids = rank_ids("Partial", total, 2, rank)
        found.add(total // LANES.steps_per_epoch, len(ids), rank_sum("Partial", total, 2, rank))
    return found


def words(rank: int, **changes: object) -> LastWords:
    """All that a pod of one rank did, none of which was reported."""
    found = LastWords(
        why="SIGTERM",
        job_uid="job",
        pod_uid=f"u{rank}",
        pod_index=rank,
        plan_generation=1,
        session=f"{rank}" * 32,
        sequence=9,
        ranks=(Rank(rank, 0, False, TOTAL, True),),
        commits=(
            Commit(rank, 0, 7, "c7", ledger(rank, 0, 7)),
            Commit(rank, 7, TOTAL, "end", ledger(rank, 7, TOTAL)),
        ),
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def core() -> Coordinator:
    found = Coordinator("job", LANES, TOTAL)
    found.new_plan(1, 2, 1)
    for index in range(2):
        found.expect(1, index, f"u{index}")
    return found


def take(coordinator: Coordinator, *all_: LastWords) -> FeedView:
    for one in all_:
        reply = coordinator.report(reports_of(lastwords.encode(one), pod_uid=one.pod_uid), 100.0)
        assert not reply.reason, reply
    return coordinator.snapshot(100.0)


def test_a_control_plane_that_was_away_all_the_time_learns_the_whole_run() -> None:
    view = take(core(), words(0), words(1))
    assert (view.last_step, view.last_name) == (TOTAL, "end")
    assert view.mismatch is None
    assert [proof.verified for proof in view.proofs] == [True] * EPOCHS
    assert all(rank.ended and not rank.attached and rank.consumed == TOTAL for rank in view.ranks.values())


def test_taken_twice_or_after_the_report_they_change_nothing() -> None:
    coordinator = core()
    once = take(coordinator, words(0), words(1))
    again = take(coordinator, words(0), words(1), words(1, sequence=3))
    assert again.book == once.book
    assert again.ranks == once.ranks
    assert again.proofs == once.proofs


def test_a_lost_sample_in_them_is_a_mismatch() -> None:
    """The tooth: they are proven like every commit."""
    short = words(1, commits=(Commit(1, 0, TOTAL, "end", ledger(1, 1, TOTAL)),))
    view = take(core(), words(0), short)
    assert view.mismatch is not None
    assert "never used" in view.mismatch.message


def test_of_another_pod_plan_or_life_they_do_not_count() -> None:
    text = lastwords.encode(words(0))
    with pytest.raises(LastWordsError, match="are of pod u0 and were found at pod u9"):
        reports_of(text, pod_uid="u9")
    coordinator = core()
    coordinator.expect(1, 0, "u9")
    reply = coordinator.report(reports_of(text), 100.0)
    assert (reply.fenced, "was replaced" in reply.reason) == (True, True)
    assert coordinator.report(reports_of(lastwords.encode(words(1, plan_generation=0))), 100.0).fenced
    assert coordinator.snapshot(100.0).ranks == {}


def test_words_of_a_former_session_do_not_push_the_living_one_out() -> None:
    coordinator = core()
    take(coordinator, words(0, session="b" * 32))
    reply = coordinator.report(reports_of(lastwords.encode(words(0, session="a" * 32))), 100.0)
    assert not reply.fenced
    assert "has had another session since these last words: bbbb" in reply.reason
    assert take(coordinator, words(0, session="b" * 32, sequence=10)).ranks[0].ended


def test_failures_arrive_and_people_read_why() -> None:
    failed = words(0, why="DataError: part-0.parquet is bad", failures=(Failure("DataError", "part-0 ...", False),))
    view = take(core(), failed)
    assert [(f.kind, f.message, f.retryable, f.pod_index) for f in view.failures] == [
        ("DataError", "part-0 ...", False, 0)
    ]
    assert explain(lastwords.encode(failed)) == "DataError: part-0.parquet is bad"
    assert explain("ConfigError: no run folder\n") == "ConfigError: no run folder"
    cut = lastwords.encode(failed)[:100]
    assert explain(cut) == cut
