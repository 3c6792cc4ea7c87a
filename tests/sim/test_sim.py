"""Hundreds of seeded runs of a whole job under faults, in virtual time."""

import os

import pytest

from sim.world import Chances, World

SEEDS = int(os.environ.get("LANEFEED_SIM_SEEDS", "240"))
BLOCK = 30
CALM = Chances(0, 0, 0, 0, 0, 0, 0, 0, evict=0)


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_any_faults_give_the_uninterrupted_order_and_a_proof(first: int) -> None:
    for seed in range(first, first + BLOCK):
        try:
            World(seed).run().check_end()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("first", range(0, 60, BLOCK))
def test_ranks_that_restart_alone_behind_the_last_commit_hold_up_no_later_one(first: int) -> None:
    """They come by its step without committing it again: no segment of theirs ends there."""
    for seed in range(first, first + BLOCK):
        try:
            World(seed, Chances(pod=0.02, sidecar=0.03, loss=0.4, late=0.5), careful=True).run().check_end()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("seed", range(20))
def test_a_trainer_that_exits_0_too_early_ends_no_job(seed: int) -> None:
    """Public report: a graceful exit of 0 on eviction ends an Indexed Job early."""
    world = World(seed, Chances(exit_zero=0.02))
    world.collective = False
    world.run().check_end()


@pytest.mark.parametrize("seed", range(20))
def test_a_calm_resize_loses_no_step(seed: int) -> None:
    """Without faults the stop is agreed ahead: the next plan begins at the agreed step."""
    world = World(seed, CALM)
    while world.status.progress.consumed < 3:
        world.tick()
    world.spec["replicas"] = world.spec["replicas"] % 4 + 1
    while world.status.stop is None:
        world.tick()
    step = world.status.stop.step
    while world.status.plan_generation == 1:
        world.tick()
    assert world.status.plan.start == step
    world.run().check_end()
    assert world.status.restarts.resizes == 1
    assert world.status.restarts.failures == 0


@pytest.mark.parametrize("seed", range(20))
def test_a_drained_pod_loses_no_step(seed: int) -> None:
    """Evicted with time enough: a checkpoint at the agreed step comes along, and the next plan begins there."""
    world = World(seed, CALM)
    while world.status.progress.consumed < 3 or world.status.state != "Running":
        world.tick()
    pod = world.rng.choice(world.kids[1].pods)
    pod.leaves_by = world.now + 30
    while world.status.stop is None:
        world.tick()
    assert world.status.stop.reason == "Eviction"
    step = world.status.stop.step
    while world.status.plan_generation == 1:
        world.tick()
    assert world.status.plan.start == step
    assert world.now < pod.leaves_by
    world.run().check_end()
    assert world.status.restarts.failures == 0


@pytest.mark.parametrize("seed", range(20))
def test_a_pod_that_is_killed_soon_is_replaced_in_the_same_plan(seed: int) -> None:
    world = World(seed, CALM)
    while world.status.progress.consumed < 3 or world.status.state != "Running":
        world.tick()
    world.rng.choice(world.kids[1].pods).leaves_by = world.now + 2
    world.run().check_end()
    assert world.status.plan_generation == 1
    assert (world.status.restarts.failures, world.status.restarts.disruptions) == (0, 1)
