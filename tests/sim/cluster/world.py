"""A cluster in virtual time: production operator processes, simulated Kubernetes and trainers, and faults by a seed.

Same seed, same trace. Everything that moves moves in `tick`; a little of it also between any two API calls of an
operator, so that what it read is old when it writes.
"""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from lanefeed_operator.api.status import Status
from lanefeed_operator.coordinator.reports import PodReport, Reply
from lanefeed_operator.kube.api import CONFIG_MAPS, JOBS, PODS, SERVICES, STJS, Kind, Object
from lanefeed_operator.render.constants import EQUAL_COMPLETIONS, MIN_PARALLELISM
from sim.cluster.calls import Call, Calls
from sim.cluster.checks import Checks
from sim.cluster.data import NAMESPACE, stj
from sim.cluster.jobcontroller import JobController, Totals, terminal
from sim.cluster.kueue import LABEL, Queue
from sim.cluster.network import Network
from sim.cluster.nodes import Nodes, Proc
from sim.cluster.operator import Operator
from sim.cluster.training import Training
from support.kube_store import KubeStore

TICK = 0.5
KEY = (NAMESPACE, "sim")


@dataclass
class Chances:
    """Probabilities: a tick, or (the last eight) a call, event, message or start. Faults end after `calm_after`."""

    pod: float = 0.006
    sidecar: float = 0.015
    workers: float = 0.01
    node: float = 0.008
    evict: float = 0.006
    change: float = 0.012
    recreate: float = 0.002
    kill: float = 0.03
    zombie: float = 0.01
    outage: float = 0.004
    cut: float = 0.01
    nudge: float = 0.15
    api: float = 0.06
    lag: float = 0.4
    twice: float = 0.1
    loss: float = 0.12
    late: float = 0.25
    back: float = 0.1
    flight: float = 0.5
    calm_after: float = 60.0


CALM = Chances(*[0.0] * 19)


@dataclass
class Zombie:
    """An operator that froze, and when it goes on."""

    operator: Operator
    until: float
    thawed: bool = False


@dataclass
class Work:
    """What the world keeps of each ShardedTrainingJob, by UID."""

    training: Training
    uploads: dict[str, float] = field(default_factory=dict)


