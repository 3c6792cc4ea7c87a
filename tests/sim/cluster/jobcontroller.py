"""Kubernetes' Job controller, as far as Indexed Jobs of ours (and the indexer's plain Job) use it.

Knows: indexes, backoffLimit, backoffLimitPerIndex with back-off, maxFailedIndexes, podFailurePolicy (Ignore, FailJob),
podReplacementPolicy Failed, the job-tracking finalizer, suspend, completions that change with parallelism, deletion.
Its own memory never dies here; what it decides is in the Job's status as the real one writes it.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lanefeed_operator.kube.api import JOBS, PODS, Object
from lanefeed_operator.kube.facts import FAILURES_ANNOTATION, IGNORED_ANNOTATION
from lanefeed_operator.render.constants import INDEX_LABEL, UID_ANNOTATION
from support.kube_store import KubeStore, copy

FINALIZER = "batch.kubernetes.io/job-tracking"
BACKOFF_SECONDS = 2.0


@dataclass
class Memory:
    """What the controller knows of one Job."""

    counted: set[str] = field(default_factory=set)
    succeeded: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    failures: dict[int, int] = field(default_factory=dict)
    ignored: dict[int, int] = field(default_factory=dict)
    ready_at: dict[int, float] = field(default_factory=dict)
    failed_pods: int = 0
    why: tuple[str, str] | None = None


@dataclass
class Totals:
    """Ends of training pods of one ShardedTrainingJob, over all of its plans: by the program's fault, and not."""

    failed: int = 0
    #: Pods.
    disrupted: set[str] = field(default_factory=set)


