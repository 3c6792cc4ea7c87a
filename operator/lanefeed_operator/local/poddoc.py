"""The two documents between the runner and a pod's supervisor process: what to run, and how it stands.

The runner writes `spec.json` before it starts the supervisor; the supervisor writes `pod.json` whenever something
changes. Both lie in the pod's folder of the state folder, so that a later runner finds and adopts the pod.
"""

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from lanefeed_operator.local import files

__all__ = ["PodDoc", "PodState", "load_doc", "load_state"]

#: Reasons that a pod's end can have.
COMPLETED, ERROR, SIDECAR_FATAL, CANNOT_START = "Completed", "Error", "SidecarFailed", "CannotStart"
DELETED, SUPERVISOR_LOST = "Deleted", "SupervisorLost"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDoc:
    """`spec.json`: one pod, as a kubelet would be told of it."""

    job: str
    job_uid: str
    generation: int
    index: int
    uid: str
    #: The pod's folder: documents and logs.
    folder: str
    #: The tmpfs folder shared by the pod's containers.
    run_dir: str
    #: Name of the token's file in it.
    token_name: str
    #: Text of the sidecar's configuration (lanefeed_core.podconfig).
    config: str
    python: str
    command: list[str]
    cwd: str
    #: Environment of the trainer beyond the supervisor's own.
    env: dict[str, str]
    #: Of the sidecar: how stores are reached.
    sidecar_env: dict[str, str] = field(default_factory=dict)
    #: Unix socket of the coordinator; while nobody answers there, a finished pod keeps what it has to report.
    coordinator: str
    grace_seconds: float = 10.0


@dataclass(slots=True, kw_only=True)
class PodState:
    """`pod.json`: how the pod stands. Times are seconds since 1970."""

    uid: str
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    ready: bool = False
    #: Of the trainer; while the phase is Running, the sidecar still hands over what it has.
    exit_code: int | None = None
    #: The supervisor: pid and start in clock ticks since boot.
    pid: int = 0
    pid_started: int = 0
    created: float = 0.0
    started: float | None = None
    finished: float | None = None
    trainer_pid: int = 0
    sidecar_pid: int = 0
    sidecar_restarts: int = 0
    #: host:port of the sidecar's /metrics.
    metrics: str = ""
    events: list[str] = field(default_factory=list)


def load_doc(folder: Path) -> PodDoc | None:
    """The pod that was made last in this folder."""
    data = files.read_json(folder / "spec.json")
    return PodDoc(**_known(PodDoc, data)) if data else None


def load_state(folder: Path) -> PodState | None:
    """How it stands; None before its supervisor said anything."""
    data = files.read_json(folder / "pod.json")
    return PodState(**_known(PodState, data)) if data else None


def save_doc(doc: PodDoc) -> None:
    """Durable: the runner writes it ahead of the process."""
    files.write_json(Path(doc.folder) / "spec.json", asdict(doc))


def save_state(folder: Path, state: PodState) -> None:
    """Whole, and not synced: no process outlives a crash of the machine."""
    files.write_json(folder / "pod.json", asdict(state), durable=False)


def _known(kind: type, data: dict[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(kind)}
    return {key: value for key, value in data.items() if key in names}
