"""The operator's picture of the cluster: what was last seen of every object that matters, small and never going back.

Fed by the watches (`put`, `remove`, and `replace` after a list) and by the controller's own writes, so that it is never
older than what the operator did itself. Read by the controller. Holds facts (kube/facts.py), not raw objects; of a
ShardedTrainingJob the whole document, as compact JSON. Thread safe. Talks to nobody, decides nothing.

`put`, `remove` and `replace` return the jobs that are to be looked at because something that matters has changed: the
heartbeat of a node or a repeated event gives none.
"""

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from lanefeed_operator.kube.api import JOBS, NODES, PODS, STJS, Kind, Object
from lanefeed_operator.kube.facts import Facts, JobFacts, NodeFacts, Ours, PodFacts, job_facts, node_facts, pod_facts
from lanefeed_operator.kube.silence import lost_nodes
from lanefeed_operator.render import constants as c

__all__ = ["JobKey", "StjFacts", "View"]

log = logging.getLogger(__name__)

#: (namespace, name) of a ShardedTrainingJob.
JobKey = tuple[str, str]

#: Gone objects that are remembered, so that a late event does not bring one back.
MAX_GONE = 8192
#: Version of an object whose name another one has by now.
FOR_GOOD = 1 << 63


@dataclass(frozen=True, slots=True)
class StjFacts(Facts):
    """A ShardedTrainingJob; `document` without managedFields."""

    document: bytes


def _stj_facts(raw: Object) -> StjFacts:
    meta = {key: value for key, value in raw["metadata"].items() if key != "managedFields"}
    notes = meta.get("annotations") or {}
    if LAST_APPLIED in notes:
        meta["annotations"] = {key: value for key, value in notes.items() if key != LAST_APPLIED}
    text = json.dumps({**raw, "metadata": meta}, separators=(",", ":"))
    return StjFacts(meta["namespace"], meta["name"], meta["uid"], meta.get("resourceVersion", ""), text.encode())


#: A second copy of the spec that kubectl leaves.
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

_READ: Mapping[Kind, Callable[[Object], Facts]] = {
    STJS: _stj_facts,
    JOBS: job_facts,
    PODS: pod_facts,
    NODES: node_facts,
}

#: What reading an object raises of which a part is not what the API server would write.
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


def _read(kind: Kind, obj: Object) -> Facts | None:
    """The facts of an object; None for what does not matter. One bad object must harm no other job.

    Of a pod that cannot be read its identity and phase remain: that none of a plan's pods lives must never be wrong.
    """
    read = _READ.get(kind)
    if read is None:
        return None
    try:
        return read(obj)
    except UNREADABLE as error:
        meta = obj["metadata"]
        log.error("%s %s/%s cannot be read: %r", kind.kind, meta.get("namespace", ""), meta["name"], error)
        return pod_facts(_bare(obj)) if kind == PODS else None


def _bare(pod: Object) -> Object:
    notes = pod["metadata"].get("annotations") or {}
    kept = {key: notes[key] for key in (c.UID_ANNOTATION, c.INDEX_LABEL) if key in notes}
    phase = (pod.get("status") or {}).get("phase")
    return {"metadata": {**pod["metadata"], "annotations": kept}, "spec": pod.get("spec"), "status": {"phase": phase}}


