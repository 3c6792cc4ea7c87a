"""KubeApi with a doorkeeper: counts writes of status, and lets nobody write who does not lead.

Made by `main` around the real client; everything above writes through it. Reading is free to all.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from lanefeed_operator.kube.api import STJS, ApiError, Kind, KubeApi, Object, TokenOwner, Unreachable

__all__ = ["GuardedApi", "scan"]

#: Named outside of the class, where `list` is the method.
Objects = list[Object]


def scan(api: KubeApi, kind: Kind, namespace: str = "", *, labels: str = "") -> Iterable[Object]:
    """As `list`; a chunk at a time where the client can."""
    found: Callable[..., Iterable[Object]] = getattr(api, "scan", api.list)
    return found(kind, namespace, labels=labels)


class GuardedApi:
    """See the module."""

    def __init__(
        self,
        api: KubeApi,
        *,
        may_write: Callable[[], bool],
        wrote_status: Callable[[ApiError | None, Object], None] = lambda *_: None,
    ) -> None:
        """`may_write` is asked right before each write; `wrote_status(error, job)` is told of those of a job."""
        self._api, self._may_write, self._wrote_status = api, may_write, wrote_status

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """See KubeApi."""
        return self._api.get(kind, namespace, name)

    def list(self, kind: Kind, namespace: str = "", *, labels: str = "") -> Objects:
        """See KubeApi."""
        return self._api.list(kind, namespace, labels=labels)

    def scan(self, kind: Kind, namespace: str = "", *, labels: str = "") -> Iterator[Object]:
        """As `list`; a chunk at a time where the client can: 64,000 raw pods are a gigabyte."""
        yield from scan(self._api, kind, namespace, labels=labels)

    def create(self, kind: Kind, namespace: str, body: Object, *, dry_run: bool = False) -> Object:
        """See KubeApi."""
        self._check(f"create {kind.kind}")
        return self._api.create(kind, namespace, body, dry_run=dry_run)

    def replace_status(self, kind: Kind, namespace: str, body: Object) -> Object:
        """See KubeApi."""
        self._check(f"write the status of {kind.kind}")
        try:
            written = self._api.replace_status(kind, namespace, body)
        except ApiError as error:
            if kind == STJS:
                self._wrote_status(error, body)
            raise
        if kind == STJS:
            self._wrote_status(None, written)
        return written

    def patch(self, kind: Kind, namespace: str, name: str, patch: Object, *, subresource: str = "") -> Object:
        """See KubeApi."""
        self._check(f"patch {kind.kind}")
        return self._api.patch(kind, namespace, name, patch, subresource=subresource)

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
        """See KubeApi."""
        self._check(f"delete {kind.kind}")
        self._api.delete(kind, namespace, name, uid=uid, propagation=propagation, grace=grace)

    def token_owner(self, token: str, audience: str) -> TokenOwner | None:
        """See KubeApi."""
        return self._api.token_owner(token, audience)

    def _check(self, what: str) -> None:
        if not self._may_write():
            raise Unreachable(f"this replica does not lead (any more), so it may not {what}")
