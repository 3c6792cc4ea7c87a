"""Ends what an earlier run of a job left on this machine: for `--fresh`. Leaves other jobs alone."""

from pathlib import Path

from lanefeed_operator.local import procs, rundir
from lanefeed_operator.local.admission import stored_job
from lanefeed_operator.local.errors import LocalError
from lanefeed_operator.local.store import JobStore

__all__ = ["end_pods"]


def end_pods(store: JobStore) -> None:
    """SIGKILL the stored job's processes and remove its tmpfs. The caller holds the lock."""
    try:
        job = stored_job(store)
    except LocalError:
        # It is about to be forgotten; without its UID its processes cannot be told from others'.
        return
    if job is None or not job.metadata.uid:
        return
    procs.kill_marked(procs.JOB_UID_MARK, job.metadata.uid)
    root: Path = rundir.job_root(job.metadata.uid)
    rundir.sweep(root, set())
    if root.is_dir():
        (root / "coordinator.sock").unlink(missing_ok=True)
        root.rmdir()
