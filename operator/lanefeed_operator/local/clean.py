"""Ends what an earlier run of a job left on this machine: for `--fresh`. Leaves other jobs alone."""

import re
from pathlib import Path

from lanefeed_operator.local import files, procs, rundir
from lanefeed_operator.local.errors import LocalError
from lanefeed_operator.local.store import JobStore

__all__ = ["end_pods"]

#: A UID names a folder and is compared with marks: nothing that a damaged file may hold instead.
_UID = re.compile(r"[0-9A-Za-z-]{8,64}")


def end_pods(store: JobStore) -> None:
    """SIGKILL the stored job's processes and remove its tmpfs. The caller holds the lock."""
    for uid in sorted(_uids(store)):
        procs.kill_marked(procs.JOB_UID_MARK, uid)
        root: Path = rundir.job_root(uid)
        rundir.sweep(root, set())
        if root.is_dir():
            (root / "coordinator.sock").unlink(missing_ok=True)
            root.rmdir()


def _uids(store: JobStore) -> set[str]:
    """UIDs of the job that is about to be forgotten, so that its processes can be told from others'.

    From the pods' documents too: `status.yaml` may be the very file that cannot be used.
    """
    documents = [files.read_json(file) for file in store.pods.glob("*/spec.json")]
    found = [document.get("job_uid") for document in documents if document is not None]
    try:
        metadata = store.load().get("metadata")
    except LocalError:
        metadata = None
    found += [metadata.get("uid")] if isinstance(metadata, dict) else []
    return {uid for uid in found if isinstance(uid, str) and _UID.fullmatch(uid)}
