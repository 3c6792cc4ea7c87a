"""Where ranks may begin."""

from pathlib import Path

import pytest

from lanefeed_sidecar.errors import PlanMismatch
from lanefeed_sidecar.feed.starts import Starts


def begin(starts: Starts, rank: int, step: int, reached: int | None = None, commits: tuple[int, ...] = ()) -> None:
    starts.check(rank, step, reached=reached, committed=lambda s: s in commits)
    starts.record(rank, step)


def test_ranks_that_begin_apart_are_refused_by_name(tmp_path: Path) -> None:
    starts = Starts(tmp_path, 1)
    begin(starts, 0, 50)
    with pytest.raises(
        PlanMismatch, match="rank 1 begins at step 0 and rank 0 at step 50: all ranks must load the same checkpoint"
    ):
        begin(starts, 1, 0, commits=(0, 50))
    begin(starts, 1, 50)


def test_all_ranks_may_go_back_together(tmp_path: Path) -> None:
    starts = Starts(tmp_path, 1)
    for rank in range(2):
        begin(starts, rank, 0)
    for rank in range(2):
        begin(starts, rank, 40, reached=57)


def test_a_rank_alone_may_go_back_but_not_jump_ahead(tmp_path: Path) -> None:
    starts = Starts(tmp_path, 1)
    for rank in range(2):
        begin(starts, rank, 0)
    begin(starts, 0, 30, reached=31)
    with pytest.raises(PlanMismatch, match="rank 0 begins again at step 60, which it never reached"):
        begin(starts, 0, 60, reached=31)
    begin(starts, 0, 60, reached=31, commits=(60,))


def test_a_refused_rank_meets_the_others_where_they_are_now(tmp_path: Path) -> None:
    # Rank 0 loaded a checkpoint and rank 1 did not; then the user starts both without one.
    starts = Starts(tmp_path, 1)
    begin(starts, 0, 50)
    with pytest.raises(PlanMismatch):
        begin(starts, 1, 0)
    begin(starts, 0, 0, reached=60)
    begin(starts, 1, 0)


def test_the_next_session_knows_who_began(tmp_path: Path) -> None:
    starts = Starts(tmp_path, 1)
    for rank in range(2):
        begin(starts, rank, 0)
    again = Starts(tmp_path, 1)
    # How far it got is not known any more, and a checkpoint need not have been committed.
    begin(again, 1, 37)
    begin(again, 0, 41)
    other_plan = Starts(tmp_path, 2)
    begin(other_plan, 0, 41)
    with pytest.raises(PlanMismatch):
        begin(other_plan, 1, 37)
