"""A job's state folder: what `lanefeed run` must remember to go on, and what people look at.

    <state>/<job>/status.yaml      reads like the cluster's object: metadata, spec, status
                  scale.yaml       wanted replicas (`lanefeed scale`): the local scale subresource
                  manifest.bin     the frozen manifest
                  plans/plan-<plan generation>.json
                  pods/<plan generation>-<index>/    documents and logs of a pod
                  coordinator.token, runner.lock

One writer: the runner, which holds `runner.lock`. The kernel releases it however the runner dies.
"""

import fcntl
import os
import secrets
import shutil
from pathlib import Path
from typing import Any, TextIO

import yaml

from lanefeed_operator.api.spec import API_VERSION, KIND, Job
from lanefeed_operator.api.status import Status
from lanefeed_operator.local import files, yamlio
from lanefeed_operator.local.errors import AlreadyRunning, LocalError, UnknownJob

__all__ = ["APPLIED_REPLICAS", "FOLDER", "JobStore", "find", "known_jobs", "state_root"]

#: Annotations: the YAML's folder (relative paths begin there), and its replicas when it was last applied.
FOLDER = "lanefeed.dev/folder"
APPLIED_REPLICAS = "lanefeed.dev/applied-replicas"


class JobStore:
    """One job's state folder."""

    def __init__(self, folder: Path) -> None:
        """Nothing is made yet."""
        self.folder = folder
        self.status_file = folder / "status.yaml"
        self.scale_file = folder / "scale.yaml"
        self.manifest_file = folder / "manifest.bin"
        self.plans = folder / "plans"
        self.pods = folder / "pods"
        self.token_file = folder / "coordinator.token"
        self._lock: TextIO | None = None

    @property
    def name(self) -> str:
        """The job's name."""
        return self.folder.name

    # ---- lock --------------------------------------------------------------------------------------------------

    def lock(self) -> None:
        """Become the only runner. Raises AlreadyRunning."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = (self.folder / "runner.lock").open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise AlreadyRunning(
                f"job {self.name} is being run already (by process {holder}): watch it with `lanefeed status "
                f"{self.name} --watch`, resize it with `lanefeed scale`, or stop it with Ctrl-C there"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        self._lock = file

    def unlock(self) -> None:
        """Let go."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def runner(self) -> int:
        """Pid of the living runner; 0 if there is none."""
        try:
            with (self.folder / "runner.lock").open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(file.read().strip() or 0)
        except (FileNotFoundError, ValueError):
            return 0
        return 0

    # ---- documents ---------------------------------------------------------------------------------------------

    def load(self) -> dict[str, Any]:
        """The stored object, {} before the first run. Raises LocalError where it cannot be read."""
        try:
            return yamlio.load(self.status_file)
        except FileNotFoundError:
            return {}
        except (yaml.YAMLError, ValueError) as error:
            what = " ".join(str(error).split())
            raise LocalError(
                f"{self.status_file} is damaged ({what}): restore it, or begin anew with `lanefeed run --fresh`"
            ) from None

    def save(self, job: Job, status: Status) -> None:
        """Write job and status; durable when it returns."""
        document = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": job.metadata.model_dump(by_alias=True, mode="json", exclude_none=True),
            "spec": job.spec.model_dump(by_alias=True, mode="json", exclude_none=True, exclude_defaults=False),
            "status": status.to_dict(),
        }
        files.write_atomic(self.status_file, yamlio.dump(document))

    def wanted_replicas(self) -> int | None:
        """What `lanefeed scale` asked for, None if nobody did. A file that is no number is an error for people."""
        try:
            value = yamlio.load(self.scale_file).get("replicas")
        except FileNotFoundError:
            return None
        except (yaml.YAMLError, ValueError):
            value = "unreadable"
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise LocalError(f"{self.scale_file}: replicas is {value!r}: it must be a whole number from 1")
        return value

    def scale(self, replicas: int) -> None:
        """Ask the runner, this one or the next, for another number of pods."""
        files.write_atomic(self.scale_file, yamlio.dump({"replicas": replicas}))

    def token(self) -> str:
        """The secret that sidecars show to the coordinator; made at first."""
        if not self.token_file.exists():
            files.write_atomic(self.token_file, secrets.token_hex(32), mode=0o600)
        return self.token_file.read_text().strip()

    def forget(self) -> None:
        """Remove everything but the lock that is held."""
        for entry in self.folder.iterdir():
            if entry.name == "runner.lock":
                continue
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)


def state_root(state_dir: Path | None) -> Path:
    """Folder of all jobs' states: `--state-dir`, or .lanefeed in the current folder."""
    return (state_dir or Path(".lanefeed")).absolute()


def known_jobs(root: Path) -> list[str]:
    """Names of the jobs that have a state below `root`."""
    return sorted(entry.parent.name for entry in root.glob("*/status.yaml")) if root.is_dir() else []


def find(root: Path, name: str) -> JobStore:
    """The state of a job that was run. Raises UnknownJob, naming those that are known."""
    store = JobStore(root / name)
    if "/" not in name and store.status_file.exists():
        return store
    known = known_jobs(root)
    what = f"known here: {', '.join(known)}" if known else "no job was run here yet"
    raise UnknownJob(
        f"there is no job {name!r} in {root} ({what}): run `lanefeed run JOB.yaml` first, or name the folder of states "
        "with --state-dir"
    )