class JobController:
    """Syncs every Job of the store."""

    def __init__(self, store: KubeStore, clock: Callable[[], float], rng: random.Random) -> None:
        self.store, self.clock, self.rng = store, clock, rng
        self.memory: dict[str, Memory] = {}
        self.totals: dict[str, Totals] = {}

    def sync(self) -> None:
        """One look at everything."""
        jobs = [o for (kind, _, _), o in self.store.objects.items() if kind == JOBS]
        pods: dict[str, list[Object]] = {}
        for (kind, _, _), o in self.store.objects.items():
            if kind == PODS:
                pods.setdefault(owner_of(o), []).append(o)
        for job in jobs:
            self.sync_job(job, pods.pop(job["metadata"]["uid"], []))
        for orphans in pods.values():
            for pod in orphans:
                self.release(pod)
        living = {job["metadata"]["uid"] for job in jobs}
        self.memory = {uid: m for uid, m in self.memory.items() if uid in living}

    def sync_job(self, job: Object, pods: list[Object]) -> None:
        """Count what ended, make what is missing, end what is too much, write the status."""
        m = self.memory.setdefault(job["metadata"]["uid"], Memory())
        for pod in [p for p in pods if terminal(p)]:
            self.count(job, m, pod)
            self.release(pod)
        active = [p for p in pods if not terminal(p)]
        over = bool(condition(job, "Complete") or condition(job, "Failed"))
        size = job["spec"].get("completions") or 1
        if m.why is None and m.failed and job["spec"].get("maxFailedIndexes") == 0:
            m.why = ("MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes")
        if not over and "deletionTimestamp" not in job["metadata"]:
            if job["spec"].get("suspend") or m.why is not None:
                self.end(active)
            else:
                room = job["spec"].get("parallelism", 1)
                kept = sorted((p for p in active if index_of(p) < size), key=index_of)[:room]
                self.end([p for p in active if p not in kept])
                self.make(job, m, active, size, room)
        self.write(job, m, active, size)

    def count(self, job: Object, m: Memory, pod: Object) -> None:
        """An ended pod, once."""
        uid, index = pod["metadata"]["uid"], index_of(pod)
        if uid in m.counted:
            return
        m.counted.add(uid)
        totals = self.totals.setdefault(job["metadata"]["annotations"].get(UID_ANNOTATION, ""), Totals())
        if pod["status"]["phase"] == "Succeeded":
            m.succeeded.add(index)
            return
        action = verdict(job, pod)
        if action == "FailJob":
            m.why = ("PodFailurePolicy", "a pod's container ended with an exit code of a FailJob rule")
        if action == "Ignore":
            totals.disrupted.add(pod["metadata"]["uid"])
            m.ignored[index] = m.ignored.get(index, 0) + 1
            m.ready_at[index] = self.clock()
            return
        totals.failed += 1
        m.failed_pods += 1
        m.failures[index] = m.failures.get(index, 0) + 1
        m.ready_at[index] = self.clock() + BACKOFF_SECONDS * 2 ** min(3, m.failures[index] - 1)
        per_index = job["spec"].get("backoffLimitPerIndex")
        if per_index is not None and m.failures[index] > per_index:
            m.failed.add(index)
        elif per_index is None and m.failed_pods > job["spec"].get("backoffLimit", 6):
            m.why = m.why or ("BackoffLimitExceeded", "Job has reached the specified backoff limit")

    def release(self, pod: Object) -> None:
        """The job-tracking finalizer goes once the pod is terminal (or its Job is gone)."""
        if FINALIZER in pod["metadata"].get("finalizers", ()):
            self.store.mutate(PODS, *where(pod), lambda o: o["metadata"].pop("finalizers"))

    def make(self, job: Object, m: Memory, active: list[Object], size: int, room: int) -> None:
        """One pod for each index that has none; with podReplacementPolicy Failed a terminating one still counts."""
        have = {index_of(p) for p in active} | m.succeeded | m.failed
        wanted = [index for index in range(size) if index not in have][: max(0, room - len(active))]
        for index in wanted:
            if self.clock() >= m.ready_at.get(index, 0.0):
                self.store.create(PODS, job["metadata"]["namespace"], self.pod(job, m, index))

    def pod(self, job: Object, m: Memory, index: int) -> Object:
        template, name = copy(job["spec"]["template"]), job["metadata"]["name"]
        meta = template.setdefault("metadata", {})
        labels = {**meta.get("labels", {}), "job-name": name, "batch.kubernetes.io/job-name": name}
        annotations = dict(meta.get("annotations", {}))
        if job["spec"].get("completionMode") == "Indexed":
            labels[INDEX_LABEL] = annotations[INDEX_LABEL] = str(index)
            annotations[FAILURES_ANNOTATION] = str(m.failures.get(index, 0))
            annotations[IGNORED_ANNOTATION] = str(m.ignored.get(index, 0))
            name = f"{name}-{index}"
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"]}
        owner |= {"uid": job["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}
        meta |= {"name": f"{name}-{self.rng.getrandbits(25):05x}", "labels": labels, "annotations": annotations}
        meta |= {"ownerReferences": [owner], "finalizers": [FINALIZER]}
        return {"apiVersion": "v1", "kind": "Pod", **template}

    def end(self, pods: list[Object]) -> None:
        for pod in pods:
            if "deletionTimestamp" not in pod["metadata"]:
                self.store.delete(PODS, *where(pod), uid=pod["metadata"]["uid"])

    def write(self, job: Object, m: Memory, active: list[Object], size: int) -> None:
        """The status, if it differs."""
        conditions = [c for c in job.get("status", {}).get("conditions", ()) if c["type"] != "Suspended"]
        suspended = bool(job["spec"].get("suspend"))
        if suspended or condition(job, "Suspended", "False") or condition(job, "Suspended"):
            conditions.append(
                self.told(job, "Suspended", str(suspended), "JobSuspended" if suspended else "JobResumed")
            )
        done = len(m.succeeded & set(range(size))) >= size
        for early, final, true in (("SuccessCriteriaMet", "Complete", done), ("FailureTarget", "Failed", bool(m.why))):
            reason, message = m.why or ("CompletionsReached", "Reached expected number of succeeded pods")
            if not true or condition(job, "Complete") or condition(job, "Failed"):
                continue
            for kind in (early, *(() if active else (final,))):
                if not any(c["type"] == kind for c in conditions):
                    conditions.append(self.told(job, kind, "True", reason, message))
            break
        status: dict[str, Any] = {
            "conditions": conditions,
            "active": len([p for p in active if "deletionTimestamp" not in p["metadata"]]),
            "terminating": len([p for p in active if "deletionTimestamp" in p["metadata"]]),
            "ready": len([p for p in active if ready(p)]),
            "succeeded": len(m.succeeded),
            "failed": m.failed_pods,
            "uncountedTerminatedPods": {},
        }
        if job["spec"].get("completionMode") == "Indexed":
            status |= {"completedIndexes": intervals(m.succeeded), "failedIndexes": intervals(m.failed)}
        if not suspended:
            status["startTime"] = job.get("status", {}).get("startTime") or self.store.timestamp()
        if status != job.get("status"):
            self.store.mutate(JOBS, *where(job), lambda o: o.update(status=status))

    def told(self, job: Object, kind: str, value: str, reason: str, message: str = "") -> dict[str, str]:
        old = next((c for c in job.get("status", {}).get("conditions", ()) if c["type"] == kind), None)
        if old is not None and old["status"] == value:
            return dict(old)
        at = self.store.timestamp()
        return {"type": kind, "status": value, "reason": reason, "message": message, "lastTransitionTime": at}


def verdict(job: Object, pod: Object) -> str:
    """What podFailurePolicy says of a failed pod: Ignore, FailJob or Count."""
    conditions = {(c["type"], c["status"]) for c in pod["status"].get("conditions", ())}
    codes = {
        s["name"]: s["state"]["terminated"]["exitCode"] for s in statuses(pod) if "terminated" in s.get("state", {})
    }
    for rule in (job["spec"].get("podFailurePolicy") or {}).get("rules", ()):
        for wanted in rule.get("onPodConditions", ()):
            if (wanted["type"], wanted.get("status", "True")) in conditions:
                return str(rule["action"])
        wanted = rule.get("onExitCodes")
        if wanted is None:
            continue
        for name, code in codes.items():
            if (
                code
                and wanted.get("containerName", name) == name
                and (code in wanted["values"]) == (wanted["operator"] == "In")
            ):
                return str(rule["action"])
    return "Count"


def statuses(pod: Object) -> list[dict[str, Any]]:
    status = pod.get("status", {})
    return [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]


def terminal(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def ready(pod: Object) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", ()))


def condition(o: Object, kind: str, value: str = "True") -> dict[str, Any] | None:
    found = o.get("status", {}).get("conditions", ())
    return next((c for c in found if c["type"] == kind and c["status"] == value), None)


def index_of(pod: Object) -> int:
    return int(pod["metadata"].get("annotations", {}).get(INDEX_LABEL, "0"))


def owner_of(o: Object) -> str:
    return next((str(r["uid"]) for r in o["metadata"].get("ownerReferences", ()) if r.get("controller")), "")


def where(o: Object) -> tuple[str, str]:
    return o["metadata"].get("namespace", ""), o["metadata"]["name"]


def intervals(numbers: set[int]) -> str:
    """As Kubernetes writes sets of indexes: 0,2-4."""
    found: list[list[int]] = []
    for n in sorted(numbers):
        if found and n == found[-1][1] + 1:
            found[-1][1] = n
        else:
            found.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in found)
