"""The spec may change while ranks leave: which size comes next, and that a job neither hangs nor runs at another."""

from typing import Any

import pytest

from lanefeed_operator.reconcile import types as t
from sim.jobs import Shell, kids, make_job, pod, view

ELASTIC = {"shrinkAfterSeconds": 60, "stopGraceSeconds": 20}
EVEN = {"globalBatchSize": 48, "uneven": "Forbid"}


def spec(replicas: int, elastic: dict[str, int] | None = None, **more: Any) -> dict[str, Any]:
    return {"replicas": replicas, "elastic": ELASTIC | (elastic or {}), **more}


def leaving(before: dict[str, Any], *, reason: str = "Shrink") -> Shell:
    """One pod of the job too many has no place: its ranks were asked to leave, for a plan with one pod less."""
    shell = Shell(make_job(**before)).run()
    size = shell.job.spec.replicas
    shell.feed(ranks={r: view(r) for r in range(size - 1)})
    if reason == "Shrink":
        pods = (*(pod(i) for i in range(size - 1)), pod(size - 1, "Pending"))
        shell.observe(children={1: kids(replicas=size, pods=pods, unplaced_since=shell.now)})
        shell.passes()
        shell.now += 61
    else:
        pods = tuple(pod(i) for i in range(size - 1))
        shell.observe(children={1: kids(replicas=size, pods=pods, admitted=size - 1)})
    shell.passes()
    assert shell.status.stop is not None
    assert (shell.status.stop.reason, shell.status.stop.replicas, shell.status.stop.done) == (reason, size - 1, False)
    return shell


def next_plan(shell: Shell, after: dict[str, Any]) -> Shell:
    """The spec is changed inside the grace time, which then runs out; the next plan generation is written and runs."""
    shell.job = make_job(**after)
    shell.passes(2)
    shell.now += 21
    shell.passes(2)
    shell.observe(children={})
    shell.passes(2)
    assert shell.status.stop is None, "the stop hangs"
    plan = shell.status.plan
    assert plan.generation == 2
    world = plan.replicas * plan.ranks_per_replica
    shell.observe(children={2: kids(2, plan.replicas)}, plans=frozenset({2}))
    shell.feed(ranks={r: view(r) for r in range(world)}, stop_at=None)
    shell.passes(3)
    return shell


def stands(shell: Shell, replicas: int) -> None:
    """It runs with as many pods, and nothing is wrong with its spec."""
    shell.passes(3)
    assert (shell.status.plan_generation, shell.status.replicas, shell.status.state) == (2, replicas, "Running")
    assert shell.condition("SpecValid")[:2] == ("True", "Valid")
    assert f"with {replicas} pods" in shell.condition("Stopping")[2]


@pytest.mark.parametrize("reason", ["Shrink", "Admitted"])
def test_the_size_of_the_stop_is_the_next_one_where_the_spec_stayed(reason: str) -> None:
    shell = next_plan(leaving(spec(4), reason=reason), spec(4))
    stands(shell, 3)
    assert shell.status.plan.wanted == 4


@pytest.mark.parametrize("reason", ["Shrink", "Admitted"])
@pytest.mark.parametrize("elastic", [{}, {"maxReplicas": 2}], ids=["scaled", "and limited"])
def test_a_size_that_is_set_during_the_stop_is_the_next_one(reason: str, elastic: dict[str, int]) -> None:
    stands(next_plan(leaving(spec(4), reason=reason), spec(2, elastic)), 2)


def test_ranks_that_are_set_during_the_stop_are_the_next_ones() -> None:
    """2 pods x 16 ranks do not divide 48."""
    shell = leaving(spec(3, batching=EVEN))
    shell = next_plan(shell, spec(1, batching=EVEN, ranksPerReplica=16))
    stands(shell, 1)
    assert shell.status.plan.ranks_per_replica == 16


def test_ranks_alone_that_are_set_during_the_stop_take_the_specs_size() -> None:
    shell = next_plan(leaving(spec(3, batching=EVEN)), spec(3, batching=EVEN, ranksPerReplica=2))
    stands(shell, 3)


def test_limits_that_rule_the_size_of_the_stop_out_give_the_specs_size() -> None:
    stands(next_plan(leaving(spec(4)), spec(4, {"minReplicas": 4})), 4)


def test_a_size_that_cannot_run_is_refused_and_the_job_goes_on_with_that_of_the_stop() -> None:
    shell = next_plan(leaving(spec(4)), spec(9))
    for _ in range(3):
        assert (shell.status.plan_generation, shell.status.replicas, shell.status.state) == (2, 3, "Running")
        assert shell.condition("SpecValid")[:2] == ("False", "SizeRefused")
        assert "the job goes on with 3 pods" in shell.condition("SpecValid")[2]
        shell.passes()
    shell.job = make_job(**spec(9, batching={"globalBatchSize": 16, "uneven": "Allow"}))
    shell.passes()
    assert shell.status.stop is not None
    assert shell.status.stop.reason == "Resize", "once it can run it is a resize like any"


def test_where_neither_size_can_run_it_is_the_specs_that_is_refused() -> None:
    shell = leaving(spec(4))
    shell.job = make_job(**spec(9, {"minReplicas": 9}))
    shell.now += 21
    shell.passes(2)
    shell.observe(children={})
    shell.passes(2)
    assert shell.status.plan_generation == 1
    assert shell.condition("SpecValid")[:2] == ("False", "SizeRefused")
    shell.job = make_job(**spec(2))
    shell.passes(2)
    assert (shell.status.plan_generation, shell.status.replicas) == (2, 2)
    assert shell.actions[-1] == t.WritePlan(2, 2, 1, 0)


@pytest.mark.parametrize("why", ["Restart", "Suspend"])
def test_a_refused_size_ends_no_job_that_stops_for_another_reason(why: str) -> None:
    """It said "the job goes on with 4 pods", and does."""
    shell = Shell(make_job(**spec(4))).run()
    other = {"restartToken": "again"} if why == "Restart" else {"suspend": True}
    shell.job = make_job(**spec(9), **other)
    shell.passes(2)
    assert shell.status.stop is not None
    shell.now += 21
    shell.passes(2)
    shell.observe(children={})
    shell.passes(2)
    shell.job = make_job(**spec(9), restartToken=shell.job.spec.restart_token)
    shell.passes(2)
    assert (shell.status.plan_generation, shell.status.replicas) == (2, 4)
    assert "the job goes on with 4 pods" in shell.condition("SpecValid")[2]
    shell.job = make_job(**spec(3), restartToken=shell.job.spec.restart_token)
    shell.passes(2)
    assert (shell.status.plan_generation, shell.status.replicas) == (3, 3), "nothing of it was made yet"


def test_a_refused_size_is_no_first_one() -> None:
    shell = Shell(make_job(**spec(9)))
    shell.passes(3)
    assert shell.status.plan_generation == 0
    assert shell.condition("SpecValid")[:2] == ("False", "SizeRefused")
