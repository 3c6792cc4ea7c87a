"""The control plane of the simulation: the production reconcile and coordinator in a shell that can be killed anywhere.

`World` (world.py) adds the pods, the network and the faults. Every decision, write and answer is checked here.
"""

import json
import random
from dataclasses import dataclass, field
from typing import Any

from lanefeed_core.lanes import Lanes
from lanefeed_operator.api.spec import Job
from lanefeed_operator.api.status import Status
from lanefeed_operator.coordinator.core import Coordinator
from lanefeed_operator.coordinator.reports import Reply
from lanefeed_operator.reconcile import reconcile
from lanefeed_operator.reconcile import types as t
from sim.pods import ROWS, Pod, Store

MANIFEST = t.ManifestInfo(digest="d" * 32, rows=int(ROWS.sum()), shards=len(ROWS), row_groups=64, row_bytes=8)


class Crash(Exception):
    """The control plane was killed here."""


@dataclass
class Kids:
    """The child controller's state for one plan generation: durable, like a Job in etcd."""

    generation: int
    replicas: int
    pods: list[Pod] = field(default_factory=list)
    succeeded: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    failures: dict[int, int] = field(default_factory=dict)
    disruptions: int = 0
    again: dict[int, float] = field(default_factory=dict)
    deleting: bool = False


