"""The cluster's report service for tests of sidecars and indexers: real TLS, one job, tokens that are names.

The token "pod:UID" is of pod UID. `up` and `down` may be called again and again: the address stays.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lanefeed_operator.coordinator.authenticate import Caller
from lanefeed_operator.coordinator.certificates import Lifetimes, Material, renewed
from lanefeed_operator.coordinator.cluster import serve_cluster
from lanefeed_operator.coordinator.core import Coordinator
from lanefeed_operator.coordinator.directory import Member
from lanefeed_operator.coordinator.rejected import Rejected
from lanefeed_operator.coordinator.service import Server
from lanefeed_operator.kube.api import Unreachable
from support.ports import free_port

NAMES = ("localhost",)


def material(names: tuple[str, ...] = NAMES) -> Material:
    """A fresh authority and a certificate of it."""
    return renewed(None, names, time.time(), Lifetimes())[0]


@dataclass(slots=True)
class _Certificates:
    material: Material

    @property
    def trust(self) -> str:
        return self.material.trust

    def refresh(self) -> str:
        return ""


@dataclass
class Job:
    """The only job. `refuse`: why its manifest is not wanted; `broken`: storing fails so many times."""

    uid: str = "uid-1"
    namespace: str = "ns"
    name: str = "demo"
    coordinator: Coordinator | None = None
    refuse: str = ""
    broken: int = 0
    manifests: list[tuple[str, str, bytes]] = field(default_factory=list)
    failures: list[tuple[str, str, str, bool]] = field(default_factory=list)

    def find(self, job_uid: str) -> Member | None:
        return self if job_uid == self.uid else None

    def put_manifest(self, job_uid: str, pod_uid: str, digest: str, data: bytes) -> str:
        if self.broken:
            self.broken -= 1
            raise Unreachable("the API server is away")
        if not self.refuse:
            self.manifests.append((pod_uid, digest, data))
        return self.refuse

    def manifest_failed(self, job_uid: str, pod_uid: str, kind: str, message: str, retryable: bool) -> None:
        self.failures.append((pod_uid, kind, message, retryable))


class _Names:
    """Tokens that are valid: "pod:UID"."""

    def known(self, token: str) -> Caller | None:
        return self.review(token)

    def review(self, token: str) -> Caller:
        kind, _, uid = token.partition(":")
        if kind != "pod" or not uid:
            raise Rejected.unauthenticated("the token is refused")
        return Caller("ns", uid)


class ReportService:
    """One address, one job, and the folder that a pod sees as LANEFEED_CONTROL_DIR."""

    def __init__(self, folder: Path, pod_uid: str = "pod-1") -> None:
        self.port = free_port()
        self.target = f"localhost:{self.port}"
        self.job = Job()
        self.certificates = _Certificates(material())
        self.control = folder
        folder.mkdir()
        self.token = folder / "token"
        self.ca = folder / "ca.crt"
        self.token.write_text(f"pod:{pod_uid}")
        self.ca.write_text(self.certificates.trust)
        self.server: Server | None = None

    def up(self) -> None:
        certificates: Any = self.certificates
        self.server = serve_cluster(self.job, f"127.0.0.1:{self.port}", certificates, _Names(), time.time)

    def down(self) -> None:
        if self.server is not None:
            self.server.stop(0.0)
            self.server = None

    def rotate(self) -> None:
        """Another authority, which pods do not know yet (`publish`)."""
        self.certificates.material = material()

    def publish(self) -> None:
        """Pods see the new authority."""
        self.ca.write_text(self.certificates.trust)

    def environment(self, pod_uid: str = "pod-1") -> dict[str, str]:
        """What an indexer's container is given."""
        return {
            "LANEFEED_COORDINATOR": self.target,
            "LANEFEED_CONTROL_DIR": str(self.control),
            "LANEFEED_JOB_UID": self.job.uid,
            "LANEFEED_POD_UID": pod_uid,
        }
