"""What the operator keeps of Kubernetes objects: the few facts that decisions need, a hundredth of the raw objects.

Pure. `runtime.view` stores what `facts_of` returns (64,000 pods must fit into the operator's memory), `observe` makes
reconcile's picture of it. Two facts are equal where nothing that matters changed: resourceVersion is left out.
"""

import sys
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

from lanefeed_operator.kube.api import Object
from lanefeed_operator.kube.podstate import PodState, pod_state
from lanefeed_operator.render import constants as c

__all__ = ["Facts", "JobFacts", "NodeFacts", "Ours", "PodFacts", "job_facts", "node_facts", "pod_facts", "seconds"]

#: The Job controller's bookkeeping on each pod: failures of its index before it, counted and ignored ones.
FAILURES_ANNOTATION = "batch.kubernetes.io/job-index-failure-count"
IGNORED_ANNOTATION = "batch.kubernetes.io/job-index-ignored-failure-count"
MAX_DIGITS = 18
#: A Job of ten thousand pods has no longer sets than this; more is not the Job controller's.
MAX_INDEX = 100_000


@dataclass(frozen=True, slots=True)
class Facts:
    """Of any object."""

    namespace: str
    name: str
    uid: str
    version: str = field(compare=False)


@dataclass(frozen=True, slots=True)
class Ours(Facts):
    """Of an object that carries the operator's labels. `job`, `job_uid`: of the ShardedTrainingJob that it says."""

    job: str
    job_uid: str
    role: str
    #: Plan generation; 0: of none.
    generation: int
    #: Of the controlling owner.
    owner_uid: str
    owner_name: str
    created: float
    #: deletionTimestamp; None: nobody has deleted it.
    deleted: float | None


@dataclass(frozen=True, slots=True)
class JobFacts(Ours):
    """Of a Job. `succeeded`, `failed`: intervals as the Job controller writes them."""

    suspended: bool
    completions: int
    parallelism: int
    started: float | None
    succeeded: str
    failed: str
    complete: bool
    #: Reason and message of the condition Failed (or FailureTarget).
    gave_up: tuple[str, str] | None
    #: Digest of the pod template that the operator made it with, where it wrote one.
    template: str = ""


@dataclass(frozen=True, slots=True)
class PodFacts(Ours):
    """Of a pod. `failures`, `ignored`: of its index before it."""

    index: int
    node: str
    failures: int
    ignored: int
    state: PodState


@dataclass(frozen=True, slots=True)
class NodeFacts(Facts):
    """Of a node. `lost_since`: it was marked as not ready then; `heard_since`: as ready. A new one has neither."""

    lost_since: float | None
    heard_since: float | None = None


def seconds(text: str | None) -> float | None:
    """A timestamp of the API server in seconds since 1970."""
    return datetime.fromisoformat(text).timestamp() if text else None


def job_facts(raw: Object) -> JobFacts:
    """Of a raw Job."""
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    conditions = {x["type"]: x for x in status.get("conditions") or () if x.get("status") == "True"}
    # FailureTarget comes first; Failed only once all pods have ended.
    over = conditions.get("Failed") or conditions.get("FailureTarget")
    return JobFacts(
        **_ours(raw),
        suspended=bool(spec.get("suspend")),
        completions=min(spec.get("completions") or 1, MAX_INDEX),
        parallelism=spec.get("parallelism", 1),
        started=seconds(status.get("startTime")),
        succeeded=status.get("completedIndexes") or "",
        failed=status.get("failedIndexes") or "",
        complete="Complete" in conditions,
        gave_up=(over.get("reason", ""), over.get("message", "")) if over else None,
        template=(raw["metadata"].get("annotations") or {}).get(c.TEMPLATE_ANNOTATION, ""),
    )


def pod_facts(raw: Object) -> PodFacts:
    """Of a raw Pod."""
    meta = raw["metadata"]
    notes, labels = meta.get("annotations") or {}, meta.get("labels") or {}
    return PodFacts(
        **_ours(raw),
        index=_index(notes.get(c.INDEX_LABEL) or labels.get(c.INDEX_LABEL)),
        node=sys.intern((raw.get("spec") or {}).get("nodeName") or ""),
        failures=_number(notes.get(FAILURES_ANNOTATION), 0),
        ignored=_number(notes.get(IGNORED_ANNOTATION), 0),
        state=_shared(pod_state(raw)),
    )


@lru_cache(maxsize=4096)
def _shared(state: PodState) -> PodState:
    """The first of all equal states: pods that run have few different ones."""
    return state


def node_facts(raw: Object) -> NodeFacts:
    """Of a raw Node."""
    ready = next((x for x in (raw.get("status") or {}).get("conditions") or () if x.get("type") == "Ready"), None)
    if ready is None:
        return NodeFacts(**_meta(raw), lost_since=None)
    since, heard = seconds(ready.get("lastTransitionTime")) or 0.0, ready.get("status") == "True"
    return NodeFacts(**_meta(raw), lost_since=None if heard else since, heard_since=since if heard else None)


def _meta(raw: Object) -> dict[str, Any]:
    meta = raw["metadata"]
    return {
        "namespace": sys.intern(meta.get("namespace", "")),
        "name": meta["name"],
        "uid": meta["uid"],
        "version": meta.get("resourceVersion", ""),
    }


def _ours(raw: Object) -> dict[str, Any]:
    meta = raw["metadata"]
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    owner: Object = next((o for o in meta.get("ownerReferences") or () if o.get("controller")), {})
    return _meta(raw) | {
        "job": sys.intern(labels.get(c.JOB_LABEL, "")),
        "job_uid": sys.intern(notes.get(c.UID_ANNOTATION, "")),
        "role": sys.intern(labels.get(c.ROLE_LABEL, "")),
        "generation": _number(labels.get(c.PLAN_LABEL), 0),
        "owner_uid": sys.intern(owner.get("uid", "")),
        "owner_name": sys.intern(owner.get("name", "")),
        "created": seconds(meta.get("creationTimestamp")) or 0.0,
        "deleted": seconds(meta.get("deletionTimestamp")),
    }


def _index(text: str | None) -> int:
    found = _number(text, -1)
    return found if found <= MAX_INDEX else -1


def _number(text: str | None, other: int) -> int:
    """What users can write too, 256 KiB of it: nothing else than a number that fits 63 bits counts."""
    return int(text) if text and len(text) <= MAX_DIGITS and text.isascii() and text.isdigit() else other
