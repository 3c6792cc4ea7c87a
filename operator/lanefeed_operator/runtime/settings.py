"""What the operator's process is told by its environment: the one place where LANEFEED_OPERATOR_* is read.

Read once by `main`; the chart sets exactly these. A wrong value is named together with what to set instead.

| variable (LANEFEED_OPERATOR_...) | default | meaning |
|---|---|---|
| SIDECAR_IMAGE | required | image of sidecar and indexer where a job names none |
| SIDECAR_PULL_POLICY | IfNotPresent | Always, IfNotPresent or Never |
| SIDECAR_USER | 65532 | user of the sidecar; `cluster`: the cluster assigns one (OpenShift) |
| SHARED_GROUP | 65532 | group that trainer and sidecar share; `cluster` as above |
| SIDECAR_CPU | 500m | CPU that each sidecar asks for |
| COORDINATOR | lanefeed-operator.NAMESPACE.svc:REPORT_PORT | host:port of the report service, as pods reach it |
| NAMESPACE | the pod's own | where the certificate's Secret and the Lease live |
| CERT_SECRET | lanefeed-operator-report-tls | name of the Secret with the report service's CA and key |
| WATCH_NAMESPACES | all | comma list; only jobs in these namespaces are seen |
| REPORT_PORT | 9443 | gRPC + TLS for sidecars |
| METRICS_PORT | 9405 | /metrics |
| HEALTH_PORT | 8080 | /healthz and /readyz |
| BIND | all addresses | address that the three ports are bound at |
| LEADER_ELECTION | false | true where two replicas run; the Lease decides who acts |
| LEASE | lanefeed-operator-leader | name of that Lease |
| POD | host name | who holds the Lease: the pod's name |
| WORKERS | 4 | jobs looked at side by side |
| RESYNC_SECONDS | 600 | every job is looked at again this often, changed or not |
| LOG_FORMAT | text | text or json, one line each |
| LOG_LEVEL | info | debug, info, warning or error |
"""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lanefeed_operator.errors import OperatorError
from lanefeed_operator.render.settings import Settings as RenderSettings

__all__ = ["PREFIX", "OperatorSettings", "SettingsError", "read"]

PREFIX = "LANEFEED_OPERATOR_"
OWN_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
MAX_WORKERS = 64
#: A shorter resync would look at every job all the time, a longer one leaves a lost event unnoticed for too long.
RESYNC_RANGE = (10.0, 3600.0)
NAMES = frozenset(re.findall(r"^\| ([A-Z_]+) \|", __doc__, re.MULTILINE))

