"""Nodes, their kubelets and the scheduler: pods become processes, processes become status.

A node that is lost runs on: its processes train and (unless the network is cut too) report, while the node controller
marks it, evicts its pods and waits for a kubelet that does not answer. When it returns, what has no pod any more ends.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lanefeed_core.podconfig import PodConfig
from lanefeed_operator.coordinator.reports import Committed
from lanefeed_operator.kube.api import CONFIG_MAPS, NODES, PODS, Object
from lanefeed_operator.render import constants as c
from sim.cluster.jobcontroller import index_of, ready, terminal, where
from sim.pods import Pod, Rank, Sidecar, Store
from support.kube_store import KubeStore

UNKNOWN_SECONDS = 3.0
TOLERATION_SECONDS = 2.0
FLUSH_SECONDS = 8.0


@dataclass
class Proc:
    """A pod's processes. `trainer` is None for an indexer."""

    uid: str
    place: tuple[str, str]
    node: str
    job_uid: str
    began: float
    trainer: Pod | None = None
    #: The sidecar had an answer (or gave up waiting), so the trainer may choose a checkpoint.
    greeted: bool = False
    code: int | None = None
    reason: str = ""
    #: When the pod's last container ends, once the trainer has.
    ends: float | None = None
    #: SIGKILL comes then.
    kill_at: float | None = None

    @property
    def training(self) -> bool:
        """Whether its trainers may still do something."""
        return self.trainer is not None and self.code is None


@dataclass
class Machine:
    """One node."""

    name: str
    slots: int
    lost_since: float | None = None
    #: Lost, and its processes cannot reach the report service either.
    cut: bool = False
    #: Everything on it was ended by the loss.
    off: bool = False
    evicted: bool = False
    procs: dict[str, Proc] = field(default_factory=dict)


