"""Makes the documents of a pod: what its sidecar and its trainer start from. Called when an index needs a pod."""

import sys
import uuid
from pathlib import Path
from typing import Protocol

from lanefeed_core.wire import TOKEN_NAME
from lanefeed_operator.api.spec import Job
from lanefeed_operator.api.status import Status
from lanefeed_operator.coordinator.core import Coordinator
from lanefeed_operator.local import rundir
from lanefeed_operator.local.children import PodFactory
from lanefeed_operator.local.launch import data_env, trainer_command, trainer_env
from lanefeed_operator.local.plans import PlanFiles, pod_config
from lanefeed_operator.local.poddoc import PodDoc
from lanefeed_operator.local.store import FOLDER, JobStore

__all__ = ["Factory", "grace_of"]

#: Grace of a pod whose template says nothing; a cluster would give 30 s.
GRACE_SECONDS = 10.0


class Host(Protocol):
    """What the factory needs of the runner, as it is at the moment of the call."""

    store: JobStore
    job: Job
    status: Status
    root: Path
    plans: PlanFiles
    coordinator: Coordinator | None

    @property
    def socket(self) -> Path:
        """The coordinator's socket."""
        ...


def grace_of(job: Job) -> float:
    """terminationGracePeriodSeconds of the template."""
    extra = job.spec.template.spec.model_extra or {}
    value = extra.get("terminationGracePeriodSeconds")
    return float(value) if isinstance(value, int | float) and value >= 0 else GRACE_SECONDS


def working_dir(job: Job) -> Path:
    """Where the trainer starts: workingDir, or the folder of the job's YAML; relative ones begin there."""
    base = Path(job.metadata.annotations.get(FOLDER, "."))
    return (base / (job.spec.template.trainer.working_dir or ".")).absolute()


class Factory:
    """Pods of one job."""

    def __init__(self, host: Host) -> None:
        """Everything is read from `host` when a pod is made."""
        self._host = host

    def maker(self, generation: int) -> PodFactory:
        """The factory of one plan generation's pods."""

        def make(index: int, uid: str, folder: Path) -> PodDoc:
            return self._make(generation, index, uid, folder)

        return make

    def _make(self, generation: int, index: int, uid: str, folder: Path) -> PodDoc:
        host = self._host
        stream = host.status.stream
        if host.coordinator is None or stream is None:
            raise RuntimeError("a pod was wanted before the stream was frozen")
        host.coordinator.expect(generation, index, uid)
        plan, port = host.plans.read(generation)
        run_dir = rundir.pod_run_dir(host.root, generation, index, uuid.UUID(uid).hex)
        config = pod_config(
            host.job,
            host.status,
            plan,
            stream=stream,
            uid=uid,
            index=index,
            run_dir=run_dir,
            manifest=host.store.manifest_file,
            token=host.store.token_file,
            target=f"unix:{host.socket}",
            # Beside the jobs' folders, which share it; no job has such a name.
            cache=host.store.folder.parent / ".cache",
        )
        env = trainer_env(
            host.job,
            uid=host.job.metadata.uid,
            generation=generation,
            index=index,
            replicas=plan.replicas,
            port=port,
            run_dir=run_dir,
        )
        return PodDoc(
            job=host.job.metadata.name,
            job_uid=host.job.metadata.uid,
            generation=generation,
            index=index,
            uid=uid,
            folder=str(folder),
            run_dir=str(run_dir),
            token_name=TOKEN_NAME,
            config=config.to_json(),
            python=sys.executable,
            command=trainer_command(host.job.spec.template.trainer, env),
            cwd=str(working_dir(host.job)),
            env=env,
            sidecar_env=data_env(host.job),
            coordinator=str(host.socket),
            grace_seconds=grace_of(host.job),
        )