#: What Kubernetes sets by itself for every Service whose name begins with "lanefeed-operator".
_SERVICE_LINK = re.compile(r"(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_\d+_(TCP|UDP|SCTP)(_.*)?)?)")
_DNS = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class SettingsError(OperatorError):
    """The environment cannot be used; the text names every wrong variable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """See the module."""

    render: RenderSettings
    namespace: str
    cert_secret: str
    watch_namespaces: tuple[str, ...] = ()
    bind: str = "0.0.0.0"  # noqa: S104 -- a pod's ports are reached through its address; NetworkPolicy narrows them
    report_port: int = 9443
    metrics_port: int = 9405
    health_port: int = 8080
    leader_election: bool = False
    lease_name: str = "lanefeed-operator-leader"
    identity: str = ""
    workers: int = 4
    resync_seconds: float = 600.0
    log_json: bool = False
    log_level: str = "INFO"

    @property
    def coordinator_host(self) -> str:
        """The host that sidecars connect to: the certificate must carry it."""
        return self.render.coordinator.rpartition(":")[0].strip("[]")


def read(environ: Mapping[str, str] = os.environ, *, namespace_file: Path = OWN_NAMESPACE_FILE) -> OperatorSettings:
    """The settings that `environ` says. Raises SettingsError with all faults at once."""
    r = _Reader(environ)
    r.unknown()
    namespace = r.name("NAMESPACE", _own_namespace(namespace_file))
    report_port = r.port("REPORT_PORT", 9443)
    settings = OperatorSettings(
        render=RenderSettings(
            sidecar_image=r.required("SIDECAR_IMAGE", "the sidecar's image, released with this operator"),
            coordinator=r.address("COORDINATOR", f"lanefeed-operator.{namespace}.svc:{report_port}"),
            image_pull_policy=r.choice("SIDECAR_PULL_POLICY", "IfNotPresent", ("Always", "IfNotPresent", "Never")),
            sidecar_user=r.identity("SIDECAR_USER"),
            shared_group=r.identity("SHARED_GROUP"),
            sidecar_cpu=r.text("SIDECAR_CPU", "500m"),
        ),
        namespace=namespace,
        cert_secret=r.name("CERT_SECRET", "lanefeed-operator-report-tls"),
        watch_namespaces=r.names("WATCH_NAMESPACES"),
        bind=r.text("BIND", "0.0.0.0"),  # noqa: S104 -- see the field
        report_port=report_port,
        metrics_port=r.port("METRICS_PORT", 9405),
        health_port=r.port("HEALTH_PORT", 8080),
        leader_election=r.flag("LEADER_ELECTION", False),
        lease_name=r.name("LEASE", "lanefeed-operator-leader"),
        identity=r.text("POD", socket.gethostname()),
        workers=r.count("WORKERS", 4, MAX_WORKERS),
        resync_seconds=r.seconds("RESYNC_SECONDS", 600.0, RESYNC_RANGE),
        log_json=r.choice("LOG_FORMAT", "text", ("text", "json")) == "json",
        log_level=r.choice("LOG_LEVEL", "info", ("debug", "info", "warning", "error")).upper(),
    )
    r.different_ports(("REPORT_PORT", "METRICS_PORT", "HEALTH_PORT"), settings)
    if r.problems:
        raise SettingsError("the operator's environment cannot be used:\n  " + "\n  ".join(r.problems))
    return settings


def _own_namespace(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


class _Reader:
    """Reads values, and gathers what is wrong with them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.problems: list[str] = []

    def _wrong(self, name: str, value: str, remedy: str) -> None:
        self.problems.append(f"{PREFIX}{name} is {value!r}: {remedy}")

    def unknown(self) -> None:
        """A misspelt variable would be passed over in silence."""
        for key in sorted(self._environ):
            name = key.removeprefix(PREFIX)
            if key.startswith(PREFIX) and name not in NAMES and not _SERVICE_LINK.fullmatch(name):
                self.problems.append(f"{key} is not known: known are {', '.join(sorted(NAMES))}")

    def text(self, name: str, default: str) -> str:
        value = self._environ.get(PREFIX + name, "").strip()
        # A Service named lanefeed-operator-report makes Kubernetes set ..._REPORT_PORT to tcp://ADDRESS:PORT.
        return default if not value or value.startswith(("tcp://", "udp://")) else value

    def required(self, name: str, what: str) -> str:
        value = self.text(name, "")
        if not value:
            self.problems.append(f"{PREFIX}{name} is not set: set it to {what}")
        return value

    def name(self, name: str, default: str) -> str:
        value = self.text(name, default)
        if not value:
            self.problems.append(f"{PREFIX}{name} is not set: set it to the operator's own namespace")
        elif not _DNS.fullmatch(value):
            self._wrong(name, value, "a Kubernetes name has lower case letters, digits, '-' and '.'")
        return value

    def names(self, name: str) -> tuple[str, ...]:
        parts = [part.strip() for part in self.text(name, "").split(",")]
        found = tuple(dict.fromkeys(part for part in parts if part))
        for part in found:
            if not _DNS.fullmatch(part):
                self._wrong(name, part, "give names of namespaces, with commas between them; empty means all")
        return found

    def number(self, name: str, default: float, low: float, high: float, *, whole: bool) -> float:
        value = self.text(name, "")
        if not value:
            return default
        try:
            number = float(int(value)) if whole else float(value)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            kind = "a whole number" if whole else "a number"
            self._wrong(name, value, f"give {kind} from {low:g} to {high:g}")
            return default
        return number

    def port(self, name: str, default: int) -> int:
        return int(self.number(name, default, 0, 65535, whole=True))

    def count(self, name: str, default: int, high: int) -> int:
        return int(self.number(name, default, 1, high, whole=True))

    def seconds(self, name: str, default: float, allowed: tuple[float, float]) -> float:
        return self.number(name, default, *allowed, whole=False)

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        value = self.text(name, default)
        if value not in allowed:
            self._wrong(name, value, f"give one of {', '.join(allowed)}")
            return default
        return value

    def flag(self, name: str, default: bool) -> bool:
        return self.choice(name, str(default).lower(), ("true", "false")) == "true"

    def identity(self, name: str) -> int | None:
        value = self.text(name, "65532")
        if value == "cluster":
            return None
        if not value.isascii() or not value.isdigit() or not 0 < int(value) < 2**31:
            self._wrong(name, value, "give a number above 0, or 'cluster' where the cluster assigns one")
            return 65532
        return int(value)

    def address(self, name: str, default: str) -> str:
        value = self.text(name, default)
        host, colon, port = value.rpartition(":")
        fits = colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536
        if not fits or (":" in host and not host.startswith("[")):
            self._wrong(name, value, "give host:port as pods reach the report service")
        return value

    def different_ports(self, names: tuple[str, ...], settings: OperatorSettings) -> None:
        """Two servers cannot share a port; 0 is any free one."""
        ports = [port for port in (settings.report_port, settings.metrics_port, settings.health_port) if port]
        if len(set(ports)) < len(ports):
            self.problems.append(f"{', '.join(PREFIX + n for n in names)} are {ports}: give each a port of its own")
