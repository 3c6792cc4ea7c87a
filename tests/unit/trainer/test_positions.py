"""Counting of consumed steps, and the proof that follows it: pure, so every rule is tried by itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanefeed._progress import Progress
from lanefeed._proof import FrameSums, Proof, Snapshot
from lanefeed.errors import UsageError
from lanefeed_core.ledger import Entry, Ledger


def give(progress: Progress, count: int) -> None:
    progress.given += count


def test_the_batch_in_hand_counts() -> None:
    progress = Progress("auto", 10)
    give(progress, 1)
    assert progress.consumed == 11
    progress.touched(10)
    assert progress.consumed == 11
    assert not progress.reads_ahead


def test_a_first_look_at_an_older_batch_shows_look_ahead() -> None:
    progress = Progress("auto", 10)
    give(progress, 2)
    progress.touched(10)
    assert progress.reads_ahead
    assert progress.consumed == 11
    give(progress, 1)
    assert progress.consumed == 11
    progress.touched(11)
    assert progress.consumed == 12


def test_look_ahead_is_remembered_in_the_next_life_and_old_batches_change_nothing_there() -> None:
    first = Progress("auto", 0)
    give(first, 2)
    first.touched(0)
    second = first.again(100)
    give(second, 1)
    first.touched(1)
    assert second.consumed == 100
    second.touched(100)
    assert second.consumed == 101


def test_off_counts_what_was_given() -> None:
    progress = Progress("off", 0)
    give(progress, 3)
    progress.touched(0)
    assert progress.consumed == 3


def test_marks_count_from_the_start_and_refuse_to_run_ahead() -> None:
    progress = Progress("manual", 5)
    give(progress, 3)
    assert progress.consumed == 5
    progress.mark()
    progress.mark(1)
    assert progress.consumed == 7
    progress.mark_step(8)
    assert progress.consumed == 8
    with pytest.raises(UsageError, match=r"reaches step 9, and steps 8\.\.8 were handed out"):
        progress.mark()
    with pytest.raises(UsageError, match="reaches step 7"):
        progress.mark_step(7)


def test_a_first_mark_ends_counting_by_itself() -> None:
    progress = Progress("auto", 0)
    give(progress, 4)
    progress.mark(2)
    give(progress, 2)
    progress.touched(5)
    assert progress.consumed == 2


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(UsageError, match="lookahead is 'on': it must be one of auto, off, manual"):
        Progress("on")


def sums(first: int, steps: int, *, epoch: int = 0) -> FrameSums:
    return FrameSums(first, tuple(((epoch, 2, 1000 + first + k),) for k in range(steps)))


def whole(first: int, last: int) -> Entry:
    return Entry(2 * (last - first), sum(1000 + s for s in range(first, last)))


def test_frames_that_were_consumed_are_added_up_many_at_a_time() -> None:
    """None waits for ever, and no sum depends on when they are added up."""
    proof = Proof(0)
    for at in range(0, 600, 3):
        proof.add(sums(at, 3), at)
        assert len(proof._frames) <= 40
    assert proof.snapshot(600, 0).life[0] == whole(0, 600)


def commit(proof: Proof, taken: Snapshot) -> tuple[int, int, Ledger]:
    """Commit a snapshot; (start, stop, ledger) as they are sent."""
    start, segment = proof.segment(taken)
    proof.commit(taken)
    return start, taken.step, segment


def consumed(first: int, last: int, *, spe: int) -> Ledger:
    ledger = Ledger()
    for step in range(first, last):
        ledger.add(step // spe, 2, 1000 + step)
    return ledger


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.integers(1, 6), st.booleans(), st.data())
def test_any_order_of_folds_snapshots_and_commits_adds_up(
    frames: list[int], spe: int, aligned: bool, data: st.DataObject
) -> None:
    """Segments connect and are exact, however many states are taken before one of them is committed, in any order."""
    proof, at = Proof(7), 7
    for steps in frames:
        proof.add(FrameSums(at, tuple((((at + k) // spe, 2, 1000 + at + k),) for k in range(steps))))
        at += steps
    cuts = sorted(data.draw(st.lists(st.integers(7, at), max_size=8)))
    waiting: list[Snapshot] = []
    total, done = Ledger(), 7
    for cut in [*cuts, at]:
        epoch = cut // spe if aligned else 0
        waiting.append(proof.snapshot(cut, epoch))
        assert waiting[-1].life == consumed(7, cut, spe=spe).since(epoch - 1)
        while waiting and data.draw(st.booleans()):
            taken = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            start, stop, segment = commit(proof, taken)
            assert start == done
            assert segment == consumed(start, stop, spe=spe)
            assert all(segment[e].count > 0 for e in segment.epochs)
            total, done = total + segment, max(done, stop)
    last = proof.snapshot(at, at // spe if aligned else 0)
    assert total + commit(proof, last)[2] == consumed(7, at, spe=spe)


def test_a_state_taken_while_an_older_one_is_committed_counts_from_there() -> None:
    proof = Proof(0)
    proof.add(sums(0, 30))
    first, second = proof.snapshot(10, 0), proof.snapshot(20, 0)
    assert commit(proof, first) == (0, 10, Ledger({0: whole(0, 10)}))
    assert commit(proof, second) == (10, 20, Ledger({0: whole(10, 20)}))
    assert commit(proof, proof.snapshot(30, 0)) == (20, 30, Ledger({0: whole(20, 30)}))


def test_an_older_state_changes_nothing_once_a_newer_one_is_committed() -> None:
    proof = Proof(0)
    proof.add(sums(0, 30))
    first, second = proof.snapshot(10, 0), proof.snapshot(20, 0)
    assert commit(proof, second) == (0, 20, Ledger({0: whole(0, 20)}))
    assert commit(proof, first) == (20, 10, Ledger())
    assert proof.committed == 20
    assert commit(proof, proof.snapshot(30, 0)) == (20, 30, Ledger({0: whole(20, 30)}))


def test_epochs_wait_for_their_commit_and_are_forgotten_then() -> None:
    proof = Proof(0)
    for step in range(40):
        proof.add(sums(step, 1, epoch=step // 2))
    old = proof.snapshot(31, 15)
    assert proof.snapshot(40, 20).life.epochs == [19]
    assert commit(proof, old)[2].epochs == list(range(16))
    assert proof._total.epochs == [14, 15, 16, 17, 18, 19]
    assert proof._done.epochs == [14, 15]
    assert commit(proof, proof.snapshot(40, 20)) == (31, 40, consumed(31, 40, spe=2))


def test_rewound_steps_are_counted_once() -> None:
    proof = Proof(0)
    proof.add(sums(0, 4))
    proof.add(sums(4, 4))
    proof.rewind(3)
    proof.add(sums(3, 2))
    proof.add(sums(5, 3))
    assert proof.snapshot(8, 0).life[0].count == 16


def test_a_life_forgets_epochs_that_were_proven() -> None:
    proof = Proof(0)
    for epoch in range(5):
        proof.add(sums(epoch * 2, 2, epoch=epoch))
    assert proof.snapshot(9, 4).life.epochs == [3, 4]
