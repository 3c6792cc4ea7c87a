"""Counting of consumed steps, and the proof that follows it: pure, so every rule is tried by itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanefeed._progress import Progress
from lanefeed._proof import FrameSums, Proof
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


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_any_order_of_folds_and_commits_adds_up(frames: list[int], data: st.DataObject) -> None:
    proof, at = Proof(7), 7
    for steps in frames:
        proof.add(sums(at, steps))
        at += steps
    cuts = sorted(data.draw(st.lists(st.integers(7, at), max_size=5)))
    total, start = Ledger(), 7
    for cut in cuts:
        taken = proof.snapshot(cut, 0)
        if data.draw(st.booleans()):
            # Trained on before the commit came: the segment is the state's, not the moment's.
            proof.snapshot(data.draw(st.integers(cut, at)), 0)
        assert (taken.start, taken.step) == (start, cut)
        assert taken.life[0] == whole(7, cut)
        proof.commit(taken)
        total, start = total + taken.segment, cut
        if proof._folded > cut:
            break
    last = proof.snapshot(at, 0)
    assert (total + last.segment)[0] == whole(7, at)


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
