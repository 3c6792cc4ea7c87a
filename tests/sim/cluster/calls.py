"""The API as one operator process has it: refused, slow, lost, and cut off by the process's own death.

Each call is a point at which the world moves on, the call fails before or after its effect, the process is killed, or
(a zombie to be) freezes and goes on much later with all that it believed.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from lanefeed_operator.kube.api import ApiError, Kind, Object, TokenOwner, Unreachable
from support.kube_store import KubeStore


class Killed(BaseException):
    """The operator's process dies here. No handler of production code may catch it."""


@dataclass(frozen=True)
class Call:
    """One write that landed."""

    verb: str
    kind: Kind
    namespace: str
    name: str
    body: Object | None
    subresource: str = ""


class Freezer:
    """Runs something in a thread of its own, which stands still at a call until it is let go. One of both runs."""

    def __init__(self, left: int) -> None:
        """`left`: calls before the one at which it freezes."""
        self.left, self.frozen, self.done = left, False, False
        self._go, self._stopped = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def run(self, job: Callable[[], None]) -> None:
        """Until it is done or frozen."""
        self._thread = threading.Thread(target=self._run, args=(job,), daemon=True)
        self._thread.start()
        self._stopped.wait()

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        finally:
            self.done, self.frozen = True, False
            self._stopped.set()

    def gate(self) -> None:
        """Called by its thread at each call."""
        if threading.current_thread() is not self._thread:
            return
        self.left -= 1
        if self.left == -1:
            self.frozen = True
            self._stopped.set()
            self._go.wait()

    def thaw(self) -> None:
        """Let it run to its end."""
        self.frozen = False
        self._stopped.clear()
        self._go.set()
        self._stopped.wait()
        assert self._thread is not None
        self._thread.join()


class Calls:
    """KubeApi of one operator process."""

    def __init__(self, store: KubeStore, world: Any) -> None:
        self.store, self.world = store, world
        #: The process; set by it.
        self.owner: Any = None
        self.dead = False
        #: Calls until the process is killed; None: it is not.
        self.killed_in: float | None = None
        self.freezer: Freezer | None = None
        self.made = 0

    # ---- what may go wrong --------------------------------------------------------------------------------------

    def _do(self, call: Call | None, effect: Callable[[], Any]) -> Any:
        lived = not self.dead
        try:
            self._step()
        except Killed:
            if lived and call is not None:
                self.world.sent(self, call, effect)
            raise
        self.world.between_calls(self)
        if self.freezer is not None:
            self.freezer.gate()
        fault = self.world.fault(write=call is not None)
        if fault == "before":
            raise Unreachable("the API server is overloaded", code=429, retry_after=1.0)
        if fault == "down":
            raise Unreachable("connection refused")
        before = self.store.version
        try:
            result = effect()
        except ApiError as error:
            self.world.seen[type(error).__name__] += 1
            raise
        if call is not None:
            self.world.landed(self, call, self.store.version != before)
        self._step()
        if fault == "after":
            raise Unreachable("the answer did not come in time", code=504)
        return result

    def _step(self) -> None:
        self.made += 1
        if self.dead:
            raise Killed
        if self.killed_in is not None:
            self.killed_in -= 0.5
            if self.killed_in <= 0:
                self.dead = True
                raise Killed

    # ---- KubeApi ------------------------------------------------------------------------------------------------

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        return self._do(None, lambda: self.store.get(kind, namespace, name))

    def list(self, kind: Kind, namespace: str = "", *, labels: str = "") -> list[Object]:
        return self._do(None, lambda: self.store.list(kind, namespace, labels=labels))

    def create(self, kind: Kind, namespace: str, body: Object, *, dry_run: bool = False) -> Object:
        call = None if dry_run else Call("create", kind, namespace, body["metadata"].get("name", ""), body)
        return self._do(call, lambda: self.store.create(kind, namespace, body, dry_run=dry_run))

    def replace_status(self, kind: Kind, namespace: str, body: Object) -> Object:
        call = Call("replace_status", kind, namespace, body["metadata"]["name"], body)
        return self._do(call, lambda: self.store.replace_status(kind, namespace, body))

    def patch(self, kind: Kind, namespace: str, name: str, patch: Object, *, subresource: str = "") -> Object:
        call = Call("patch", kind, namespace, name, patch, subresource)
        return self._do(call, lambda: self.store.patch(kind, namespace, name, patch, subresource=subresource))

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
        call = Call("delete", kind, namespace, name, None)
        self._do(
            call,
            lambda: self.store.delete(kind, namespace, name, uid=uid, propagation=propagation, grace=grace),
        )

    def token_owner(self, token: str, audience: str) -> TokenOwner | None:
        return self._do(None, lambda: self.store.token_owner(token, audience))
