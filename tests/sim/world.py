"""A whole job in virtual time: the production reconcile and coordinator, simulated pods, and faults by a seed.

Same seed, same run. Faults: pods that die, sidecars that restart, nodes that vanish with their processes running on,
reports and answers lost, repeated, late and out of order, a control plane that crashes between any two effects and goes
on from what it had persisted, resizes, suspends and restarts at any moment. Invariants are checked at every step.
"""

import json
import random
from dataclasses import dataclass, field
from typing import Any

from lanefeed_operator.api.spec import Job
from lanefeed_operator.api.status import Status
from lanefeed_operator.coordinator.core import Coordinator
from lanefeed_operator.coordinator.reports import Committed, PodReport, Reply
from lanefeed_operator.reconcile import reconcile
from lanefeed_operator.reconcile import types as t
from lanefeed_operator.reconcile.failures import Verdict, verdict
from sim.pods import EPOCHS, ROWS, SIZE, Pod, Rank, Sidecar, Store, lanes_of

TICK = 0.5
MANIFEST = t.ManifestInfo(digest="d" * 32, rows=int(ROWS.sum()), shards=len(ROWS), row_groups=64, row_bytes=8)


class Crash(Exception):
    """The control plane was killed here."""


@dataclass
class Chances:
    """Probabilities a tick (faults end at `calm_after` seconds)."""

    pod: float = 0.01
    sidecar: float = 0.02
    node: float = 0.003
    crash: float = 0.03
    loss: float = 0.15
    twice: float = 0.1
    late: float = 0.3
    change: float = 0.015
    exit_zero: float = 0.0
    calm_after: float = 90.0


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


