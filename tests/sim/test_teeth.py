"""The simulation can fail: each planted fault is caught by it within a few seeds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lanefeed_core import expected
from lanefeed_core.book import Book, JobCommit
from lanefeed_core.ledger import Ledger
from lanefeed_operator.coordinator.admission import Admission
from lanefeed_operator.coordinator.safe import Safe
from lanefeed_operator.reconcile import completion, engine, running, stop
from lanefeed_operator.reconcile.types import CreateChildren
from sim.world import Chances, World

SEEDS = 60


def caught(run: Callable[[int], Any], seeds: int = SEEDS) -> str:
    """The first complaint over the seeds; fails if there is none."""
    for seed in range(seeds):
        try:
            run(seed)
        except (AssertionError, KeyError) as error:
            return repr(error)
    raise pytest.fail.Exception("the planted fault was not caught")


def whole(seed: int) -> None:
    World(seed).run().check_end()


def test_the_simulation_is_clean_where_nothing_is_planted() -> None:
    with pytest.raises(pytest.fail.Exception, match="not caught"):
        caught(whole, 5)


def test_same_seed_same_run() -> None:
    first, second = World(3).run(), World(3).run()
    assert first.trace == second.trace
    assert first.status == second.status


def test_commits_of_an_old_plan_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zombies of a replaced plan are believed."""
    real = Admission.refusal

    def lenient(self: Admission, r: Any) -> tuple[str, bool]:
        if r.plan_generation < self.generation:
            r = replace(r, plan_generation=self.generation)
            place = self.places.get(r.pod_index)
            r = replace(r, pod_uid=place.uid, session=place.session) if place else r
        return real(self, r)

    def ranks(self: Admission, r: Any) -> bool:
        return True

    monkeypatch.setattr(Admission, "refusal", lenient)
    monkeypatch.setattr(Admission, "is_new", ranks)
    caught(whole)


def test_a_ledger_part_that_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Book._chain

    def skips(self: Book, rank: int, start: int, until: int) -> Ledger | None:
        part = real(self, rank, start, until)
        return Ledger() if part is not None and rank == 0 and start > 0 else part

    monkeypatch.setattr(Book, "_chain", skips)
    assert "samples were never used" in caught(whole)


def test_a_trainer_that_does_not_count_a_step() -> None:
    assert "never used" in caught(lambda seed: World(seed, ledger_fault=True).run().check_end())


def test_a_stop_that_is_one_step_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that have passed the step leave apart, so there is no common checkpoint: work is lost at each resize."""

    def calm(seed: int) -> None:
        world = World(seed, Chances(0, 0, 0, 0, 0, 0, 0, 0))
        while world.status.progress.consumed < 3:
            world.tick()
        world.spec["replicas"] = world.spec["replicas"] % 4 + 1
        while world.status.stop is None:
            world.tick()
        step = world.status.stop.step
        while world.status.plan_generation == 1:
            world.tick()
        assert world.status.plan.start >= step

    for seed in range(3):
        calm(seed)
    monkeypatch.setattr(stop, "stop_step", lambda consumed, rate: consumed - 1)
    caught(calm)


def test_children_before_their_plan_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write-ahead broken: the action comes with the status that names it."""
    real = running.new_plan

    def eager(p: Any, reason: str) -> bool:
        over = real(p, reason)
        p.act(CreateChildren(p.generation, p.status.plan.replicas))
        return over

    monkeypatch.setattr(running, "new_plan", eager)
    assert "was written" in caught(whole)


def test_a_commit_is_acknowledged_before_it_is_persisted(monkeypatch: pytest.MonkeyPatch) -> None:

    def early(self: Safe, version: int, commit: JobCommit, event: int) -> None:
        self.commit, self.event = commit, event

    monkeypatch.setattr(Safe, "changed", early)
    assert "not persisted" in caught(whole)


def test_a_start_from_a_commit_that_one_rank_has_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's commit is declared by all ranks but the last."""
    real = Book._chain

    def hasty(self: Book, rank: int, start: int, until: int) -> Ledger | None:
        part = real(self, rank, start, until)
        return Ledger() if part is None and self.world > 1 and rank == self.world - 1 else part

    monkeypatch.setattr(Book, "_chain", hasty)
    caught(whole)


def test_complete_is_believed_early(monkeypatch: pytest.MonkeyPatch) -> None:

    def early(seed: int) -> None:
        world = World(seed, Chances(exit_zero=0.02))
        world.collective = False
        world.run().check_end()

    for seed in range(3):
        early(seed)
    monkeypatch.setattr(completion, "_believed", lambda p, children: True)
    caught(early)


def test_two_plans_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next plan does not wait until the old one's pods are gone."""

    def hasty(p: Any) -> bool:
        if p.status.stop is not None and p.before.stop is not None and p.children is not None:
            p.set_plan(closed=True)
            p.status = p.status.model_copy(update={"stop": None})
        return False

    policies = [hasty if policy is stop.closing else policy for policy in engine.POLICIES]
    monkeypatch.setattr(engine, "POLICIES", tuple(policy for policy in policies if policy is not running.strays))
    caught(whole)


def test_late_reports_of_a_former_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """No session and sequence check: an old report of a rank is taken for a new life."""

    def watched(seed: int) -> None:
        world = World(seed, Chances(sidecar=0.05, late=0.6, crash=0.0, pod=0.0, node=0.0))
        world.collective = False
        seen: dict[tuple[str, int], int] = {}
        while not world.status.terminal and world.now - world.began < 300:
            world.tick()
            for rank, view in (world.core.snapshot(world.now).ranks if world.core else {}).items():
                key = (view.pod_uid, rank)
                assert view.consumed >= seen.get(key, 0), f"rank {rank} went back without a new life"
                seen[key] = view.consumed

    for seed in range(3):
        watched(seed)
    monkeypatch.setattr(Admission, "is_new", lambda self, r: True)
    caught(watched)


def test_a_rank_behind_the_last_commit_is_cut_off_at_a_wrong_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it did again is taken for one step less: the job would count a step of it twice."""
    real = expected.part
    monkeypatch.setattr(
        expected, "part", lambda lanes, world, rank, start, end: real(lanes, world, rank, start, end - 1)
    )

    def behind(seed: int) -> None:
        World(seed, Chances(pod=0.02, sidecar=0.03, loss=0.4, late=0.5), careful=True).run().check_end()

    assert "used more than once" in caught(behind)
