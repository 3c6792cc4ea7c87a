"""A rank that restarts alone from a checkpoint older than the job's last commit: later commits are not held up."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanefeed_core import expected
from lanefeed_core.errors import StreamError
from lanefeed_core.lanes import Lanes
from lanefeed_core.ledger import Ledger, sum_ids
from lanefeed_core.slices import rank_slice
from lanefeed_core.stream import StreamSpec
from lanefeed_operator.api.status import PlanStatus, Status
from lanefeed_operator.coordinator import proof
from lanefeed_operator.coordinator.core import Coordinator
from lanefeed_operator.coordinator.reports import PodReport, RankCommit, RankReport, Reply
from support.report_bed import LANES, TOTAL, ledger


class Bed:
    """Two pods; pod 1 was replaced, and its rank went on from step 7 while the job's last commit is of step 21."""

    def __init__(self) -> None:
        self.core, self.sequence = Coordinator("job", LANES, TOTAL), 0
        self.core.new_plan(1, 2, 1)
        self.uids = ["u0", "u1"]
        self.expect()
        for step in (7, 14, 21):
            for rank in range(2):
                self.say(rank, step, (step - 7, step))
        self.uids[1] = "u1b"
        self.expect()
        assert self.core.snapshot(0).last_step == 21

    def expect(self) -> None:
        for index, uid in enumerate(self.uids):
            self.core.expect(1, index, uid)

    def say(self, rank: int, consumed: int, *commits: tuple[int, int], started: int = 0, lost: int = 0) -> Reply:
        """`lost`: a step whose samples the rank did not train."""
        self.sequence += 1
        life = RankReport(rank, started, started > 0, consumed, attached=True)
        made = []
        for first, until in commits:
            parts = [ledger(2, rank, step, step + 1) for step in range(first, until) if not lost or step != lost]
            made.append(RankCommit(rank, first, until, f"c{until}", sum(parts, Ledger())))
        uid = self.uids[rank]
        report = PodReport("job", rank, uid, 1, f"s-{uid}", self.sequence, (life,), tuple(made))
        return self.core.report(report, 100.0)

    def restart(self) -> None:
        """The operator dies; all that it knows is what it wrote."""
        feed = self.core.snapshot(0)
        status = Status(book=feed.book, plan=PlanStatus(generation=1, replicas=2))
        self.core = Coordinator("job", LANES, TOTAL, Status.model_validate(json.loads(json.dumps(status.to_dict()))))
        self.expect()

    @property
    def last(self) -> int:
        return self.core.snapshot(0).last_step


@pytest.mark.parametrize("restart", [False, True])
def test_its_next_commit_completes_the_jobs(restart: bool) -> None:
    bed = Bed()
    bed.say(0, 28, (21, 28))
    bed.say(1, 8, started=7)
    if restart:
        bed.restart()
        bed.say(0, 28, (21, 28))
    bed.say(1, 28, (7, 28), started=7)
    assert bed.last == 28
    for rank in range(2):
        bed.say(rank, TOTAL, (28, TOTAL), started=7 * rank)
    feed = bed.core.snapshot(0)
    assert feed.last_step == TOTAL
    assert feed.mismatch is None
    assert all(p.verified for p in feed.proofs)


def test_commits_on_the_way_to_the_last_one_count_for_nothing_and_that_over_it_is_cut() -> None:
    bed = Bed()
    bed.say(0, 28, (21, 28))
    bed.say(1, 28, (7, 10), (10, 20), (20, 28), started=7)
    assert bed.last == 28


def test_the_others_commit_later_and_at_other_steps() -> None:
    bed = Bed()
    bed.say(1, 35, (7, 28), (28, 35), started=7)
    assert bed.last == 21
    bed.say(0, 35, (21, 35))
    assert bed.last == 35, "what was cut is kept until others have come as far"