class World:
    """One run."""

    def __init__(self, seed: int, chances: Chances | None = None, *, ledger_fault: bool = False) -> None:
        self.rng = random.Random(seed)
        self.chances = chances or Chances()
        self.ledger_fault = ledger_fault
        self.last_batch = self.rng.choice(["Drop", "Partial", "Pad"])
        self.collective = self.rng.random() < 0.5
        self.prune = self.rng.random() < 0.7
        self.ranks_per_pod = self.rng.choice([1, 1, 2])
        self.now = 1_000_000.0
        self.began = self.now
        self.spec: dict[str, Any] = {
            "replicas": self.rng.randint(1, 4),
            "ranksPerReplica": self.ranks_per_pod,
            "maxRestarts": 1000,
            "elastic": {"stopGraceSeconds": 15, "nodeLostSeconds": 5},
            "data": {"uri": "x"},
            "batching": {"globalBatchSize": SIZE, "uneven": "Allow", "lanes": 6, "lastBatch": self.last_batch},
            "shuffle": {"seed": 9, "window": 8},
            "epochs": EPOCHS,
            "template": {"spec": {"containers": [{"name": "trainer", "command": ["x"]}]}},
        }
        self.lanes = lanes_of(self.last_batch)
        self.store = Store()
        self.status = Status()
        self.writes = 0
        self.plans: dict[int, tuple[int, int]] = {}
        self.kids: dict[int, Kids] = {}
        self.zombies: list[Pod] = []
        self.core: Coordinator | None = None
        self.up_at = 0.0
        self.effects = -1
        self.number = 0
        self.mail: list[tuple[float, int, Any]] = []
        self.round: tuple[str, ...] | None = None
        self.told = 0
        self.trace: list[str] = []

    # ---- the control plane --------------------------------------------------------------------------------------

    def job(self) -> Job:
        return Job.model_validate(
            {"metadata": {"name": "sim", "uid": "u1"}, "spec": self.spec},
        )

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
            self.trace.append(f"{self.now - self.began:.1f} crash")

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
                t.Pod(p.index, p.uid, p.phase, p.phase == "Running", exit_code=p.exit_code, lost_since=p.lost_since)
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
                self.trace.append(f"{self.now - self.began:.1f} create g{action.generation} x{action.replicas}")
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

    # ---- pods and the network -----------------------------------------------------------------------------------

    @property
    def calm(self) -> bool:
        return self.now - self.began > self.chances.calm_after

    def children(self) -> None:
        """The child controller: makes, replaces and deletes pods."""
        for kids in list(self.kids.values()):
            for pod in list(kids.pods):
                self.pod_ends(kids, pod)
            if kids.deleting:
                if not kids.pods:
                    del self.kids[kids.generation]
                continue
            have = {p.index for p in kids.pods if p.phase == "Running"} | kids.succeeded | kids.failed
            for index in range(kids.replicas):
                if index not in have and self.now >= kids.again.get(index, 0):
                    self.make(kids, index)

    def pod_ends(self, kids: Kids, pod: Pod) -> None:
        pod.settle()
        if pod.ends_at is not None and self.now >= pod.ends_at and pod.phase == "Running":
            pod.phase, pod.disrupted = "Failed", True
        if pod.phase == "Running":
            return
        if kids.deleting:
            kids.pods.remove(pod)
            return
        if pod.index in kids.succeeded or pod.index in kids.failed:
            return
        if pod.phase == "Succeeded":
            kids.succeeded.add(pod.index)
            return
        kids.pods.remove(pod)
        stopping = self.status.stop is not None
        count = kids.failures.get(pod.index, 0)
        code = pod.exit_code if pod.exit_code is not None else -9
        what = verdict(code, count, 1000, disrupted=pod.disrupted, stopping=stopping)
        kids.failures[pod.index] = count + what.counts
        kids.disruptions += not what.counts
        kids.again[pod.index] = self.now + min(what.delay, 2.0) if what.verdict is Verdict.REPLACE else float("inf")

    def make(self, kids: Kids, index: int) -> None:
        self.number += 1
        _, per_pod = self.plans[kids.generation]
        uid = f"pod-{self.number}"
        world = kids.replicas * per_pod
        ranks = [Rank(r) for r in range(index * per_pod, (index + 1) * per_pod)]
        pod = Pod(
            "u1", index, uid, kids.generation, world, ranks, Sidecar(f"{uid}/0"), self.last_batch, self.store, self.rng
        )
        pod.prune, pod.ledger_fault = self.prune, self.ledger_fault
        cursor = self.status.cursor
        if cursor.total_step:
            pod.sidecar.last_commit = Committed(cursor.total_step, cursor.commit, cursor.plan_generation)
        pod.started = self.now
        kids.pods.append(pod)
        if self.core is not None:
            self.core.expect(kids.generation, index, uid)

    def faults(self) -> None:
        for kids in self.kids.values():
            for pod in kids.pods:
                if pod.phase != "Running" or self.calm:
                    continue
                if self.rng.random() < self.chances.pod:
                    pod.phase, pod.exit_code = "Failed", -9
                elif self.rng.random() < self.chances.exit_zero:
                    pod.phase, pod.exit_code = "Succeeded", 0
                elif self.rng.random() < self.chances.sidecar:
                    pod.restart_sidecar()
                elif self.rng.random() < self.chances.node and pod.lost_since is None:
                    pod.lost_since = self.now
        if self.rng.random() < self.chances.change and not self.calm:
            self.change()
        if self.calm:
            self.spec["suspend"] = False
            self.zombies = [z for z in self.zombies if self.rng.random() > 0.05]

    def change(self) -> None:
        what = self.rng.choice(["scale", "scale", "scale", "suspend", "token"])
        if what == "scale":
            self.spec["replicas"] = self.rng.randint(1, 5)
        elif what == "suspend":
            self.spec["suspend"] = not self.spec.get("suspend", False)
        else:
            self.spec["restartToken"] = str(self.now)
        self.trace.append(f"{self.now - self.began:.1f} {what} {self.spec['replicas']}")

    def train(self) -> None:
        pods = [p for k in self.kids.values() for p in k.pods if p.phase == "Running"]
        lost = [p for p in pods if p.lost_since is not None]
        alone = self.zombies if self.collective else [*pods, *self.zombies]
        for pod in alone:
            for rank in pod.ranks:
                if rank.alive and not rank.attached and not self.collective:
                    pod.attach(rank, pod.sidecar.last_commit)
                for _ in range(self.rng.randint(0, 2)):
                    if rank.alive and rank.attached:
                        pod.advance(rank)
        if self.collective:
            self.train_together(pods, lost)
        for pod in self.zombies:
            pod.settle()

    def train_together(self, pods: list[Pod], lost: list[Pod]) -> None:
        """All ranks in lockstep; when one is gone all begin again once it is back, from rank 0's choice."""
        ranks = [(p, r) for p in sorted(pods, key=lambda p: p.index) for r in p.ranks]
        whole = bool(pods) and len(ranks) == pods[0].world and all(r.alive for _, r in ranks)
        members = tuple(p.uid for p in pods)
        if not whole or members != self.round:
            for _, rank in ranks:
                rank.attached = False
            self.round = None
        if not whole or lost:
            return
        if self.round is None:
            choice = ranks[0][0].sidecar.last_commit
            for pod, rank in ranks:
                pod.attach(rank, choice)
            self.round = members
            return
        for _ in range(self.rng.randint(0, 2)):
            if all(r.alive for _, r in ranks):
                for pod, rank in ranks:
                    pod.advance(rank)

    def post(self) -> None:
        """Reports go out; what is due comes in."""
        for pod in [p for k in self.kids.values() for p in k.pods] + self.zombies:
            recent = pod.phase == "Running" or pod.zombie or self.rng.random() < 0.7
            if recent and not pod.sidecar.fenced:
                self.send(pod, pod.report(), None)
        due = sorted((m for m in self.mail if m[0] <= self.now), key=lambda m: m[:2])
        self.mail = [m for m in self.mail if m[0] > self.now]
        for _, _, (pod, report, reply) in due:
            if reply is not None:
                pod.answered(report, reply)
            elif self.core is not None:
                answer = self.core.report(report, self.now)
                self.check_answer(answer)
                self.send(pod, report, answer)

    def check_answer(self, answer: Reply) -> None:
        """What sidecars are told to be committed must survive a crash of the control plane right now."""
        if answer.last_commit is not None:
            kept = {c["step"] for c in self.status.book["commits"]}
            assert answer.last_commit.step in kept, f"{answer.last_commit} was acknowledged and is not persisted"

    def send(self, pod: Pod, report: PodReport, reply: Reply | None) -> None:
        if not self.calm and self.rng.random() < self.chances.loss:
            return
        for _ in range(2 if self.rng.random() < self.chances.twice else 1):
            late = self.rng.random() < self.chances.late and not self.calm
            self.number += 1
            self.mail.append(
                (self.now + (self.rng.choice([0.5, 2.0, 8.0]) if late else 0.0), self.number, (pod, report, reply))
            )

    # ---- the run ------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        self.now += TICK
        self.faults()
        self.children()
        self.train()
        self.post()
        self.control()
        self.check_world()

    def run(self, seconds: float = 600.0) -> "World":
        while not self.status.terminal and self.now - self.began < seconds:
            self.tick()
        assert self.status.terminal, f"not done after {seconds} virtual seconds: {self.describe()}"
        return self

    def describe(self) -> str:
        return json.dumps(
            {
                **self.status.to_dict(),
                "book": "",
                "trace": self.trace[-30:],
                "waiting": repr(self.core and self.core._book.waiting()),
            }
        )

    def check_end(self) -> None:
        """Complete, every global batch as an uninterrupted rank sees it, every epoch proven."""
        assert self.status.state == "Complete", self.describe()
        steps = self.lanes.steps_per_epoch
        want = []
        for epoch in range(EPOCHS):
            for step in range(steps):
                ids, mask = self.lanes.batch(epoch, step)
                want.append(ids[mask].tolist())
        got = self.store.chain(self.status.cursor.commit)
        assert got == want, f"order differs: {len(got)} steps of {len(want)}"
        assert [e.epoch for e in self.status.ledger.epochs] == list(range(EPOCHS))
        assert all(e.verified for e in self.status.ledger.epochs)
        assert len(json.dumps(self.status.to_dict())) < 65536
        before, count = self.status, self.writes
        for _ in range(20):
            self.tick()
        assert self.writes - count <= 2, "a finished job is written again and again"
        assert self.status.state == before.state