class View:
    """See the module."""

    def __init__(self) -> None:
        """Empty, and nothing is synced."""
        self._lock = threading.RLock()
        self._stjs: dict[JobKey, StjFacts] = {}
        #: By the job that labels say, then by name.
        self._jobs: dict[JobKey, dict[str, JobFacts]] = {}
        self._pods: dict[JobKey, dict[str, PodFacts]] = {}
        self._nodes: dict[str, NodeFacts] = {}
        #: Names of those that are not ready.
        self._lost: set[str] = set()
        #: Which job an object was last filed under: labels can change.
        self._filed: dict[tuple[Kind, str, str], JobKey] = {}
        self._stamps: dict[tuple[Kind, str, str], int] = {}
        self._stamp = 0
        self._gone: OrderedDict[str, int] = OrderedDict()
        self._synced: set[Kind] = set()

    # ---- feeding -----------------------------------------------------------------------------------------------

    def put(self, kind: Kind, obj: Object) -> tuple[JobKey, ...]:
        """What was seen, or written, of an object. Ignored where something newer is known."""
        facts = _read(kind, obj)
        if facts is None:
            return ()
        with self._lock:
            old = self._find(kind, facts.namespace, facts.name)
            buried = self._gone.get(facts.uid, -1) >= _number(facts.version)
            if buried or (old is not None and _stale(old, facts)):
                return ()
            self._stamp += 1
            # One tuple for both dictionaries: there are 64,000 pods.
            at = (kind, facts.namespace, facts.name)
            self._stamps.pop(at, None)
            self._stamps[at] = self._stamp
            before = self._file_under(kind, old) if old is not None else None
            now = self._store(at, facts)
            if old is not None and old.uid != facts.uid:
                self._forget(old.uid, FOR_GOOD)
            elif old == facts and before == now:
                return ()
            return self._touched(kind, facts, old, before, now)

    def remove(self, kind: Kind, obj: Object) -> tuple[JobKey, ...]:
        """The object is gone: its last form, with the version of its deletion."""
        meta = obj["metadata"]
        with self._lock:
            self._forget(meta["uid"], _number(meta.get("resourceVersion", "")))
            old = self._find(kind, meta.get("namespace", ""), meta["name"])
            # Another object of that name may be there by now.
            return self._drop(kind, old) if old is not None and old.uid == meta["uid"] else ()

    def stamp(self) -> int:
        """A mark of this moment, for `replace`."""
        with self._lock:
            return self._stamp

    def replace(self, kind: Kind, objects: Iterable[Object], since: int, *, namespace: str = "") -> tuple[JobKey, ...]:
        """A whole list, begun at the mark `since`: what is not in it and was not heard of since then is gone."""
        found: dict[JobKey, None] = {}
        listed: set[tuple[str, str]] = set()
        for obj in objects:
            listed.add((obj["metadata"].get("namespace", ""), obj["metadata"]["name"]))
            found |= dict.fromkeys(self.put(kind, obj))
        with self._lock:
            missing = [
                (ns, name)
                for (k, ns, name), stamp in self._stamps.items()
                if k == kind and stamp <= since and (ns, name) not in listed and namespace in ("", ns)
            ]
            for ns, name in missing:
                old = self._find(kind, ns, name)
                if old is not None:
                    self._forget(old.uid, _number(old.version))
                    found |= dict.fromkeys(self._drop(kind, old))
            self._synced.add(kind)
        return tuple(found)

    def synced(self, kind: Kind) -> None:
        """All objects of this kind have been seen once."""
        with self._lock:
            self._synced.add(kind)

    # ---- reading -----------------------------------------------------------------------------------------------

    def is_synced(self, *kinds: Kind) -> bool:
        """Whether these kinds have been seen whole."""
        with self._lock:
            return self._synced.issuperset(kinds)

    def keys(self) -> list[JobKey]:
        """Every ShardedTrainingJob."""
        with self._lock:
            return list(self._stjs)

    def job(self, key: JobKey) -> Object | None:
        """The ShardedTrainingJob as it was last seen or written; a copy."""
        with self._lock:
            facts = self._stjs.get(key)
        return json.loads(facts.document) if facts is not None else None

    def job_uid(self, key: JobKey) -> str:
        """Its UID, "" if there is none."""
        with self._lock:
            facts = self._stjs.get(key)
            return facts.uid if facts is not None else ""

    def jobs_of(self, key: JobKey) -> list[JobFacts]:
        """Jobs that say they belong to it. Whether that is true is for `kube.observe`."""
        with self._lock:
            return list(self._jobs.get(key, {}).values())

    def pods_of(self, key: JobKey) -> list[PodFacts]:
        """Pods that say they belong to it."""
        with self._lock:
            return list(self._pods.get(key, {}).values())

    def lost_nodes(self) -> Mapping[str, NodeFacts] | None:
        """By name (kube/silence.py says which); None where nodes cannot be seen (no right to list them)."""
        with self._lock:
            if NODES not in self._synced:
                return None
            # Asked in every pass of every job, and most often there is none among thousands.
            return lost_nodes(self._nodes.values()) if self._lost else {}

    def count(self, kind: Kind) -> int:
        """Objects of this kind."""
        with self._lock:
            if kind == STJS:
                return len(self._stjs)
            if kind == NODES:
                return len(self._nodes)
            return sum(map(len, (self._jobs if kind == JOBS else self._pods).values()))

    # ---- inside ------------------------------------------------------------------------------------------------

    def _find(self, kind: Kind, namespace: str, name: str) -> Facts | None:
        if kind == STJS:
            return self._stjs.get((namespace, name))
        if kind == NODES:
            return self._nodes.get(name)
        key = self._filed.get((kind, namespace, name))
        if key is None:
            return None
        return self._jobs[key][name] if kind == JOBS else self._pods[key][name]

    def _file_under(self, kind: Kind, facts: Facts) -> JobKey | None:
        return self._filed.get((kind, facts.namespace, facts.name))

    def _store(self, at: tuple[Kind, str, str], facts: Facts) -> JobKey | None:
        """File it; which job it is filed under, where it is a child."""
        if isinstance(facts, StjFacts):
            self._stjs[facts.namespace, facts.name] = facts
        elif isinstance(facts, NodeFacts):
            self._nodes[facts.name] = facts
        elif isinstance(facts, Ours):
            key = _shared((facts.namespace, facts.job))
            self._unfile(at[0], facts)
            self._filed[at] = key
            if isinstance(facts, JobFacts):
                self._jobs.setdefault(key, {})[facts.name] = facts
            elif isinstance(facts, PodFacts):
                self._pods.setdefault(key, {})[facts.name] = facts
            return key
        return None

    def _unfile(self, kind: Kind, facts: Facts) -> JobKey | None:
        key = self._filed.pop((kind, facts.namespace, facts.name), None)
        if key is None:
            return None
        shelf = self._jobs if kind == JOBS else self._pods
        shelf[key].pop(facts.name, None)
        if not shelf[key]:
            del shelf[key]
        return key

    def _drop(self, kind: Kind, old: Facts) -> tuple[JobKey, ...]:
        self._stamps.pop((kind, old.namespace, old.name), None)
        if kind == STJS:
            del self._stjs[old.namespace, old.name]
            return ((old.namespace, old.name),)
        if kind == NODES:
            del self._nodes[old.name]
            self._lost.discard(old.name)
            return self._on_nodes(old.name)
        key = self._unfile(kind, old)
        return (key,) if key is not None else ()

    def _touched(
        self, kind: Kind, facts: Facts, old: Facts | None, before: JobKey | None, now: JobKey | None
    ) -> tuple[JobKey, ...]:
        if kind == STJS:
            return ((facts.namespace, facts.name),)
        if isinstance(facts, NodeFacts):
            self._lost.discard(facts.name)
            if facts.lost_since is not None:
                self._lost.add(facts.name)
            known = old.lost_since == facts.lost_since if isinstance(old, NodeFacts) else not self._lost
            return () if known else self._on_nodes(facts.name)
        return tuple(dict.fromkeys(key for key in (before, now) if key is not None and key[1]))

    def _on_nodes(self, name: str) -> tuple[JobKey, ...]:
        """Jobs with pods on this node or on a lost one: whether a node is heard counts for how long others were not."""
        names = self._lost | {name}
        return tuple(key for key, pods in self._pods.items() if any(pod.node in names for pod in pods.values()))

    def _forget(self, uid: str, version: int) -> None:
        self._gone[uid] = version
        while len(self._gone) > MAX_GONE:
            self._gone.popitem(last=False)


@lru_cache(maxsize=4096)
def _shared(key: JobKey) -> JobKey:
    """The first of all equal keys: one for a job, not one for each of its pods."""
    return key


def _number(version: str) -> int:
    """resourceVersions of one kind are numbers that grow (promised since Kubernetes 1.35, true in all before)."""
    return int(version) if version.isascii() and version.isdigit() else 0


def _stale(old: Facts, new: Facts) -> bool:
    """Of one UID the higher version counts; of two objects of a name the one that was made later, or heard of last."""
    return _number(new.version) < _number(old.version)
