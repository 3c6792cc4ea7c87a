"""A controller over an API server in memory, with a Job controller and kubelets of a dozen lines, for tests."""

from collections.abc import Callable, Iterable
from typing import Any

from lanefeed_core import manifest_codec
from lanefeed_core.manifest import Manifest
from lanefeed_core.podconfig import PodConfig
from lanefeed_operator.coordinator.reports import PodReport, RankCommit, RankReport
from lanefeed_operator.kube.api import JOBS, NODES, PODS, STJS, Object
from lanefeed_operator.render import constants as c
from lanefeed_operator.runtime.controller import Controller
from lanefeed_operator.runtime.registry import Registry
from lanefeed_operator.runtime.view import View
from support.kube_store import KubeStore
from unit.render.objects import SETTINGS, manifest

NS, NAME = "team", "bert"
KEY = (NS, NAME)
NOW = 1_790_000_000.0


def spec(**changes: Any) -> dict[str, Any]:
    """A valid spec."""
    trainer = {"name": "trainer", "image": "train:1", "command": ["torchrun", "train.py"]}
    return {
        "replicas": 2,
        "data": {"uri": "/data"},
        "batching": {"globalBatchSize": 32},
        "template": {"spec": {"containers": [trainer]}},
        **changes,
    }


class Bed:
    """One job `team/bert`, and everything around it."""

    def __init__(self, **changes: Any) -> None:
        self.now = NOW
        self.store = KubeStore(lambda: self.now)
        self.data = manifest()
        self.start_operator()
        self.stj = self.store.create(STJS, NS, {"metadata": {"name": NAME}, "spec": spec(**changes)})

    def start_operator(self) -> None:
        """A new process: it knows nothing but what it lists."""
        self.view = View()
        self.registry = Registry(self.store, self.view)
        self.registry.trust("CA")
        self.woken: list[tuple[str, str]] = []
        self.registry.on_change = self.woken.append
        self.controller = Controller(self.store, self.view, self.registry, SETTINGS, lambda: self.now)
        self.store._subscribers = [self._watch]
        for kind in (STJS, JOBS, PODS, NODES):
            self.view.replace(kind, self.store.list(kind), self.view.stamp())
        self.store.calls.clear()

    def _watch(self, event: str, kind: Any, obj: Object) -> None:
        (self.view.remove if event == "DELETED" else self.view.put)(kind, obj)

    # ---- the operator ------------------------------------------------------------------------------------------

    def run(self, passes: int = 40) -> float | None:
        """Passes until nothing is to be done at once; what the last one returned."""
        for _ in range(passes):
            wake = self.controller.run_pass(KEY)
            if wake is None or wake > 0:
                return wake
        raise AssertionError(f"still busy after {passes} passes: {self.status}")

    def later(self, seconds: float) -> float | None:
        """Time passes, then the operator looks."""
        self.now += seconds
        return self.run()

    @property
    def status(self) -> dict[str, Any]:
        return self.store.objects[STJS, NS, NAME].get("status") or {}

    def condition(self, kind: str) -> tuple[str, str, str]:
        """(status, reason, message)."""
        found = next((x for x in self.status.get("conditions", ()) if x["type"] == kind), None)
        return (found["status"], found["reason"], found["message"]) if found else ("", "", "")

    def names(self, kind: Any) -> list[str]:
        return sorted(name for k, _, name in self.store.objects if k == kind)

    def events(self) -> list[tuple[str, str]]:
        return [(o["reason"], o["note"]) for (k, _, _), o in self.store.objects.items() if k.plural == "events"]

    # ---- the cluster -------------------------------------------------------------------------------------------

    def indexed(self, data: Manifest | None = None) -> str:
        """The indexer's pod hands over the manifest, and ends; what it was answered."""
        name = self.index_pod()
        refusal = self.hand_over(name, data)
        self.index_over(name)
        return refusal

    def index_pod(self) -> str:
        """The indexer's pod runs; its name."""
        name = f"{NAME}-index-{self.store.version}"
        self.pod(self.store.get(JOBS, NS, f"{NAME}-index"), name, None)
        return name

    def hand_over(self, name: str, data: Manifest | None = None) -> str:
        """PutManifest of the indexer's pod."""
        data = data or self.data
        uid = self.store.objects[PODS, NS, name]["metadata"]["uid"]
        return self.registry.put_manifest(self.uid, uid, data.digest, manifest_codec.encode(data))

    def index_over(self, name: str) -> None:
        """The indexer's pod and its Job end well."""
        self.ends(name, c.INDEXER, 0)
        self.store.mutate(JOBS, NS, f"{NAME}-index", lambda o: o.update(status=_over("Complete", "", "")))

    @property
    def uid(self) -> str:
        return str(self.store.objects[STJS, NS, NAME]["metadata"]["uid"])

    def pod(self, job: Object, name: str, index: int | None, **notes: str) -> Object:
        """As the Job controller makes it, and a kubelet begins with it."""
        template, meta = job["spec"]["template"], job["metadata"]
        labels = dict(template["metadata"].get("labels") or {})
        marks = {**(template["metadata"].get("annotations") or {}), **notes}
        if index is not None:
            labels[c.INDEX_LABEL] = marks[c.INDEX_LABEL] = str(index)
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True}
        found = {"name": name, "labels": labels, "annotations": marks, "ownerReferences": [owner]}
        found["finalizers"] = ["batch.kubernetes.io/job-tracking"]
        node = f"node{(index or 0) % 2 + 1}"
        self.store.create(PODS, NS, {"metadata": found, "spec": {"nodeName": node}})
        return self.runs(name)

    def pods(self, generation: int, indexes: Iterable[int] = (0, 1)) -> list[str]:
        """The pods of a plan run; their names."""
        job = self.store.get(JOBS, NS, f"{NAME}-{generation}")
        found = []
        for index in indexes:
            name = f"{NAME}-{generation}-{index}-{self.store.version}"
            self.pod(job, name, index)
            found.append(name)
        return found

    def runs(self, name: str) -> Object:
        ready = {"type": "Ready", "status": "True"}
        return self.set_pod(name, phase="Running", conditions=[ready])

    def set_pod(self, name: str, **status: Any) -> Object:
        return self.store.mutate(PODS, NS, name, lambda o: o.setdefault("status", {}).update(status))

    def ends(self, name: str, container: str = c.TRAINER, code: int = 0, **words: str) -> None:
        """The container ends, and its pod with it."""
        ended = {"exitCode": code, "reason": "Error" if code else "Completed", **words}
        self.set_pod(
            name,
            phase="Failed" if code else "Succeeded",
            conditions=[],
            containerStatuses=[{"name": container, "state": {"terminated": ended}}],
        )
        self.store.mutate(PODS, NS, name, lambda o: o["metadata"].pop("finalizers", None))

    def set_job(self, generation: int, **status: Any) -> None:
        self.store.mutate(JOBS, NS, f"{NAME}-{generation}", lambda o: o.setdefault("status", {}).update(status))

    def gone(self, *names: str) -> None:
        """Pods whose kubelet has ended them."""
        for name in names:
            self.store.mutate(PODS, NS, name, lambda o: o["metadata"].pop("finalizers", None))
            self.store.finish(PODS, NS, name)

    def patch_spec(self, **changes: Any) -> None:
        self.store.mutate(STJS, NS, NAME, lambda o: o["spec"].update(changes))

    # ---- sidecars ----------------------------------------------------------------------------------------------

    def report(self, name: str, generation: int, sequence: int = 1, **rank: Any) -> Any:
        """A report of the pod, with its one rank."""
        member = self.registry.find(self.uid)
        assert member is not None
        assert member.coordinator is not None
        pod = self.store.objects[PODS, NS, name]
        index = int(pod["metadata"]["labels"][c.INDEX_LABEL])
        commits: tuple[RankCommit, ...] = rank.pop("commits", ())
        values = {"rank": index, "started": 0, "from_state": False, "consumed": 0, "attached": True, **rank}
        return member.coordinator.report(
            PodReport(
                job_uid=self.uid,
                pod_index=index,
                pod_uid=pod["metadata"]["uid"],
                plan_generation=generation,
                session="s" * 32,
                sequence=sequence,
                ranks=(RankReport(**values),),
                commits=commits,
            ),
            self.now,
        )

    def config(self, generation: int) -> PodConfig:
        found = self.store.objects
        plan = next(o for (_, _, name), o in found.items() if name == f"{NAME}-{generation}-plan")
        return PodConfig.from_json(plan["data"][c.POD_FILE])

    def when(self, what: Callable[[], bool], seconds: float = 60.0) -> None:
        """Time passes until it is so."""
        until = self.now + seconds
        while not what():
            assert self.now < until, f"not so after {seconds} s: {self.status}"
            self.later(1.0)


def running(**changes: Any) -> tuple[Bed, list[str]]:
    """A job whose plan generation 1 runs, with ranks that train; and the names of its pods."""
    bed = Bed(**changes)
    bed.run()
    assert bed.indexed() == ""
    bed.run()
    pods = bed.pods(1)
    bed.run()
    for name in pods:
        bed.report(name, 1, consumed=3)
    bed.run()
    assert bed.status["state"] == "Running"
    return bed, pods


def _over(kind: str, reason: str, message: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": "True", "reason": reason, "message": message}]}


def failed_job(reason: str, message: str) -> dict[str, Any]:
    """Status of a Job that has given up."""
    return _over("Failed", reason, message)
