"""An API server with very many jobs in a process of its own, so that the operator's memory is the operator's alone.

Serves the calls of one operator over a pipe (`RemoteApi`, a KubeApi) and hands out events as watches would. Its Job
controller is the least that makes jobs run: every pod of a Job runs at once. Pods are not stored, only told of: nobody
asks for them.
"""

import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from lanefeed_operator.kube import api as k
from lanefeed_operator.kube.api import JOBS, PODS, STJS, Kind, Object, TokenOwner
from lanefeed_operator.render import constants as c

__all__ = ["ApiServer", "RemoteApi"]

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.kube_store import KubeStore

Event = tuple[str, Kind, Object]
ERRORS = {e.__name__: e for e in (k.NotFound, k.Conflict, k.AlreadyExists, k.Invalid, k.Forbidden, k.Unreachable)}
CHUNK = 500


class ApiServer:
    """Runs until the operator hangs up."""

    def __init__(self, connection: Connection, jobs: list[Object]) -> None:
        self._connection = connection
        self._now = 1_800_000_000.0
        self._store = KubeStore(lambda: self._now)
        self._store.auto_gc = False
        self._events: list[Event] = []
        self._pods = 0
        self._store.subscribe(lambda event, kind, o: self._told(event, kind, o))
        for job in jobs:
            self._store.create(STJS, job["metadata"]["namespace"], job)
        self._store.calls.clear()

    def serve(self) -> None:
        """Answer calls."""
        while True:
            try:
                method, args, more = self._connection.recv()
            except EOFError:
                return
            try:
                self._connection.send((True, self._answer(method, args, more)))
            except k.ApiError as error:
                self._connection.send((False, (type(error).__name__, str(error))))

    def _answer(self, method: str, args: Any, more: Any) -> Any:
        if method == "events":
            chunk, self._events = self._events[:CHUNK], self._events[CHUNK:]
            return chunk
        if method == "clock":
            self._now = args[0]
            return None
        if method == "writes":
            found, calls = len(self._store.writes), len(self._store.calls)
            self._store.calls.clear()
            return found, calls
        return getattr(self._store, method)(*args, **more)

    def _told(self, event: str, kind: Kind, o: Object) -> None:
        self._events.append((event, kind, o))
        if kind == JOBS and event == "ADDED":
            self._run(o)

    def _run(self, job: Object) -> None:
        size = job["spec"].get("completions") or 1
        for index in range(size):
            self._events.append(("ADDED", PODS, self._pod(job, index)))
        status = {"active": size, "ready": size, "startTime": self._store.timestamp()}
        self._store.mutate(
            JOBS, job["metadata"]["namespace"], job["metadata"]["name"], lambda o: o.update(status=status)
        )

    def _pod(self, job: Object, index: int) -> Object:
        self._pods += 1
        meta, template = job["metadata"], job["spec"]["template"]
        at = self._store.timestamp()
        notes = {**template["metadata"].get("annotations", {}), c.INDEX_LABEL: str(index)}
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True}
        names = [(x["name"], part) for part in ("initContainers", "containers") for x in template["spec"].get(part, ())]
        states = [
            {"name": n, "ready": True, "restartCount": 0, "state": {"running": {"startedAt": at}}} for n, _ in names
        ]
        conditions = [{"type": t, "status": "True", "lastTransitionTime": at} for t in ("PodScheduled", "Ready")]
        return {
            "metadata": {
                "name": f"{meta['name']}-{index}-abcde",
                "namespace": meta["namespace"],
                "uid": f"pod-{self._pods:08}",
                "resourceVersion": "1",
                "creationTimestamp": at,
                "labels": dict(template["metadata"]["labels"]),
                "annotations": notes,
                "ownerReferences": [owner],
            },
            "spec": {"nodeName": f"node-{self._pods % 2000}"},
            "status": {"phase": "Running", "conditions": conditions, "containerStatuses": states},
        }


class RemoteApi:
    """KubeApi over the pipe."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def ask(self, method: str, *args: Any, **more: Any) -> Any:
        """One call."""
        self._connection.send((method, args, more))
        fine, answer = self._connection.recv()
        if not fine:
            raise ERRORS[answer[0]](answer[1])
        return answer

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        found: Object = self.ask("get", kind, namespace, name)
        return found

    def list(self, kind: Kind, namespace: str = "", *, labels: str = "") -> list[Object]:
        found: list[Object] = self.ask("list", kind, namespace, labels=labels)
        return found

    def create(self, kind: Kind, namespace: str, body: Object, *, dry_run: bool = False) -> Object:
        found: Object = self.ask("create", kind, namespace, body, dry_run=dry_run)
        return found

    def replace_status(self, kind: Kind, namespace: str, body: Object) -> Object:
        found: Object = self.ask("replace_status", kind, namespace, body)
        return found

    def patch(self, kind: Kind, namespace: str, name: str, patch: Object, *, subresource: str = "") -> Object:
        found: Object = self.ask("patch", kind, namespace, name, patch, subresource=subresource)
        return found

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
        self.ask("delete", kind, namespace, name, uid=uid, propagation=propagation, grace=grace)

    def token_owner(self, token: str, audience: str) -> TokenOwner | None:
        return None
