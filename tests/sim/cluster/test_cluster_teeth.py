"""The simulation of the cluster can fail: each planted fault is found by it within a few hundred seeds."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lanefeed_operator.api.status import Status
from lanefeed_operator.kube import observe
from lanefeed_operator.kube.api import JOBS, STJS, Conflict
from lanefeed_operator.reconcile import facts
from lanefeed_operator.runtime import manifests, owned
from lanefeed_operator.runtime.actions import Actions
from lanefeed_operator.runtime.controller import Controller
from sim.cluster.world import Chances, World

SEEDS = 300


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def caught(chances: Chances | None = None, seeds: int = SEEDS, **spec: Any) -> str:
    """The first complaint over the seeds; fails if there is none."""
    for seed in range(seeds):
        world = World(seed, chances, **spec)
        try:
            world.run().check_end()
        except (AssertionError, KeyError) as error:
            return str(error)
        finally:
            world.close()
    raise pytest.fail.Exception("the planted fault was not caught")


def complains(text: str, *, of: tuple[str, ...]) -> None:
    """The complaint is about the fault, not about something else that it led to."""
    assert any(part in text for part in of), text.splitlines()[0]


Persist = Callable[[Controller, Any, Status], Any]


def test_a_plan_is_written_after_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """The status that names a new plan is only remembered; the API server hears of it a pass later."""
    real: Persist = Controller._persist

    def lazy(self: Controller, p: Any, status: Status) -> Any:
        if status.plan.generation > p.status.plan.generation:
            self._view.put(STJS, {**p.raw, "status": status.to_dict()})
            p.member.confirmed = p.raw["metadata"]["resourceVersion"]
            return True
        return real(self, p, status)

    monkeypatch.setattr(Controller, "_persist", lazy)
    complains(caught(), of=("was made before plan generation",))


def test_children_are_adopted_by_name_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is made anew takes over what a former one of its name has left."""
    for place in (owned, manifests):
        monkeypatch.setattr(place, "is_ours", lambda obj, uid: True)
    monkeypatch.setattr(observe.World, "ours", lambda self, job: job.job == self.name)
    monkeypatch.setattr(
        observe.World,
        "__post_init__",
        lambda self: [self._by_owner.setdefault(pod.owner_uid, []).append(pod) for pod in self.pods] and None,
    )
    caught(Chances(recreate=0.03))


def test_the_fence_comes_after_the_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pod is given up, and its reports count on."""
    monkeypatch.setattr("lanefeed_operator.coordinator.core.Coordinator.fence", lambda *_: None)
    complains(caught(Chances(node=0.03)), of=("its index was freed",))


def test_a_conflict_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """409 on the status is taken for success."""
    real = Controller._write

    def deaf(self: Controller, *given: Any) -> Any:
        raw = next(x for x in given if isinstance(x, dict))
        try:
            return real(self, *given)
        except Conflict:
            return raw

    monkeypatch.setattr(Controller, "_write", deaf)
    store_write = Controller._persist

    def persist(self: Controller, p: Any, status: Status) -> Any:
        store_write(self, p, status)
        return True

    monkeypatch.setattr(Controller, "_persist", persist)
    complains(
        caught(Chances(zombie=0.05, change=0.05)), of=("was made", "is not persisted", "are persisted", "differs")
    )


def test_commits_are_acknowledged_before_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Persist = Controller._persist

    def early(self: Controller, p: Any, status: Status) -> Any:
        if p.member.coordinator is not None:
            p.member.coordinator.persisted(p.member.coordinator.snapshot(p.now).version)
        return real(self, p, status)

    monkeypatch.setattr(Controller, "_persist", early)
    complains(caught(), of=("was acknowledged",))


def test_a_resize_does_not_wait_for_the_old_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Job goes at once, and nobody looks for pods that it has left."""
    real = Actions._delete
    monkeypatch.setattr(
        Actions, "_delete", lambda self, scene, kind, what, how: real(self, scene, kind, what, "Background")
    )
    monkeypatch.setattr(observe.World, "orphans", lambda self: [])
    complains(caught(), of=("live at once",))


def test_a_child_that_a_queue_holds_back_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Controller.run_pass

    def pushy(self: Controller, key: Any) -> Any:
        for job in self._view.jobs_of(key):
            if job.suspended:
                self._api.patch(JOBS, job.namespace, job.name, {"spec": {"suspend": False}})
        return real(self, key)

    monkeypatch.setattr(Controller, "run_pass", pushy)
    complains(caught(), of=("not ours to write",))


def test_a_status_is_written_in_which_nothing_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Persist = Controller._persist

    def restless(self: Controller, p: Any, status: Status) -> Any:
        return real(self, p, status.model_copy() if status is p.status else status)

    def write(self: Controller, *given: Any) -> Any:
        raw = next(x for x in given if isinstance(x, dict))
        status = next(x for x in given if isinstance(x, Status))
        written = self._api.replace_status(STJS, raw["metadata"]["namespace"], {**raw, "status": status.to_dict()})
        self._view.put(STJS, written)
        raw["metadata"] = written["metadata"]
        return written

    monkeypatch.setattr(Controller, "_persist", restless)
    monkeypatch.setattr(Controller, "_write", write)
    complains(caught(seeds=5), of=("nothing had changed",))


def test_an_old_copy_is_acted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The status is written over whatever is there by now: by a zombie, and by a leader whose watch is late."""
    real = Controller._write

    def rude(self: Controller, *given: Any) -> Any:
        raw = next(x for x in given if isinstance(x, dict))
        live = self._api.get(STJS, raw["metadata"]["namespace"], raw["metadata"]["name"])
        raw["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"]
        return real(self, *given)

    monkeypatch.setattr(Controller, "_write", rude)
    # A zombie that is a little behind writes what the leader wrote already.
    signs = ("went back", "are persisted", "cursor went", "was made", "nothing had changed")
    complains(caught(Chances(zombie=0.05, change=0.05)), of=signs)


def test_failures_are_counted_again_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was counted is not remembered with the plan."""

    def forgetful(p: Any) -> None:
        children = p.children
        if children is None:
            return
        total = sum(children.failures.values())
        if total > p.status.plan.failed or (total and p.status.plan.failed == 0):
            p.count("PodFailed", failures=total)
            p.set_plan(failed=total)

    monkeypatch.setattr(facts, "_counters", forgetful)
    complains(caught(Chances(pod=0.03)), of=("failures are counted of",))


def test_the_simulation_is_clean_where_nothing_is_planted() -> None:
    """With the very chances that the faults above are found with."""
    for chances in (Chances(recreate=0.03, lag=0.9), Chances(zombie=0.05, change=0.05), Chances(node=0.03, pod=0.03)):
        with pytest.raises(pytest.fail.Exception, match="not caught"):
            caught(chances, 6)
