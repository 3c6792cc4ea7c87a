"""Run folders in tmpfs: where they lie, how they are made and how leftovers go. Docs: docs/protocol.md, Run folder."""

import os
import shutil
from pathlib import Path

from lanefeed_core import tmpfs
from lanefeed_core.wire import ENV_SHM_ROOT, SOCKET_NAME
from lanefeed_operator.local.errors import LocalError

__all__ = ["job_root", "make_job_root", "on_disk", "pod_run_dir", "sweep"]

#: sun_path of a Unix socket, its final NUL left out.
MAX_SOCKET_PATH = 107


def job_root(job_uid: str) -> Path:
    """The job's folder in tmpfs. Raises LocalError where sockets in it would have names that are too long."""
    root = Path(os.environ.get(ENV_SHM_ROOT) or "/dev/shm").absolute()  # noqa: S108 -- private: 0700 below
    if not root.is_dir():
        raise LocalError(f"{root} is not a folder: set {ENV_SHM_ROOT} to a folder in tmpfs")
    folder = root / f"lanefeed-{os.getuid()}" / job_uid[:8]
    longest = len(os.fsencode(pod_run_dir(folder, 1_000_000, 10_000, "0" * 8) / SOCKET_NAME))
    if longest > MAX_SOCKET_PATH:
        raise LocalError(
            f"{root} is too long: a socket below it would have a path of {longest} bytes and the limit is "
            f"{MAX_SOCKET_PATH}; set {ENV_SHM_ROOT} to a shorter one"
        )
    return folder


def make_job_root(folder: Path) -> None:
    """Make it, for this user only. Raises LocalError where somebody else's lies there."""
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    owner = folder.parent.lstat()
    if owner.st_uid != os.getuid() or not folder.parent.is_dir() or folder.parent.is_symlink():
        raise LocalError(f"{folder.parent} belongs to another user: remove it, or set {ENV_SHM_ROOT} to another folder")
    folder.mkdir(mode=0o700, exist_ok=True)


def on_disk(folder: Path) -> str:
    """What to tell the user where the folder is not in memory; "" where it is."""
    try:
        return tmpfs.on_disk(os.path.realpath(folder), Path(tmpfs.MOUNTS).read_text(errors="surrogateescape"))
    except OSError:
        return ""


def pod_run_dir(root: Path, generation: int, index: int, uid: str) -> Path:
    """The run folder of one pod."""
    return root / f"{generation}-{index}-{uid[:8]}"


def sweep(root: Path, keep: set[str]) -> list[str]:
    """Remove run folders below `root` whose names are not in `keep`; their names."""
    gone = []
    for entry in sorted(root.iterdir()) if root.is_dir() else []:
        if entry.is_dir() and entry.name not in keep:
            shutil.rmtree(entry, ignore_errors=True)
            gone.append(entry.name)
    return gone