def test_all_went_back_and_the_operator_does_not_know_that_they_all_did() -> None:
    """It was down meanwhile: each rank looks like one that restarted alone, and each one's part is cut."""
    bed = Bed()
    bed.restart()
    bed.say(1, 28, (7, 10), (10, 28), started=7)
    bed.say(0, 28, (7, 10), (10, 28), started=7)
    assert bed.last == 28
    bed.say(0, TOTAL, (28, TOTAL), started=7)
    bed.say(1, TOTAL, (28, TOTAL), started=7)
    feed = bed.core.snapshot(0)
    assert feed.last_step == TOTAL
    assert all(p.verified for p in feed.proofs)


def test_what_was_cut_restores_no_void_commit() -> None:
    """All go back to 7 in the end: 21 is void, and rank 1 has not made it again."""
    bed = Bed()
    bed.say(1, 28, (7, 28), started=7)
    bed.uids[0] = "u0b"
    bed.expect()
    bed.say(0, 8, started=7)
    assert bed.last == 7
    bed.say(1, 28, (7, 28), started=7)
    bed.say(0, 28, (7, 21), (21, 28), started=7)
    feed = bed.core.snapshot(0)
    assert feed.last_step == 28
    assert [c["step"] for c in feed.book["commits"]] == [0, 7, 28]  # type: ignore[index,union-attr]


def test_a_rank_that_lost_a_step_on_the_way_is_found_out_by_the_epochs_proof() -> None:
    bed = Bed()
    bed.say(0, TOTAL, (21, TOTAL))
    bed.say(1, TOTAL, (7, TOTAL), started=7, lost=25)
    feed = bed.core.snapshot(0)
    assert feed.mismatch is not None
    assert "never used" in feed.mismatch.message
    assert feed.last_step == 21


def test_a_part_that_is_too_long_to_sum_up_waits_for_the_next_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "MAX_PART", 50)
    bed = Bed()
    bed.say(0, 28, (21, 28))
    bed.say(1, 28, (7, 28), started=7)
    assert bed.last == 21
    bed.say(1, 28, (14, 28), started=7)
    assert bed.last == 28


# ---- what a rank's part is -------------------------------------------------------------------------------------


def reference(lanes: Lanes, world: int, rank: int, start: int, stop: int) -> Ledger:
    """From whole global batches."""
    found = Ledger()
    for total in range(start, stop):
        if lanes.spec.aligned:
            epoch, step = divmod(total, lanes.steps_per_epoch)
            ids, mask = lanes.batch(epoch, step)
            low, high = rank_slice(len(ids), world, rank)
            own = ids[low:high][mask[low:high]]
            found.add(epoch, len(own), sum_ids(own))
        else:
            runs = [(n, r) for n in range(lanes.spec.lanes) for r in lanes.runs(n, 0, total, 1)]
            ids = np.concatenate([lanes.lane_ids(n, r) for n, r in runs])
            epochs = np.concatenate([np.full(r.stop - r.start, r.epoch) for _, r in runs])
            low, high = rank_slice(len(ids), world, rank)
            for epoch in sorted(set(epochs[low:high].tolist())):
                own = ids[low:high][epochs[low:high] == epoch]
                found.add(epoch, len(own), sum_ids(own))
    return found


@given(
    rows=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    size=st.integers(1, 24),
    lanes=st.integers(1, 8),
    world=st.integers(1, 6),
    last=st.sampled_from(["Drop", "Partial", "Pad"]),
    aligned=st.booleans(),
    start=st.integers(0, 30),
    steps=st.integers(0, 40),
    chunk=st.sampled_from([1, 8, 1 << 20]),
)
def test_a_ranks_part_is_what_it_reads_of_the_global_batches(
    rows: list[int], size: int, lanes: int, world: int, last: str, aligned: bool, start: int, steps: int, chunk: int
) -> None:
    boundary = "Aligned" if aligned else "Continuous"
    try:
        spec = StreamSpec(
            seed=3, global_batch_size=size, lanes=min(lanes, size), window=4, last_batch=last, boundary=boundary
        )
        order = Lanes(spec, np.array(rows, dtype=np.int64))
    except StreamError:
        return
    world = min(world, size)
    if order.spec.aligned and not order.steps_per_epoch:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expected, "_CHUNK", chunk)
        for rank in range(world):
            got = expected.part(order, world, rank, start, start + steps)
            assert got == reference(order, world, rank, start, start + steps)