class ControlPlane:
    """What is persisted, and the process that may be gone at any moment (`core`)."""

    rng: random.Random
    chances: Any
    calm: bool
    lanes: Lanes
    store: Store
    spec: dict[str, Any]
    status: Status
    plans: dict[int, tuple[int, int]]
    kids: dict[int, Kids]
    zombies: list[Pod]
    core: Coordinator | None
    trace: list[str]
    now: float
    began: float
    up_at: float
    effects: int
    writes: int

    # ---- the control plane --------------------------------------------------------------------------------------

    def job(self) -> Job:
        return Job.model_validate(
            {"metadata": {"name": "sim", "uid": "u1"}, "spec": self.spec},
        )

    def note(self, what: str) -> None:
        self.trace.append(f"{self.now - self.began:.1f} {what}")

    def effect(self) -> None:
        """A point at which the control plane may be killed."""
        if self.effects == 0:
            self.effects = -1
            raise Crash
        self.effects -= 1

    def control(self) -> None:
        """Passes until nothing is to be done at once; or a crash in between."""
        if self.now < self.up_at:
            return
        if not self.calm and self.rng.random() < self.chances.crash:
            self.effects = self.rng.randint(0, 4)
        try:
            for _ in range(8):
                if self.core is None:
                    # Nothing but what is persisted is left of the former one.
                    self.status = Status.model_validate(json.loads(json.dumps(self.status.to_dict())))
                    if self.status.stream is not None:
                        self.recover()
                if self.one_pass() != 0:
                    break
        except Crash:
            self.core = None
            self.up_at = self.now + self.rng.choice([0, 1, 5])
            self.note("crash")

    def recover(self) -> None:
        assert self.status.stream is not None
        self.core = Coordinator("u1", self.lanes, self.status.stream.total_steps, self.status)
        for kids in self.kids.values():
            for pod in kids.pods:
                if pod.phase == "Running" and not pod.zombie:
                    self.core.expect(kids.generation, pod.index, pod.uid)

    def observed(self) -> t.Observed:
        feed = self.core.snapshot(self.now) if self.core else t.FeedView()
        return t.Observed(
            children={g: self.seen(k) for g, k in self.kids.items()},
            plans=frozenset(self.plans),
            manifest=MANIFEST,
            feed=feed,
        )

    def seen(self, kids: Kids) -> t.Children:
        return t.Children(
            generation=kids.generation,
            replicas=kids.replicas,
            succeeded=frozenset(kids.succeeded),
            failed=frozenset(kids.failed),
            failures=dict(kids.failures),
            disruptions=kids.disruptions,
            pods=tuple(
                t.Pod(
                    p.index,
                    p.uid,
                    p.phase,
                    p.phase == "Running",
                    exit_code=p.exit_code,
                    started=p.started,
                    lost_since=p.lost_since,
                    leaves_by=p.leaves_by,
                )
                for p in kids.pods
            ),
            deleting=kids.deleting,
        )

    def one_pass(self) -> float | None:
        before, observed, job = self.status, self.observed(), self.job()
        decision = reconcile(job, before, observed, self.now)
        self.check_decision(job, before, observed, decision)
        if decision.status is not before:
            self.effect()
            self.check_write(before, decision.status)
            self.status = decision.status
            self.store.committed.add(decision.status.cursor.commit)
            self.writes += 1
            if decision.status.state != before.state:
                self.trace.append(
                    f"{self.now - self.began:.1f} {decision.status.state} g{decision.status.plan_generation}"
                )
        self.effect()
        if self.core is not None:
            self.core.persisted(observed.feed.version)
        for action in decision.actions:
            self.effect()
            self.act(action)
        return decision.wake_after

    def act(self, action: t.Action) -> None:
        if isinstance(action, t.WritePlan):
            self.plans[action.generation] = (action.replicas, action.ranks_per_replica)
            assert self.core is not None
            self.core.new_plan(action.generation, action.replicas, action.ranks_per_replica)
        elif isinstance(action, t.CreateChildren):
            assert action.generation in self.plans, "children without a plan document"
            if action.generation not in self.kids:
                self.kids[action.generation] = Kids(action.generation, action.replicas)
                self.note(f"create g{action.generation} x{action.replicas}")
        elif isinstance(action, t.AskStop):
            assert self.core is not None
            self.core.stop(action.generation, action.step, action.reason)
        elif isinstance(action, t.DeleteChildren):
            self.delete(self.kids[action.generation])
        elif isinstance(action, t.Fence):
            self.fence(action)

    def delete(self, kids: Kids) -> None:
        if not kids.deleting:
            kids.deleting = True
            for pod in kids.pods:
                pod.ends_at = self.now + self.rng.choice([0.0, 0.5, 3.0])

    def fence(self, action: t.Fence) -> None:
        assert self.core is not None
        self.core.fence(action.generation, action.index, action.pod_uid, action.reason)
        kids = self.kids[action.generation]
        for pod in [p for p in kids.pods if p.uid == action.pod_uid]:
            kids.pods.remove(pod)
            kids.disruptions += 1
            kids.again[pod.index] = self.now
            pod.zombie = True
            self.zombies.append(pod)

    # ---- invariants ---------------------------------------------------------------------------------------------

    def check_decision(self, job: Job, before: Status, observed: t.Observed, decision: t.Decision) -> None:
        """Write-ahead, and a pure function."""
        for action in decision.actions:
            generation = getattr(action, "generation", 0)
            if isinstance(action, t.WritePlan | t.CreateChildren):
                assert before.plan.generation == generation, (
                    f"{action} before plan {before.plan.generation} was written"
                )
                assert not any(g != generation for g in observed.children), f"{action} beside {set(observed.children)}"
            if isinstance(action, t.AskStop):
                assert before.stop is not None
                assert before.stop.step == action.step
        if self.rng.random() < 0.1:
            again = reconcile(job, before, observed, self.now)
            assert again.status == decision.status
            assert again.actions == decision.actions
            if decision.status is before:
                later = reconcile(job, before, observed, self.now + 0.001)
                assert later.status is before, "an idle pass writes"

    def check_write(self, before: Status, after: Status) -> None:
        assert after.plan.generation >= before.plan.generation
        assert not before.terminal or after.terminal
        old, new = before.restarts, after.restarts
        for name in ("failures", "disruptions", "resizes", "suspends", "interrupted", "lost"):
            assert getattr(new, name) >= getattr(old, name), f"{name} went back"
        assert not any(c.type == "Failed" and c.status == "True" for c in after.conditions), after.conditions
        if after.cursor.commit and after.cursor.commit != before.cursor.commit:
            assert self.store.whole(after.cursor.commit), f"commit {after.cursor.commit} is not whole"

    def check_world(self) -> None:
        living = {k.generation for k in self.kids.values() if any(p.phase == "Running" for p in k.pods)}
        assert len(living) <= 1, f"plans {living} live at once"

    def check_answer(self, answer: Reply) -> None:
        """What sidecars are told to be committed must survive a crash of the control plane right now."""
        if answer.last_commit is not None:
            kept = {c["step"] for c in self.status.book["commits"]}
            assert answer.last_commit.step in kept, f"{answer.last_commit} was acknowledged and is not persisted"
