"""Queues that hold a job back or take its pods, and pods that are evicted: what is asked for, and when nothing is."""

from dataclasses import replace
from typing import Any

import pytest

from lanefeed_operator.api.spec import Job
from lanefeed_operator.reconcile import types as t
from sim.jobs import Shell, kids, make_job, pod, view
from unit.reconcile.test_cluster import EVERYBODY, begun


def queued(job: Job) -> Job:
    """With Kueue's label."""
    labels = {"kueue.x-k8s.io/queue-name": "q"}
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"labels": labels})})


# ---- queues ----------------------------------------------------------------------------------------------------


def test_a_queue_that_holds_the_job_back_and_takes_it_back() -> None:
    shell = begun(make_job(activeDeadlineSeconds=100))
    shell.observe(children={1: kids(pods=(), queued=True)})
    shell.passes()
    assert (shell.status.state, shell.status.reason) == ("Queued", "")
    writes = shell.writes
    shell.now += 1000
    assert shell.passes() == (), "time in a queue is not active time, and nothing is done against the queue"
    assert shell.writes == writes
    shell.observe(children={1: kids()})
    shell.feed(ranks=EVERYBODY, last_step=8, last_generation=1)
    shell.passes()
    assert shell.status.state == "Running"
    # Preempted with no time left: the same plan waits, and goes on when it is admitted again.
    going = tuple(pod(i, leaves_by=shell.now + 2) for i in range(2))
    for pods in (going, ()):
        shell.observe(children={1: kids(pods=pods, queued=True)})
        assert shell.passes() == ()
        assert shell.status.state == "Queued"
    shell.now += 1000
    shell.passes()
    assert not shell.status.terminal
    shell.observe(children={1: kids(pods=tuple(pod(i, uid=f"n{i}") for i in range(2)))})
    shell.passes()
    assert (shell.status.state, shell.status.plan_generation) == ("Running", 1)
    shell.now += 101
    shell.passes()
    assert shell.condition("Failed")[1] == "DeadlineExceeded"


@pytest.mark.parametrize("sizes", [{"replicas": 4, "admitted": 3}, {"replicas": 3}], ids=["parallelism", "both"])
def test_a_queue_that_admits_fewer_pods_is_a_resize(sizes: dict[str, int]) -> None:
    """Kueue changes the Job's parallelism, and its completions too where job-completions-equal-parallelism is set."""
    shell = begun(make_job(replicas=4))
    shell.observe(children={1: kids(pods=(), queued=True, **sizes)})
    shell.passes()
    assert shell.status.stop is None, "not admitted yet"
    shell.observe(children={1: kids(pods=(), **sizes)})
    shell.passes(2)
    assert shell.status.state == "Resizing"
    assert shell.actions[-1] == t.DeleteChildren(1, "Admitted")
    shell.observe(children={})
    shell.passes()
    assert (shell.status.replicas, shell.status.plan.wanted, shell.status.restarts.resizes) == (3, 4, 1)
    shell.observe(children={2: kids(2, 3)}, plans=frozenset({2}))
    shell.feed(ranks={r: view(r) for r in range(3)})
    shell.passes(3)
    assert (shell.status.plan_generation, shell.status.state) == (2, "Running")


def test_an_admitted_size_that_cannot_run_is_said_and_not_fought() -> None:
    elastic = {"minReplicas": 3}
    shell = begun(make_job(replicas=4, elastic=elastic))
    shell.observe(children={1: kids(replicas=4, pods=(pod(0), pod(1)), admitted=2)})
    assert shell.passes(3) == ()
    assert shell.status.stop is None
    assert shell.status.reason == "AdmittedTooFew"
    assert "admitted 2 of 4 pods" in shell.condition("Running")[2]


# ---- evictions -------------------------------------------------------------------------------------------------


def leaving(shell: Shell, *indexes: int, seconds: float = 60.0, **more: Any) -> None:
    """These pods were asked to go."""
    by = shell.now + seconds
    pods = tuple(pod(i, leaves_by=by if i in indexes else None) for i in range(2))
    shell.observe(children={1: kids(pods=pods, **more)})


def test_a_drained_pod_takes_a_checkpoint_along() -> None:
    shell = Shell(make_job()).run()
    leaving(shell, 1)
    assert shell.passes() == ()
    assert shell.status.stop is not None
    assert (shell.status.stop.reason, shell.status.stop.step) == ("Eviction", 16)
    assert (shell.status.state, shell.status.reason) == ("Restarting", "Eviction")
    assert shell.passes() == (t.AskStop(1, 16, "Eviction"),)
    shell.feed(stop_at=16, last_step=16, last_name="c", last_generation=1)
    shell.passes(2)
    assert shell.actions[-1] == t.DeleteChildren(1, "Eviction")
    shell.observe(children={})
    shell.passes()
    assert (shell.status.plan_generation, shell.status.plan.start, shell.status.restarts.resizes) == (2, 16, 0)
    assert (shell.status.restarts.disruptions, shell.status.restarts.last_reason) == (1, "Eviction")


@pytest.mark.parametrize("why", ["no time", "a rank is away", "lost", "no grace", "kueue", "deleting", "ended"])
def test_no_checkpoint_is_asked_for_where_none_can_be_made(why: str) -> None:
    job = make_job(elastic={"stopGraceSeconds": 0}) if why == "no grace" else make_job()
    shell = Shell(queued(job) if why == "kueue" else job).run()
    leaving(shell, 1, seconds=5 if why == "no time" else 60, deleting=why == "deleting")
    if why == "a rank is away":
        shell.feed(ranks={0: view(0), 1: view(1, attached=False)})
    elif why == "ended":
        shell.feed(ranks={0: view(0), 1: view(1, ended=True)})
    elif why == "lost":
        children = shell.seen.children[1]
        gone = tuple(replace(p, lost_since=shell.now) for p in children.pods)
        shell.observe(children={1: replace(children, pods=gone)})
    shell.passes(2)
    assert shell.status.stop is None
    assert shell.status.plan_generation == 1


def test_a_queue_that_takes_all_pods_gets_a_checkpoint_first() -> None:
    shell = Shell(queued(make_job())).run()
    leaving(shell, 0, 1, queued=True)
    assert shell.passes(2) == (t.AskStop(1, 16, "Eviction"),)
    shell.feed(stop_at=16, last_step=16, last_name="c", last_generation=1)
    shell.observe(children={1: kids(pods=(), queued=True)})
    shell.passes(2)
    assert shell.actions[-1] == t.DeleteChildren(1, "Eviction")


@pytest.mark.parametrize("reached", [False, True])
def test_a_pod_that_went_before_the_step_is_not_waited_for(reached: bool) -> None:
    shell = Shell(make_job()).run()
    leaving(shell, 1)
    shell.passes(2)
    shell.observe(children={1: kids(pods=(pod(0), pod(1, uid="new", phase="Pending", started=shell.now + 2)))})
    shell.feed(ranks={0: view(0, 16), 1: view(1, 16 if reached else 12)}, stop_at=16)
    shell.now += 1
    shell.passes()
    assert shell.status.stop is not None
    assert shell.status.stop.outcome == ("" if reached else "TooLate")
