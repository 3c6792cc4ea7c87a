"""Keeps the report service's certificates in a Secret, and renews them in time. The rules are in `certificates`.

Read and written through KubeApi with the resourceVersion as precondition, so that two operators agree. The Secret holds
`tls.crt`, `tls.key` and `ca.crt` as everybody knows them, and `state.json`, from which all is read back.
"""

import base64
import json
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from lanefeed_operator.coordinator import certificates
from lanefeed_operator.coordinator.certificates import Authority, Lifetimes, Material
from lanefeed_operator.errors import CoordinatorError
from lanefeed_operator.kube.api import SECRETS, AlreadyExists, Conflict, Forbidden, KubeApi, NotFound, Object

__all__ = ["Certificates"]

log = logging.getLogger(__name__)

STATE = "state.json"
VERSION = 1
#: Another operator may write in between; it does so once in months.
TRIES = 5


class Certificates:
    """The certificates of one report service. `refresh` before anything else; thread safe."""

    def __init__(
        self,
        api: KubeApi,
        namespace: str,
        secret: str,
        names: Sequence[str],
        clock: Callable[[], float],
        *,
        lifetimes: Lifetimes = Lifetimes(),  # noqa: B008 -- a frozen value
        labels: dict[str, str] | None = None,
    ) -> None:
        """`names`: what sidecars call the service (`certificates.names_of`); `clock`: seconds since 1970."""
        self._api, self._namespace, self._secret = api, namespace, secret
        self._names, self._clock, self._lifetimes = tuple(names), clock, lifetimes
        self._labels = labels or {"app.kubernetes.io/managed-by": "lanefeed"}
        self._lock = threading.Lock()
        self._material: Material | None = None
        #: Called outside of the lock with the new `trust` whenever it changes.
        self.on_trust: Callable[[str], None] = lambda _trust: None

    @property
    def material(self) -> Material:
        """What is served now."""
        if self._material is None:
            raise CoordinatorError("certificates are read by `refresh` first")
        return self._material

    @property
    def trust(self) -> str:
        """PEM text of every authority that sidecars shall trust: what a trust ConfigMap holds."""
        return self.material.trust

    def refresh(self) -> str:
        """Read the Secret, renew what is due and keep it there; why something changed, "" if nothing did.

        Raises ApiError. Called at start, and then every few minutes: a Secret that somebody removed is written again.
        """
        with self._lock:
            before = self._material
            reason = self._agree()
            changed = before is None or self.material.trust != before.trust
        if reason:
            log.info("certificates of the report service: %s (Secret %s/%s)", reason, self._namespace, self._secret)
        if changed:
            self.on_trust(self.trust)
        return reason

    def _agree(self) -> str:
        for _ in range(TRIES):
            stored = self._get()
            have = (_read(stored) if stored else None) or self._material
            wanted, reason = certificates.renewed(have, self._names, self._clock(), self._lifetimes)
            if stored is not None and wanted == _read(stored):
                changed = self._material is not None and wanted != self._material
                self._material = wanted
                return "another operator renewed them" if changed else ""
            try:
                self._put(stored, wanted)
            except (Conflict, AlreadyExists):
                continue
            self._material = wanted
            return reason or "the Secret was missing or changed: written again"
        raise CoordinatorError(
            f"Secret {self._namespace}/{self._secret} changed {TRIES} times while it was written: who else writes it?"
        )

    def _get(self) -> Object | None:
        try:
            return self._api.get(SECRETS, self._namespace, self._secret)
        except NotFound:
            return None

    def _put(self, stored: Object | None, material: Material) -> None:
        data = {key: base64.b64encode(text.encode()).decode() for key, text in _texts(material).items()}
        if stored is None:
            meta = {"name": self._secret, "namespace": self._namespace, "labels": self._labels}
            body = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "Opaque", "data": data}
            try:
                self._api.create(SECRETS, self._namespace, body)
            except Forbidden as error:
                # The chart makes it, so that the operator needs no right to make Secrets.
                raise Forbidden(
                    f"Secret {self._namespace}/{self._secret} is not there: `helm upgrade` makes it again, or make an "
                    f"empty one of that name ({error})",
                    code=error.code,
                ) from None
            return
        marks = {key: stored["metadata"][key] for key in ("uid", "resourceVersion")}
        self._api.patch(SECRETS, self._namespace, self._secret, {"metadata": marks, "data": data})


def _texts(material: Material) -> dict[str, str]:
    state = {"version": VERSION, **asdict(material)}
    return {
        "ca.crt": material.trust,
        "tls.crt": material.certificate,
        "tls.key": material.key,
        STATE: json.dumps(state, sort_keys=True),
    }


def _read(stored: Object) -> Material | None:
    """What a Secret holds, None where it holds nothing of use."""
    text = (stored.get("data") or {}).get(STATE)
    if not text:
        return None
    try:
        state: dict[str, Any] = json.loads(base64.b64decode(text))
        if state.pop("version") != VERSION:
            raise ValueError("its version is unknown")
        authorities = tuple(Authority(**entry) for entry in state.pop("authorities"))
        material = Material(authorities=authorities, names=tuple(state.pop("names")), **state)
        certificates.check(material)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        meta = stored["metadata"]
        log.error("Secret %s/%s cannot be used and is written anew: %s", meta["namespace"], meta["name"], error)
        return None
    return material