class Nodes:
    """All machines, and the part of the control plane that deals with them."""

    def __init__(
        self, store: KubeStore, clock: Callable[[], float], rng: random.Random, checkpoints: Callable[[str], Store]
    ) -> None:
        """`checkpoints` gives the durable files of a job, by its UID."""
        self.store, self.clock, self.rng, self.checkpoints = store, clock, rng, checkpoints
        self.machines: dict[str, Machine] = {}
        self.exit_zero = 0.1
        self.prune = rng.random() < 0.7
        self.last_batch: dict[str, str] = {}
        #: Pods that were asked to go, by the UID of their job: a plan may end before its Job counts them.
        self.leaving: dict[str, set[str]] = {}

    def add(self, name: str, slots: int) -> None:
        """A node joins."""
        self.machines[name] = Machine(name, slots)
        body: Object = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}}
        self.store.create(NODES, "", body)
        self.heard(name, "True")

    def heard(self, name: str, value: str) -> None:
        at = self.store.timestamp()
        found = {"type": "Ready", "status": value, "lastTransitionTime": at, "reason": "Kubelet", "message": ""}
        self.store.mutate(NODES, "", name, lambda o: o.update(status={"conditions": [found]}))

    @property
    def procs(self) -> list[Proc]:
        """Everything that runs anywhere."""
        return [p for m in self.machines.values() for p in m.procs.values()]

    # ---- one look at everything ---------------------------------------------------------------------------------

    def sync(self) -> None:
        """Scheduler, node controller, kubelets."""
        pods = [o for (kind, _, _), o in self.store.objects.items() if kind == PODS]
        for pod in pods:
            if "deletionTimestamp" in pod["metadata"]:
                job_uid = pod["metadata"].get("annotations", {}).get(c.UID_ANNOTATION, "")
                self.leaving.setdefault(job_uid, set()).add(pod["metadata"]["uid"])
            if not pod["spec"].get("nodeName") and not terminal(pod):
                self.schedule(pod, pods)
        for machine in self.machines.values():
            self.watch(machine, pods)
            if machine.lost_since is None:
                self.kubelet(machine, [p for p in pods if p["spec"].get("nodeName") == machine.name])

    def schedule(self, pod: Object, pods: list[Object]) -> None:
        if "deletionTimestamp" in pod["metadata"]:
            self.ended(where(pod), None)
            return
        free = [m for m in self.machines.values() if m.lost_since is None and self.used(m, pods) < m.slots]
        told = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0 nodes are available",
        }
        if not free:
            if not any(x["type"] == "PodScheduled" for x in pod.get("status", {}).get("conditions", ())):
                told["lastTransitionTime"] = self.store.timestamp()
                self.store.mutate(
                    PODS, *where(pod), lambda o: o.update(status={"phase": "Pending", "conditions": [told]})
                )
            return
        node = self.rng.choice(free).name
        told |= {"status": "True", "reason": "", "message": "", "lastTransitionTime": self.store.timestamp()}
        pod["spec"]["nodeName"] = node  # counted for the next pod of this round too

        def bind(o: Object) -> None:
            o["spec"] = {**o["spec"], "nodeName": node}
            o["status"] = {"phase": "Pending", "conditions": [told]}

        self.store.mutate(PODS, *where(pod), bind)

    def used(self, machine: Machine, pods: list[Object]) -> int:
        return sum(1 for p in pods if p["spec"].get("nodeName") == machine.name and not terminal(p))

    def watch(self, machine: Machine, pods: list[Object]) -> None:
        """The node controller: Unknown after a while, then its pods are evicted."""
        if machine.lost_since is None:
            return
        gone = self.clock() - machine.lost_since
        if gone >= UNKNOWN_SECONDS and not machine.evicted:
            self.heard(machine.name, "Unknown")
            machine.evicted = True
        if gone >= UNKNOWN_SECONDS + TOLERATION_SECONDS:
            for pod in pods:
                if pod["spec"].get("nodeName") == machine.name and not terminal(pod):
                    self.evict(pod, "DeletionByTaintManager")

    def evict(self, pod: Object, reason: str) -> None:
        """Marked as a disruption, then deleted."""
        if "deletionTimestamp" in pod["metadata"]:
            return
        told = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": ""}
        told["lastTransitionTime"] = self.store.timestamp()

        def mark(o: Object) -> None:
            status = o.setdefault("status", {})
            status["conditions"] = [x for x in status.get("conditions", ()) if x["type"] != "DisruptionTarget"] + [told]

        self.store.mutate(PODS, *where(pod), mark)
        self.store.delete(PODS, *where(pod), uid=pod["metadata"]["uid"])

    def lose(self, machine: Machine, *, cut: bool, off: bool) -> None:
        """A crash (`off`), or a cut-off node whose processes run on."""
        machine.lost_since, machine.cut, machine.off = self.clock(), cut, off
        if off:
            for proc in machine.procs.values():
                self.kill(proc, 137, "NodeShutdown")

    def restore(self, machine: Machine) -> None:
        """It is heard of again."""
        if machine.evicted:
            self.heard(machine.name, "True")
        machine.lost_since, machine.cut, machine.off, machine.evicted = None, False, False, False

    # ---- a kubelet ----------------------------------------------------------------------------------------------

    def kubelet(self, machine: Machine, pods: list[Object]) -> None:
        known = {p["metadata"]["uid"] for p in pods if not terminal(p)}
        for uid in [u for u in machine.procs if u not in known]:
            # Forced away while the node was out of reach, or marked as failed: what still runs is ended.
            del machine.procs[uid]
        for pod in pods:
            proc = machine.procs.get(pod["metadata"]["uid"])
            leaving = "deletionTimestamp" in pod["metadata"]
            if terminal(pod):
                if leaving and not pod["metadata"].get("finalizers"):
                    self.store.finish(PODS, *where(pod))
            elif proc is None:
                if leaving:
                    self.ended(where(pod), None)
                else:
                    self.start(machine, pod)
            else:
                self.tend(machine, pod, proc, leaving=leaving)

    def start(self, machine: Machine, pod: Object) -> None:
        """Containers start once every volume is there."""
        uid, ns = pod["metadata"]["uid"], pod["metadata"]["namespace"]
        maps = [v["configMap"]["name"] for v in pod["spec"]["volumes"] if "configMap" in v]
        for volume in pod["spec"]["volumes"]:
            sources = volume.get("projected", {}).get("sources", ())
            maps += [s["configMap"]["name"] for s in sources if "configMap" in s and not s["configMap"].get("optional")]
        if any((CONFIG_MAPS, ns, name) not in self.store.objects for name in maps):
            self.report(pod, waiting="ContainerCreating")
            return
        owner = pod["metadata"]["annotations"].get(c.UID_ANNOTATION) or self.job_uid(pod)
        proc = Proc(uid, where(pod), machine.name, owner, self.clock())
        plan = next((v["configMap"]["name"] for v in pod["spec"]["volumes"] if v["name"] == c.PLAN_VOLUME), None)
        if plan is not None:
            text = self.store.objects[CONFIG_MAPS, ns, plan]["data"][c.POD_FILE]
            config = PodConfig.from_json(text)
            if index_of(pod) < config.plan.replicas:
                proc.trainer = self.trainer(pod, config, self.checkpoints(owner))
            else:
                # The plan of a later job of this name: the sidecar refuses it.
                self.kill(proc, 2, "Error")
        machine.procs[uid] = proc
        self.report(pod, running=True)

    def job_uid(self, pod: Object) -> str:
        """UID of the ShardedTrainingJob, through the Job."""
        return next(
            (
                str(o["metadata"]["annotations"].get(c.UID_ANNOTATION, ""))
                for o in self.store.objects.values()
                if o["metadata"].get("uid") == pod["metadata"]["ownerReferences"][0]["uid"]
            ),
            "",
        )

    def trainer(self, pod: Object, config: PodConfig, files: Store) -> Pod:
        plan, index, uid = config.plan, index_of(pod), pod["metadata"]["uid"]
        ranks = [Rank(r) for r in plan.ranks(index)]
        side = Sidecar(f"{uid}/0")
        if config.last_commit_step:
            side.last_commit = Committed(
                config.last_commit_step, config.last_commit_name, config.last_commit_generation
            )
        batch = config.spec.last_batch
        made = Pod(config.job_uid, index, uid, plan.generation, plan.world, ranks, side, batch, files, self.rng)
        made.started, made.prune = self.clock(), self.prune
        return made

    def tend(self, machine: Machine, pod: Object, proc: Proc, *, leaving: bool) -> None:
        """A running pod: readiness, SIGTERM, the end."""
        now = self.clock()
        if leaving and proc.kill_at is None:
            patience = self.rng.choice([0.0, 1.0, 4.0, 12.0])
            proc.kill_at = now + min(patience, pod["metadata"]["deletionGracePeriodSeconds"])
        if proc.trainer is not None and proc.code is None:
            proc.trainer.settle()
            if proc.trainer.phase != "Running":
                self.kill(proc, proc.trainer.exit_code or 0, "")
        if proc.kill_at is not None and now >= proc.kill_at and proc.code is None:
            # Some trainers trap SIGTERM and exit 0: the Job believes them.
            zero = proc.trainer is not None and self.rng.random() < self.exit_zero
            self.kill(proc, 0 if zero else 143, "Error")
        if proc.code is not None and proc.ends is not None and now >= proc.ends and not self.flushes(proc):
            del machine.procs[proc.uid]
            self.ended(where(pod), proc)
        elif not ready(pod) and proc.code is None:
            self.report(pod, running=True, ready=now - proc.began >= 0.5)

    def flushes(self, proc: Proc) -> bool:
        """The sidecar, and with it the pod, lives on until its commits are acknowledged."""
        if proc.trainer is None or proc.trainer.sidecar.fenced or not proc.trainer.sidecar.pending:
            return False
        return self.clock() < (proc.ends or 0.0) + FLUSH_SECONDS

    def kill(self, proc: Proc, code: int, reason: str) -> None:
        """The trainer has ended; its sidecar goes after a last report."""
        if proc.code is None:
            proc.code, proc.reason = code, reason
            proc.ends = self.clock() + self.rng.choice([0.0, 0.0, 0.5, 1.0])
            if proc.trainer is not None:
                for rank in proc.trainer.ranks:
                    rank.alive = rank.attached = False

    # ---- status -------------------------------------------------------------------------------------------------

    def report(self, pod: Object, *, running: bool = False, ready: bool = False, waiting: str = "") -> None:
        state: dict[str, Any] = {"waiting": {"reason": waiting}} if waiting else {"running": {}}
        status = dict(pod.get("status", {}))
        kept = [x for x in status.get("conditions", ()) if x["type"] != "Ready"]
        told = {"type": "Ready", "status": str(ready), "lastTransitionTime": self.store.timestamp(), "reason": ""}
        status |= {
            "phase": "Running" if running else "Pending",
            "conditions": [*kept, told],
            "containerStatuses": [self.container(pod, "containers", state, ready)],
        }
        if pod["spec"].get("initContainers"):
            status["initContainerStatuses"] = [self.container(pod, "initContainers", state, ready)]
        old = pod.get("status", {})
        if {**status, "conditions": kept} != {**old, "conditions": kept} or ready:
            self.store.mutate(PODS, *where(pod), lambda o: o.update(status=status))

    @staticmethod
    def container(pod: Object, where_: str, state: dict[str, Any], is_ready: bool) -> dict[str, Any]:
        name = pod["spec"][where_][-1]["name"]
        return {"name": name, "state": state, "ready": is_ready, "started": is_ready, "restartCount": 0}

    def ended(self, place: tuple[str, str], proc: Proc | None) -> None:
        """The kubelet's last status, and its last word on a pod that was deleted."""
        pod = self.store.objects.get((PODS, *place))
        if pod is None:
            return
        code = 137 if proc is None or proc.code is None else proc.code
        done = {"terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}}
        status = dict(pod.get("status", {}))
        status |= {"phase": "Failed" if code else "Succeeded"}
        status["conditions"] = [x for x in status.get("conditions", ()) if x["type"] != "Ready"]
        if proc is not None:
            status["containerStatuses"] = [self.container(pod, "containers", done, False)]
        self.store.mutate(PODS, *place, lambda o: o.update(status=status))
        # The Job controller takes its finalizer off first.
