"""Seeded runs of the production operator in a simulated cluster under every fault that we know of."""

import logging
import os
from collections import Counter
from collections.abc import Iterator

import pytest

from sim.cluster.world import CALM, Chances, World

#: `.ci/run` asks for 2,000.
SEEDS = int(os.environ.get("LANEFEED_SIM_SEEDS", "60"))
BLOCK = 20


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What operators log about API servers that are away is not of interest here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def run(seed: int) -> World:
    """One whole run, with the seed in the complaint."""
    world = World(seed)
    try:
        world.run().check_end()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}\n{world.describe()}") from error
    finally:
        world.close()
    return world


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_any_faults_give_the_uninterrupted_order_and_a_proof(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, min(first + BLOCK, SEEDS)):
        seen += run(seed).seen
    # A simulation in which nothing happens proves nothing.
    for what in ("kill", "freeze", "cut", "node", "pod", "fenced", "Conflict", "api after", "delete jobs"):
        assert seen[what] or SEEDS < BLOCK, f"not one {what} in {BLOCK} seeds: {seen}"


def test_same_seed_same_trace() -> None:
    first, second = run(7), run(7)
    assert first.trace == second.trace
    assert first.status == second.status


@pytest.mark.parametrize("seed", range(3))
def test_a_calm_job_takes_one_plan_and_few_writes(seed: int) -> None:
    """With no faults: one plan generation (another where the queue admits fewer pods), no restart, few writes."""
    world = World(seed, CALM, replicas=2)
    world.run().check_end()
    world.close()
    plans = 2 if world.status.plan.reason == "Admitted" else 1
    assert world.status.plan.generation == plans
    assert (world.status.restarts.failures, world.status.restarts.disruptions) == (0, 0)
    assert world.seen["create jobs"] == 1 + plans
    assert world.seen["replace_status shardedtrainingjobs"] <= 14 + 4 * plans
    assert not world.seen["Conflict"]


@pytest.mark.parametrize("seed", range(4))
def test_a_failed_job_goes_on_from_its_last_commit(seed: int) -> None:
    """A program that fails once too often; its author mends it and changes spec.restartToken: exact to the end."""
    world = World(seed, CALM, replicas=2, maxRestarts=0)
    world.checks.may_fail.add(world.uid)
    while world.status.cursor.total_step < 7:
        world.tick()
    proc = next(p for p in world.nodes.procs if p.training)
    world.nodes.kill(proc, 1, "Error")
    while not world.status.terminal:
        world.tick()
    assert world.status.reason == "TooManyRestarts"
    step, plan = world.status.cursor.total_step, world.status.plan.generation
    for _ in range(60):
        world.tick()
    assert world.status.terminal
    world.edit(restartToken="mended")
    while world.status.terminal:
        world.tick()
    world.run().check_end()
    world.close()
    assert world.status.state == "Complete"
    assert world.status.plan.generation > plan
    assert world.status.restarts.failures == 1
    assert step >= 7


@pytest.mark.parametrize("seed", range(12))
def test_a_job_whose_pods_die_too_often_says_why_it_failed(seed: int) -> None:
    """It ends, and what it has committed is the beginning of the order."""
    world = World(seed, Chances(pod=0.05, calm_after=120.0), may_fail=True, maxRestarts=1)
    world.run().check_end()
    world.close()
    assert world.status.state in ("Failed", "Complete")
    if world.status.state == "Failed":
        found = world.status.condition("Failed")
        assert found is not None
        assert "maxRestarts" in found.message
