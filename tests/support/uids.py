"""Processes of other users, as in a pod: sidecar and trainer have users of their own and share a group at most.

Where the interpreter lies in a folder that is closed to others (/root), the process gets a mount namespace of its own
in which that folder is an empty, open one with the interpreter's part bound into it; nothing else changes.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def command_as(uid: int, gid: int, groups: Sequence[int], command: Sequence[str]) -> list[str]:
    """The command line that runs `command` as that user. Skips the test where that needs rights that it has not."""
    if os.geteuid() != 0 or not shutil.which("setpriv") or not shutil.which("unshare"):
        pytest.skip("other users need root, setpriv and unshare")
    extra = ["--groups", ",".join(map(str, groups))] if groups else ["--clear-groups"]
    drop = ["setpriv", "--reuid", str(uid), "--regid", str(gid), *extra, "--bounding-set=-all", "--no-new-privs", "--"]
    closed = {top for top in map(_closed, (Path(sys.executable).resolve(), Path(sys.prefix), REPOSITORY)) if top}
    if not closed:
        return [*drop, *command]
    (folder,) = closed
    inside = Path(sys.executable).resolve().relative_to(folder).parts[0]
    script = (
        'set -e; d=$(mktemp -d); mount --bind "$1/$2" "$d"; mount -t tmpfs -o mode=755 none "$1"; mkdir "$1/$2"; '
        'mount --move "$d" "$1/$2"; rmdir "$d"; shift 2; exec "$@"'
    )
    return ["unshare", "--mount", "sh", "-c", script, "sh", str(folder), inside, *drop, *command]


def _closed(path: Path) -> Path | None:
    """The topmost folder on the way to `path` that others may not enter."""
    for folder in reversed(path.parents):
        if not folder.stat().st_mode & 0o001:
            return folder
    return None
