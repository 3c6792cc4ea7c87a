"""A whole job in virtual time: the production reconcile and coordinator, simulated pods, and faults by a seed.

Same seed, same run. Faults: pods that die, sidecars that restart, nodes that vanish with their processes running on,
reports and answers lost, repeated, late and out of order, a control plane that crashes between any two effects and goes
on from what it had persisted, resizes, suspends and restarts at any moment. Invariants are checked at every step.
"""

import json
import random
from dataclasses import dataclass
from typing import Any

from lanefeed_operator.api.status import Status
from lanefeed_operator.coordinator.core import Coordinator
from lanefeed_operator.coordinator.reports import Committed, PodReport, Reply
from lanefeed_operator.reconcile.failures import Verdict, verdict
from sim.control import ControlPlane, Kids
from sim.pods import EPOCHS, SIZE, Pod, Rank, Sidecar, Store, lanes_of

TICK = 0.5
FLUSH_SECONDS = 8.0


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
    #: A drain, a preemption: asked to go, killed some seconds later.
    evict: float = 0.003


class World(ControlPlane):
    """One run."""

    def __init__(
        self, seed: int, chances: Chances | None = None, *, ledger_fault: bool = False, careful: bool = False
    ) -> None:
        self.rng = random.Random(seed)
        self.chances = chances or Chances()
        self.ledger_fault = ledger_fault
        self.last_batch = self.rng.choice(["Drop", "Partial", "Pad"])
        self.collective = self.rng.random() < 0.5
        self.prune = self.rng.random() < 0.7
        #: As a Job does: who leaves with code 75 is replaced at once, also at a stop.
        self.replaces = self.rng.random() < 0.5
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
        self.careful = careful and not self.collective
        self.store = Store(apart=self.careful)
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
        if not self.flushes(pod):
            pod.settle()
        ends = min(t for t in (pod.ends_at, pod.leaves_by, float("inf")) if t is not None)
        if self.now >= ends and pod.phase == "Running":
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
        stopping = self.status.stop is not None and not self.replaces
        count = kids.failures.get(pod.index, 0)
        code = pod.exit_code if pod.exit_code is not None else -9
        what = verdict(code, count, 1000, disrupted=pod.disrupted, stopping=stopping)
        kids.failures[pod.index] = count + what.counts
        kids.disruptions += not what.counts
        kids.again[pod.index] = self.now + min(what.delay, 2.0) if what.verdict is Verdict.REPLACE else float("inf")

    def flushes(self, pod: Pod) -> bool:
        """The trainers have ended; the sidecar, and with it the pod, lives until its commits are acknowledged."""
        if pod.phase != "Running" or any(r.alive for r in pod.ranks) or not pod.sidecar.pending:
            return False
        pod.flush_until = pod.flush_until or self.now + FLUSH_SECONDS
        return self.now < pod.flush_until and not pod.sidecar.fenced

    def make(self, kids: Kids, index: int) -> None:
        self.number += 1
        _, per_pod = self.plans[kids.generation]
        uid = f"pod-{self.number}"
        world = kids.replicas * per_pod
        ranks = [Rank(r) for r in range(index * per_pod, (index + 1) * per_pod)]
        pod = Pod(
            "u1", index, uid, kids.generation, world, ranks, Sidecar(f"{uid}/0"), self.last_batch, self.store, self.rng
        )
        pod.prune, pod.ledger_fault, pod.careful = self.prune, self.ledger_fault, self.careful
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
                elif self.rng.random() < self.chances.evict and pod.leaves_by is None:
                    pod.leaves_by = self.now + self.rng.choice([1.0, 9.0, 20.0, 40.0])
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
        self.note(f"{what} {self.spec['replicas']}")

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
