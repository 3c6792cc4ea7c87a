"""Whether a folder lies in memory: run folders belong in tmpfs, and on a disk they work, slowly, without a word.

Asked by `lanefeed.open` and by the local runner; in a cluster the operator makes the folder, in memory. Pure: the list
of mounts is an argument.
"""

import re

from lanefeed_core.wire import ENV_SHM_ROOT

__all__ = ["MOUNTS", "file_system", "on_disk"]

#: Where Linux lists a process's mounts.
MOUNTS = "/proc/self/mountinfo"
#: File systems that keep files in memory.
_IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}


def file_system(folder: str, mounts: str) -> str:
    """Type of the file system ("tmpfs", "ext4") that holds `folder`, an absolute path without links; "" if unknown.

    mounts: what MOUNTS says.
    """
    place = folder.rstrip("/") + "/"
    best, found = "", ""
    for line in mounts.splitlines():
        # 36 35 98:0 /root /mount/point options [more] - type source options
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        if not dash or len(fields) < 5:
            continue
        point = _unescaped(fields[4]).rstrip("/") + "/"
        # Of several mounts on one point the last is the one that shows.
        if place.startswith(point) and len(point) >= len(best):
            best, found = point, after.split(" ")[0]
    return found


def on_disk(folder: str, mounts: str) -> str:
    """What to tell a user whose run folder is not in memory; "" where it is, and where the mounts do not say."""
    kind = file_system(folder, mounts)
    if not kind or kind in _IN_MEMORY:
        return ""
    return (
        f"the run folder {folder} is on {kind}, not in tmpfs: batches may be written to a disk on their way to the "
        f"trainer, which costs speed and wears it; use a folder in tmpfs, such as /dev/shm ({ENV_SHM_ROOT}, or "
        "run_dir= of lanefeed.open)"
    )


def _unescaped(text: str) -> str:
    """Spaces and the like are octal in the list."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
