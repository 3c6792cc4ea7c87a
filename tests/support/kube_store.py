"""An API server in memory: `KubeApi` over a dict, with what goes wrong in a real one.

Real resourceVersions (one counter, a write that changes nothing gets none), 409 with and without preconditions,
/status apart from the rest, metadata.generation, label selectors, finalizers, immutable ConfigMaps, and a garbage
collector that follows owner references (background and foreground). Not here: schemas, defaults, controllers, kubelets;
who needs them acts through `mutate`, which stands for any other writer.

For tests of the controller and for the simulation, which drive it by these:
    store.before = hook(verb, kind, namespace, name)      # raise to refuse or crash before the effect
    store.after = hook(verb, kind, namespace, name)       # raise to crash after it
    store.subscribe(hook(event, kind, object))            # ADDED, MODIFIED, DELETED, in order, with the final object
    store.admit.append(check(kind, object) -> str)        # "" or why a create is Invalid
    store.auto_gc = False; store.collect()                # the garbage collector at its own time
    store.writes, store.calls                             # (verb, plural, namespace, name) of API calls
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Literal

from lanefeed_operator.kube.api import (
    CONFIG_MAPS,
    JOBS,
    NODES,
    PODS,
    STJS,
    AlreadyExists,
    Conflict,
    Invalid,
    Kind,
    NotFound,
    Object,
    TokenOwner,
)

__all__ = ["KubeStore", "matches", "merge"]

Key = tuple[Kind, str, str]
#: Named outside of the class, where `list` is the method.
Calls = list[tuple[str, str, str, str]]
Hook = Callable[[str, Kind, str, str], None]

#: Kinds whose /status is a resource of its own.
WITH_STATUS = frozenset((STJS, JOBS, PODS, NODES))
FOREGROUND = "foregroundDeletion"


class KubeStore:
    """See the module. Not thread safe: tests drive it from one thread."""

    def __init__(self, clock: Callable[[], float] = lambda: 1_700_000_000.0) -> None:
        """`clock` gives the seconds since 1970 that go into timestamps."""
        self.clock = clock
        self.objects: dict[Key, Object] = {}
        self.version = 1
        self.auto_gc = True
        self.before: Hook = lambda *_: None
        self.after: Hook = lambda *_: None
        self.admit: list[Callable[[Kind, Object], str]] = []
        self.tokens: dict[str, TokenOwner] = {}
        self.calls: list[tuple[str, str, str, str]] = []
        self._subscribers: list[Callable[[str, Kind, Object], None]] = []
        self._uids = 0
        #: Owner UID -> keys of what it owns.
        self._owned: dict[str, set[Key]] = {}
        self._uid_keys: dict[str, Key] = {}
        #: What is deleted in the foreground and waits for what it owns.
        self._foreground: set[Key] = set()
        self._collecting = False

    # ---- KubeApi -----------------------------------------------------------------------------------------------

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        self._enter("get", kind, namespace, name)
        return copy(self._find(kind, namespace, name))

    def list(self, kind: Kind, namespace: str = "", *, labels: str = "") -> list[Object]:
        self._enter("list", kind, namespace, "")
        found = [
            o
            for (k, ns, _), o in self.objects.items()
            if k == kind and (not namespace or ns == namespace) and matches(labels, o["metadata"].get("labels") or {})
        ]
        return [copy(o) for o in found]

    def create(self, kind: Kind, namespace: str, body: Object, *, dry_run: bool = False) -> Object:
        body = copy(body)
        meta = body.setdefault("metadata", {})
        if "name" not in meta:
            meta["name"] = f"{meta['generateName']}{self._uids + 1:05}"
        name = meta["name"]
        self._enter("dry-run" if dry_run else "create", kind, namespace, name)
        if meta.get("namespace", namespace) != namespace:
            raise Invalid(f"the namespace of the object is {meta['namespace']} and that of the request {namespace}")
        for check in self.admit:
            reason = check(kind, body)
            if reason:
                raise Invalid(f'{kind.kind} "{name}" is invalid: {reason}')
        if (kind, namespace, name) in self.objects:
            raise AlreadyExists(f'{kind.plural} "{name}" already exists')
        self._uids += 1
        if kind in WITH_STATUS:
            body.pop("status", None)
        meta |= {"uid": f"uid-{self._uids:08}", "creationTimestamp": self.timestamp(), "generation": 1}
        meta |= {"namespace": namespace} if kind.namespaced else {}
        if dry_run:
            return body
        self._store((kind, namespace, name), body, "ADDED")
        self._leave("create", kind, namespace, name)
        return copy(self.objects.get((kind, namespace, name), body))

    def replace_status(self, kind: Kind, namespace: str, body: Object) -> Object:
        meta = body["metadata"]
        self._enter("replace_status", kind, namespace, meta["name"])
        old = self._find(kind, namespace, meta["name"])
        self._precondition(old, meta, required=True)
        new = {**copy(old), "status": copy(body.get("status") or {})}
        return self._write("replace_status", (kind, namespace, meta["name"]), old, new)

    def patch(self, kind: Kind, namespace: str, name: str, patch: Object, *, subresource: str = "") -> Object:
        self._enter("patch", kind, namespace, name)
        old = self._find(kind, namespace, name)
        self._precondition(old, patch.get("metadata") or {}, required=False)
        wanted = merge(copy(old), patch)
        if subresource == "status":
            new = {**copy(old), "status": wanted.get("status") or {}}
        elif kind in WITH_STATUS and "status" in old:
            new = {**wanted, "status": copy(old["status"])}
        else:
            new = wanted if kind not in WITH_STATUS else {k: v for k, v in wanted.items() if k != "status"}
        for fixed in ("uid", "creationTimestamp", "resourceVersion", "generation", "deletionTimestamp", "namespace"):
            if fixed in old["metadata"]:
                new["metadata"][fixed] = old["metadata"][fixed]
        if (
            kind == CONFIG_MAPS
            and old.get("immutable")
            and any(new.get(k) != old.get(k) for k in ("data", "binaryData", "immutable"))
        ):
            raise Invalid(f'ConfigMap "{name}" is invalid: data: Forbidden: field is immutable when `immutable` is set')
        return self._write("patch", (kind, namespace, name), old, new)

    def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        uid: str,
        propagation: Literal["Background", "Foreground"] = "Background",
        grace: int | None = None,
    ) -> None:
        self._enter("delete", kind, namespace, name)
        key = (kind, namespace, name)
        old = self.objects.get(key)
        if old is None:
            return
        if old["metadata"]["uid"] != uid:
            raise Conflict(f"the UID in the precondition ({uid}) does not match {old['metadata']['uid']}")
        new = copy(old)
        if propagation == "Foreground" and FOREGROUND not in new["metadata"].get("finalizers", ()):
            new["metadata"]["finalizers"] = [*new["metadata"].get("finalizers", ()), FOREGROUND]
        # A pod that runs goes when its kubelet says so; grace 0 does not ask it.
        waits = kind == PODS and grace != 0 and (old.get("status") or {}).get("phase") in ("Running", "Pending")
        waits &= bool((old.get("spec") or {}).get("nodeName"))
        if new["metadata"].get("finalizers") or waits:
            seconds = grace if grace is not None else (old.get("spec") or {}).get("terminationGracePeriodSeconds", 30)
            self._doom(new, float(seconds) if waits else 0.0)
            self._write("", key, old, new)
            if self.auto_gc:
                self.collect()
        else:
            self._drop(key)
        self._leave("delete", kind, namespace, name)

    def token_owner(self, token: str, audience: str) -> TokenOwner | None:
        return self.tokens.get(token)

    # ---- other writers, and what tests look at -----------------------------------------------------------------

    def mutate(self, kind: Kind, namespace: str, name: str, change: Callable[[Object], None]) -> Object:
        """What another controller, a kubelet or a user writes, in any part; a change of `spec` counts generation."""
        old = self._find(kind, namespace, name)
        new = copy(old)
        change(new)
        return self._write("", (kind, namespace, name), old, new)

    def finish(self, kind: Kind, namespace: str, name: str) -> None:
        """The last word of a kubelet that has ended a pod: gone, once no finalizer holds it."""
        if (kind, namespace, name) in self.objects:
            self.mutate(kind, namespace, name, self._doom)

    def subscribe(self, hook: Callable[[str, Kind, Object], None]) -> None:
        """Called with every event, after it happened."""
        self._subscribers.append(hook)

    @property
    def writes(self) -> "Calls":
        """API calls that write (dry runs and events for people left out), whether they succeeded or not."""
        reading = ("get", "list", "dry-run")
        return [call for call in self.calls if call[0] not in reading and call[1] != "events"]

    def collect(self) -> int:
        """The garbage collector, until nothing is left to do; how many objects went."""
        gone, self._collecting = 0, True
        while found := list(dict.fromkeys(self._garbage())):
            for key in found:
                if key in self.objects:
                    self._drop(key)
                    gone += 1
        self._collecting = False
        return gone

    def timestamp(self, ahead: float = 0.0) -> str:
        """Now (and `ahead` seconds), as the API server writes it."""
        return datetime.fromtimestamp(self.clock() + ahead, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    # ---- inside ------------------------------------------------------------------------------------------------

    def _enter(self, verb: str, kind: Kind, namespace: str, name: str) -> None:
        self.calls.append((verb, kind.plural, namespace, name))
        self.before(verb, kind, namespace, name)

    def _leave(self, verb: str, kind: Kind, namespace: str, name: str) -> None:
        self.after(verb, kind, namespace, name)

    def _find(self, kind: Kind, namespace: str, name: str) -> Object:
        found = self.objects.get((kind, namespace, name))
        if found is None:
            raise NotFound(f'{kind.plural} "{name}" not found')
        return found

    @staticmethod
    def _precondition(old: Object, meta: Object, *, required: bool) -> None:
        name, have = old["metadata"]["name"], old["metadata"]
        if meta.get("uid", have["uid"]) != have["uid"]:
            raise Conflict(f"{name}: Precondition failed: UID in precondition: {meta['uid']}, in object: {have['uid']}")
        if required and "resourceVersion" not in meta:
            raise Invalid(f"{name}: metadata.resourceVersion: must be specified for an update")
        if meta.get("resourceVersion", have["resourceVersion"]) != have["resourceVersion"]:
            raise Conflict(f"{name}: the object has been modified; please apply your changes to the latest version")

    def _write(self, verb: str, key: Key, old: Object, new: Object) -> Object:
        if new != old:
            if new.get("spec") != old.get("spec"):
                new["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
            meta = new["metadata"]
            if "deletionTimestamp" in meta and not meta.get("finalizers") and not meta["deletionGracePeriodSeconds"]:
                self._drop(key, new)
            else:
                self._store(key, new, "MODIFIED")
        if verb:
            self._leave(verb, *key)
        return copy(new)

    def _doom(self, o: Object, seconds: float = 0.0) -> None:
        """Mark for deletion; a shorter grace shortens an earlier one."""
        meta = o["metadata"]
        if seconds < meta.get("deletionGracePeriodSeconds", float("inf")):
            meta |= {"deletionTimestamp": self.timestamp(seconds), "deletionGracePeriodSeconds": seconds}

    def _store(self, key: Key, new: Object, event: str) -> None:
        self.version += 1
        new["metadata"]["resourceVersion"] = str(self.version)
        self._index(key, self.objects.get(key), gone=True)
        self.objects[key] = new
        self._index(key, new, gone=False)
        self._tell(event, key[0], new)

    def _drop(self, key: Key, last: Object | None = None) -> None:
        old = last or self.objects[key]
        self.version += 1
        final = {**old, "metadata": {**old["metadata"], "resourceVersion": str(self.version)}}
        self._index(key, self.objects.pop(key), gone=True)
        self._tell("DELETED", key[0], final)
        if self.auto_gc and not self._collecting:
            self.collect()

    def _index(self, key: Key, o: Object | None, *, gone: bool) -> None:
        if o is None:
            return
        for owner in o["metadata"].get("ownerReferences", ()):
            kept = self._owned.setdefault(owner["uid"], set())
            (kept.discard if gone else kept.add)(key)
        if gone:
            self._uid_keys.pop(o["metadata"]["uid"], None)
            self._foreground.discard(key)
            return
        self._uid_keys[o["metadata"]["uid"]] = key
        if FOREGROUND in o["metadata"].get("finalizers", ()):
            self._foreground.add(key)

    def _tell(self, event: str, kind: Kind, o: Object) -> None:
        for hook in self._subscribers:
            hook(event, kind, copy(o))

    def _garbage(self) -> Iterator[Key]:
        """What has lost its owner; what a foreground deletion takes with it; then the owner itself."""
        for uid, keys in list(self._owned.items()):
            if not keys:
                del self._owned[uid]
                continue
            owner = self.objects.get(self._uid_keys[uid]) if uid in self._uid_keys else None
            if owner is None or FOREGROUND in owner["metadata"].get("finalizers", ()):
                yield from (k for k in sorted(keys, key=str) if not self._held(k))
        yield from (k for k in sorted(self._foreground, key=str) if not self._owned.get(self._uid(k)))

    def _uid(self, key: Key) -> str:
        return str(self.objects[key]["metadata"]["uid"])

    def _held(self, key: Key) -> bool:
        """Whether something else keeps it: a finalizer, or a kubelet. Deletion is asked for then, once."""
        o = self.objects[key]
        running = key[0] == PODS and (o.get("status") or {}).get("phase") in ("Running", "Pending")
        running &= bool((o.get("spec") or {}).get("nodeName"))
        if not running and not o["metadata"].get("finalizers"):
            return False
        if "deletionTimestamp" not in o["metadata"]:
            new = copy(o)
            seconds = (o.get("spec") or {}).get("terminationGracePeriodSeconds", 30) if running else 0
            self._doom(new, float(seconds))
            self._store(key, new, "MODIFIED")
        return True


def copy(value: Any) -> Any:
    """A deep copy of plain JSON; several times as fast as copy.deepcopy."""
    if isinstance(value, dict):
        return {k: copy(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [copy(v) for v in value]
    return value


def merge(old: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return copy(patch)
    found = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merge(found.get(key), value)
    return found


def matches(selector: str, labels: dict[str, str]) -> bool:
    """Whether labels fit a selector of `a=b`, `a!=b`, `a`, `!a`, `a in (b,c)`, joined with commas."""
    for part in _split(selector):
        if " in " in part:
            name, _, values = part.partition(" in ")
            fits = labels.get(name.strip()) in {v.strip() for v in values.strip(" ()").split(",")}
        elif "!=" in part:
            name, _, value = part.partition("!=")
            fits = labels.get(name.strip()) != value.strip()
        elif "=" in part:
            name, _, value = part.replace("==", "=").partition("=")
            fits = labels.get(name.strip()) == value.strip()
        elif part.startswith("!"):
            fits = part[1:].strip() not in labels
        else:
            fits = part in labels
        if not fits:
            return False
    return True


def _split(selector: str) -> Iterator[str]:
    depth, start = 0, 0
    for at, char in enumerate(selector + ","):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            if selector[start:at].strip():
                yield selector[start:at].strip()
            start = at + 1
