"""What sidecars are told is committed, and what they may forget: never what an operator's death would lose.

Ranks that go back (an older checkpoint wins) make commits void and do steps again, perhaps with checkpoints at other
steps than before: what is told and forgotten must be right at every moment of that.
"""

import json

import pytest

from lanefeed_core.ledger import Ledger
from lanefeed_operator.api.status import PlanStatus, Status
from lanefeed_operator.coordinator.core import Coordinator
from lanefeed_operator.coordinator.reports import PodReport, RankCommit, RankReport, Reply
from support.report_bed import LANES, TOTAL, ledger


class Side:
    """A rank with its sidecar: what waits there is sent with every report, until it is taken."""

    def __init__(self, bed: "Bed", rank: int, uid: str) -> None:
        self.bed, self.rank, self.uid, self.sequence = bed, rank, uid, 0
        self.at, self.waiting = 0, list[RankCommit]()

    def commit(self, step: int) -> None:
        parts = [ledger(2, self.rank, s, s + 1) for s in range(self.at, step)]
        self.waiting.append(RankCommit(self.rank, self.at, step, f"{self.uid}-c{step}", sum(parts, Ledger())))
        self.at = step

    def tell(self) -> Reply:
        self.sequence += 1
        life = RankReport(self.rank, 0, False, self.at, attached=True)
        report = PodReport("job", self.rank, self.uid, 1, f"s-{self.uid}", self.sequence, (life,), tuple(self.waiting))
        reply = self.bed.core.report(report, 100.0)
        del self.waiting[: reply.commits_taken]
        return reply


class Bed:
    """Two pods with a rank each, whose last commit, of step 14, is stored. `stored`: what the API server holds."""

    def __init__(self) -> None:
        self.core = Coordinator("job", LANES, TOTAL)
        self.core.new_plan(1, 2, 1)
        self.sides = [self.begin(rank, f"u{rank}") for rank in range(2)]
        self.together(7)
        self.together(14)
        self.write()
        for side in self.sides:
            side.tell()
        assert not any(side.waiting for side in self.sides)

    def begin(self, rank: int, uid: str) -> Side:
        """A new pod, whose trainer found no checkpoint."""
        self.core.expect(1, rank, uid)
        return Side(self, rank, uid)

    def together(self, step: int) -> None:
        for side in self.sides:
            side.commit(step)
            side.tell()

    def write(self, *, answered: bool = True) -> None:
        feed = self.core.snapshot(100.0)
        status = Status(book=feed.book, plan=PlanStatus(generation=1, replicas=2))
        self.stored = Status.model_validate(json.loads(json.dumps(status.to_dict())))
        if answered:
            self.core.persisted(feed.version)

    def restart(self) -> None:
        """The operator dies: all that the next one knows is what was stored."""
        self.core = Coordinator("job", LANES, TOTAL, self.stored)
        for side in self.sides:
            self.core.expect(1, side.rank, side.uid)

    @property
    def last(self) -> int:
        return self.core.snapshot(100.0).last_step


@pytest.mark.parametrize("landed", [False, True])
def test_a_commit_on_a_way_that_is_not_stored_yet_is_not_told(landed: bool) -> None:
    """A commit of more steps was stored before: that one is void, and says nothing of this one."""
    bed = Bed()
    bed.sides = [bed.begin(rank, f"v{rank}") for rank in range(2)]
    for side in bed.sides:
        side.tell()
    if landed:
        # That all began again is stored, and the operator does not know it.
        bed.write(answered=False)
    bed.together(5)
    assert bed.last == 5
    for side in bed.sides:
        reply = side.tell()
        assert (reply.last_commit, reply.commits_taken) == (None, 0)
    bed.restart()
    for step in (10, TOTAL):
        bed.together(step)
        for side in bed.sides:
            side.tell()
        # An operator that knows nothing of the new beginning takes them for ranks that restarted alone, behind 14.
        assert bed.last == (step if landed else max(step, 14))


def test_a_commit_of_the_same_step_and_name_that_is_void_in_what_is_stored_is_not_told() -> None:
    bed = Bed()
    bed.sides = [bed.begin(rank, f"v{rank}") for rank in range(2)]
    for side in bed.sides:
        side.tell()
    bed.together(14)
    reply = bed.sides[0].tell()
    assert (reply.last_commit, reply.commits_taken) == (None, 0)
    bed.write()
    reply = bed.sides[0].tell()
    assert reply.last_commit is not None
    assert (reply.last_commit.step, reply.commits_taken) == (14, 1)


def test_what_was_stored_before_all_went_back_stays_told() -> None:
    """The newest of the commits that are not void."""
    bed = Bed()
    bed.core._begin(7)
    bed.core._changed()
    reply = bed.sides[0].tell()
    assert reply.last_commit is not None
    assert reply.last_commit.step == 7


def test_more_commits_than_the_book_holds_while_nothing_is_written_take_nothing_back() -> None:
    bed = Bed()
    for step in range(15, 15 + 20):
        bed.together(step)
    reply = bed.sides[0].tell()
    assert reply.last_commit is not None
    assert (reply.last_commit.step, reply.commits_taken) == (14, 0)
    bed.write()
    assert bed.sides[0].tell().commits_taken == 20


@pytest.mark.parametrize("restart", [False, True])
def test_a_rank_that_went_back_keeps_its_commits_until_it_is_known_who_else_did(restart: bool) -> None:
    """Step 5 is covered by the job's commit of 14, which is void once the other rank is known to have gone back too."""
    bed = Bed()
    bed.sides[1] = bed.begin(1, "v1")
    bed.sides[1].commit(5)
    assert bed.sides[1].tell().commits_taken == 0
    if restart:
        bed.restart()
        assert bed.sides[1].tell().commits_taken == 0
    bed.sides[0] = bed.begin(0, "v0")
    bed.sides[0].tell()
    bed.sides[1].tell()
    if not restart:
        assert bed.last == 0
    bed.write()
    bed.together(10)
    if restart:
        # The new operator takes both for ranks that restarted alone: their commits count from 14 on.
        bed.together(20)
        assert bed.last == 20
    else:
        assert bed.last == 10
        bed.write()
        bed.restart()
    bed.together(25)
    assert bed.last == 25


def test_a_rank_that_went_back_alone_is_rid_of_its_commits_with_the_jobs_next_one() -> None:
    bed = Bed()
    bed.sides[1] = bed.begin(1, "v1")
    bed.sides[1].commit(5)
    bed.sides[1].commit(12)
    assert bed.sides[1].tell().commits_taken == 0
    bed.together(20)
    assert bed.last == 20
    assert len(bed.sides[1].waiting) == 3
    bed.write()
    assert bed.sides[1].tell().commits_taken == 3


def test_an_operator_that_was_restarted_takes_what_the_job_has_stored() -> None:
    """The answer was lost, and so was the operator."""
    bed = Bed()
    for side in bed.sides:
        side.commit(21)
        side.tell()
    bed.write(answered=False)
    bed.restart()
    for side in bed.sides:
        assert side.tell().commits_taken == 1