class World(Network):
    """One run."""

    def __init__(self, seed: int, chances: Chances | None = None, *, may_fail: bool = False, **spec: Any) -> None:
        """`spec`: fields of the job's spec that are not left to the seed; `may_fail`: the job may end Failed."""
        self.rng, self.chances = random.Random(seed), chances or Chances()
        self.now = self.began = 1_000_000.0
        self.trace: list[str] = []
        #: What befell this run, so that a test can see that faults happen at all.
        self.seen: Counter[str] = Counter()
        self.store = KubeStore(self.clock)
        self.store.auto_gc = False
        self.checks = Checks(self.clock)
        self.store.subscribe(self.checks.event)
        self.store.subscribe(self.tell)
        self.jobs = JobController(self.store, self.clock, self.rng)
        self.nodes = Nodes(self.store, self.clock, self.rng, self.checks.files.__getitem__)
        self.queue = Queue(self.store, self.clock, self.rng)
        self.store.admit.append(self.queue.admit)
        self.works: dict[str, Work] = {}
        self.mail: list[tuple[float, int, Proc, PodReport, Reply | None]] = []
        self.number = 0
        self.flights = []
        self.writes = 0
        self.down_until = 0.0
        self.start_at = self.now
        self.operator: Operator | None = None
        self.zombies: list[Zombie] = []
        self.lives = 0
        self.inside = False
        self.collective = self.rng.random() < 0.5
        self.ranks = self.rng.choice([1, 1, 2])
        self.queued = self.rng.random() < 0.25
        self.last_batch = self.rng.choice(["Drop", "Partial", "Pad"])
        self.fixed, self.may_fail = spec, may_fail
        for number in range(3):
            self.nodes.add(f"node-{number}", 3)
        self.apply()

    def clock(self) -> float:
        return self.now

    def version(self) -> int:
        return self.store.version

    @property
    def calm(self) -> bool:
        return self.now - self.began > self.chances.calm_after

    def chance(self, probability: float) -> bool:
        return not self.calm and self.rng.random() < probability

    def note(self, what: str) -> None:
        self.trace.append(f"{self.now - self.began:.1f} {what}")

    def tell(self, event: str, kind: Kind, o: Object) -> None:
        if event != "MODIFIED" and kind in (STJS, JOBS, CONFIG_MAPS, SERVICES, PODS):
            self.note(f"{event} {kind.kind} {o['metadata']['name']}")
        elif kind == STJS:
            plan = o.get("status", {}).get("plan", {})
            self.note(
                f"{o.get('status', {}).get('state')} g{plan.get('generation')} rv{o['metadata']['resourceVersion']}"
            )

    # ---- users --------------------------------------------------------------------------------------------------

    def apply(self) -> None:
        """kubectl apply."""
        labels = {LABEL: "q"} if self.queued else {}
        elastic = {"stopGraceSeconds": 15, "nodeLostSeconds": 8}
        if self.rng.random() < 0.3:
            elastic["shrinkAfterSeconds"] = 6
        more = {"replicas": self.rng.randint(1, 4), "elastic": elastic, **self.fixed}
        body = stj("sim", self.last_batch, ranks=self.ranks, labels=labels, more=more)
        if self.queued and self.rng.random() < 0.5:
            body["metadata"]["annotations"] = {MIN_PARALLELISM: "1"}
            if self.rng.random() < 0.5:
                body["metadata"]["annotations"][EQUAL_COMPLETIONS] = "true"
        made = self.store.create(STJS, NAMESPACE, body)
        if self.may_fail:
            self.checks.may_fail.add(made["metadata"]["uid"])
        training = Training(self.rng, self.collective, lambda what: self.chance(getattr(self.chances, what)))
        self.works[made["metadata"]["uid"]] = Work(training)

    @property
    def stj(self) -> Object | None:
        return self.store.objects.get((STJS, *KEY))

    @property
    def uid(self) -> str:
        return str(self.stj["metadata"]["uid"]) if self.stj else ""

    @property
    def status(self) -> Status:
        return self.checks.stored.get(self.uid, Status())

    def edit(self, **spec: Any) -> None:
        """kubectl edit (or scale)."""
        if self.stj is not None:
            self.store.mutate(STJS, *KEY, lambda o: o.update(spec={**o["spec"], **spec}))
            self.note(f"user: {spec}")

    def change(self) -> None:
        """What users do."""
        what = self.rng.choice(["scale", "scale", "suspend", "token"])
        if self.stj is None or self.status.terminal:
            return
        if what == "scale":
            self.edit(replicas=self.rng.randint(1, 5))
        elif what == "suspend":
            self.edit(suspend=not self.stj["spec"].get("suspend", False))
        else:
            self.edit(restartToken=str(self.now))

    def delete(self) -> None:
        """kubectl delete."""
        if self.stj is not None:
            self.store.delete(STJS, *KEY, uid=self.uid)

    # ---- what an operator's calls meet --------------------------------------------------------------------------

    def between_calls(self, calls: Calls) -> None:
        """Others act between any two calls of an operator."""
        if self.inside or not self.chance(self.chances.nudge):
            return
        self.inside = True
        try:
            self.rng.choice([self.jobs.sync, self.nodes.sync, self.collect, self.change, self.queue.sync])()
        finally:
            self.inside = False

    def collect(self) -> None:
        self.store.collect()

    def fault(self, *, write: bool) -> str:
        if self.now < self.down_until:
            return "down"
        if not self.chance(self.chances.api):
            return ""
        found = self.rng.choice(["before", "after" if write else "before"])
        self.seen[f"api {found}"] += 1
        return found

    def landed(self, calls: Calls, call: Call, changed: bool) -> None:
        """A write of an operator took effect."""
        if call.kind.plural == "events":
            return
        self.writes += 1
        self.note(f"{calls.owner.name} {call.verb} {call.kind.kind} {call.name} {call.subresource}".rstrip())
        self.seen[f"{call.verb} {call.kind.plural}"] += 1
        owner = calls.owner
        leads = owner is self.operator
        self.checks.landed(call, by=owner.name, changed=changed, leads=leads, excused=owner.in_hand)

    def lag(self) -> float:
        return self.rng.choice([0.5, 1.0, 4.0]) if self.chance(self.chances.lag) else 0.0

    def twice(self) -> bool:
        return self.chance(self.chances.twice)

    # ---- faults -------------------------------------------------------------------------------------------------

    def faults(self) -> None:
        c = self.chances
        for proc in self.nodes.procs:
            if proc.trainer is None or not proc.training:
                continue
            if self.chance(c.pod):
                self.nodes.kill(proc, 137, "OOMKilled")
                self.seen["pod"] += 1
                self.note(f"kill {proc.place[1]}")
            elif self.chance(c.sidecar):
                proc.trainer.restart_sidecar()
        if self.chance(c.node):
            machine = self.rng.choice(list(self.nodes.machines.values()))
            if machine.lost_since is None:
                self.seen["node"] += 1
                self.nodes.lose(machine, cut=self.rng.random() < 0.5, off=self.rng.random() < 0.3)
                self.note(f"lost {machine.name}")
        for machine in self.nodes.machines.values():
            if machine.lost_since is not None and (self.calm or self.rng.random() < 0.02):
                self.nodes.restore(machine)
                self.note(f"back {machine.name}")
        if self.chance(c.evict):
            pods = [o for (k, _, _), o in self.store.objects.items() if k == PODS and not terminal(o)]
            if pods:
                self.seen["evict"] += 1
                self.nodes.evict(self.rng.choice(pods), "EvictionByEvictionAPI")
        if self.queued and self.chance(c.evict):
            self.seen["preempt"] += self.queue.evict()
        if self.chance(c.change):
            self.change()
        if self.chance(c.recreate) and self.stj is not None and not self.status.terminal:
            self.delete()
            self.seen["recreate"] += 1
        if self.stj is None and (self.calm or self.rng.random() < 0.3):
            self.apply()
        if self.calm and self.stj is not None and self.stj["spec"].get("suspend"):
            self.edit(suspend=False)
        if self.chance(c.outage):
            self.down_until = self.now + self.rng.choice([2.0, 8.0])
            self.seen["outage"] += 1
            self.note("the API server is away")

    # ---- the operator's life ------------------------------------------------------------------------------------

    def operate(self) -> None:
        """The process that leads, those that led, and what befalls them."""
        for zombie in list(self.zombies):
            if self.now >= zombie.until or self.calm:
                self.wake_zombie(zombie)
        if self.operator is None:
            if self.now >= self.start_at and self.now >= self.down_until:
                self.lives += 1
                self.operator = Operator(self.store, self, f"op{self.lives}")
            return
        op = self.operator
        if self.chance(self.chances.cut):
            self.seen["cut"] += 1
            op.cut(self.rng.choice([STJS, JOBS, PODS]), self.now + self.rng.choice([2.0, 6.0]))
        if self.chance(self.chances.kill):
            op.calls.killed_in = self.rng.randint(1, 12) / 2
        if self.chance(self.chances.zombie) and op.freeze_in < 0:
            op.freeze_in = self.rng.randint(0, 8)
        op.step()
        if op.frozen:
            self.seen["freeze"] += 1
            self.note(f"{op.name} freezes")
            self.zombies.append(Zombie(op, self.now + self.rng.choice([3.0, 10.0, 20.0])))
            self.operator, self.start_at = None, self.now + 2.0
            return
        if op.dead:
            self.seen["kill"] += 1
            self.note(f"{op.name} is killed")
            op.stop()
            self.operator, self.start_at = None, self.now + self.rng.choice([0.0, 1.0, 5.0])

    def wake_zombie(self, zombie: Zombie) -> None:
        """It finishes the pass in hand; a lease that it cannot renew ends it a few passes later."""
        op = zombie.operator
        op.leads, op.guarded = False, self.rng.random() < 0.7
        self.note(f"{op.name} wakes")
        op.in_hand = True
        op.thaw()
        op.in_hand, op.guarded = False, True
        op.wake(op.view.keys())
        op.step()
        op.stop()
        self.zombies.remove(zombie)

    # ---- the run ------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        self.now += TICK
        self.faults()
        self.jobs.sync()
        self.nodes.sync()
        self.queue.sync()
        if self.calm or self.rng.random() < 0.3:
            self.store.collect()
        self.train()
        self.reports()
        self.land()
        self.operate()
        lost = {m.name for m in self.nodes.machines.values() if m.lost_since is not None}
        exists = {o["metadata"]["uid"] for (k, _, _), o in self.store.objects.items() if k == PODS and not terminal(o)}
        self.checks.plans([p for p in self.nodes.procs if p.uid in exists], lost)

    def train(self) -> None:
        near = {p.uid for m in self.nodes.machines.values() if m.lost_since is None for p in m.procs.values()}
        groups: dict[str, list[Proc]] = {}
        for machine in self.nodes.machines.values():
            for proc in machine.procs.values():
                if not machine.off:
                    groups.setdefault(proc.job_uid, []).append(proc)
        for uid, procs in groups.items():
            self.works[uid].training.step(procs, near, self.now)

    def run(self, seconds: float = 500.0) -> "World":
        while not (self.status.terminal and self.calm) and self.now - self.began < seconds:
            if self.status.terminal:
                # What could still go wrong is looked at for a while only.
                self.chances.calm_after = min(self.chances.calm_after, self.now - self.began + 5.0)
            self.tick()
        assert self.status.terminal, f"not done after {seconds} virtual seconds: {self.describe()}"
        return self

    def check_end(self) -> None:
        """Exact, proven, well counted, nothing left over, and from then on nothing is written any more.

        A job that may fail says why it did, and what of it was committed is exact.
        """
        if self.may_fail and self.status.state == "Failed":
            self.checks.prefix(self.uid, self.status)
        else:
            self.checks.complete(self.uid, self.status)
        ends = self.jobs.totals.get(self.uid, Totals())
        self.checks.counted(self.status, Totals(ends.failed, ends.disrupted | self.nodes.leaving.get(self.uid, set())))
        for _ in range(240):
            if not any(k == PODS and not terminal(o) for (k, _, _), o in self.store.objects.items()):
                break
            self.tick()
        # Watches that were cut last are made up for, and what they missed is told of in the status.
        for _ in range(40):
            self.tick()
        before = self.writes
        assert self.operator is not None
        for _ in range(20):
            self.operator.wake(self.operator.view.keys())
            self.tick()
        assert self.writes == before, f"a finished job is written again and again: {self.trace[-8:]}"
        self.checks.orphans([(kind, o) for (kind, _, _), o in self.store.objects.items()])

    def close(self) -> None:
        for zombie in self.zombies:
            zombie.operator.stop()
        if self.operator is not None:
            self.operator.stop()

    def describe(self) -> str:
        conditions = "; ".join(f"{x.type}={x.status} {x.reason}" for x in self.status.conditions)
        return "\n".join([self.status.state, conditions, *self.trace[-60:]])
