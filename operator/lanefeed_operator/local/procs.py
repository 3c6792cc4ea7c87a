"""Processes of this machine, told apart by pid with start time, and by marks in their environment.

Every process of a pod carries `LANEFEED_LOCAL_POD_UID` from birth, so that the leftovers of a supervisor that got
SIGKILL can be found and ended. Linux only (/proc).
"""

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "CONTAINER_MARK",
    "JOB_UID_MARK",
    "POD_MARK",
    "alive",
    "become_reaper",
    "die_with_parent",
    "kill_marked",
    "mark_of",
    "marked",
    "signal_pid",
    "start_time",
]

#: Mark of every process of one pod: the pod's UID. Not the name that says that a kubelet runs the process.
POD_MARK = "LANEFEED_LOCAL_POD_UID"
#: Mark of every process of one job.
JOB_UID_MARK = "LANEFEED_LOCAL_JOB_UID"
#: Which container of the pod a process belongs to: "trainer" or "sidecar"; the supervisor has none.
CONTAINER_MARK = "LANEFEED_CONTAINER"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Get SIGKILL when the parent dies. For use between fork and exec."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def become_reaper() -> None:
    """Adopt orphaned grandchildren, so that no zombie of a trainer is left to a pid 1 that does not reap."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold anything; fields are counted from after it (state is field 3 of proc(5)).
    return text.rpartition(")")[2].split()


def start_time(pid: int) -> int:
    """Start of a living process in clock ticks since boot; 0 if it is gone or a zombie."""
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else 0


def alive(pid: int, started: int) -> bool:
    """Whether the very process that had `pid` and began at `started` still runs."""
    return pid > 0 and started > 0 and start_time(pid) == started


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def mark_of(pid: int, name: str) -> str:
    """Value of a variable in the environment that a process was started with; "" if it has none."""
    prefix = name.encode() + b"="
    for item in _environ(pid).split(b"\0"):
        if item.startswith(prefix):
            return item[len(prefix) :].decode(errors="replace")
    return ""


def marked(name: str, value: str, *, also: tuple[str, str] | None = None) -> Iterator[int]:
    """Pids of living processes that carry the mark (and the one in `also`), but not this one."""
    wanted = [f"{key}={text}".encode() for key, text in ((name, value), *((also,) if also else ()))]
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        items = _environ(int(entry)).split(b"\0")
        if all(item in items for item in wanted) and start_time(int(entry)):
            yield int(entry)


def signal_pid(pid: int, number: int) -> bool:
    """Send a signal; False if the process is gone."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def kill_marked(name: str, value: str, *, also: tuple[str, str] | None = None, seconds: float = 5.0) -> int:
    """SIGKILL every process with the mark until none is left; how many there were.

    Repeated, since a process may fork while the list is made. Gives up after `seconds` (uninterruptible sleep).
    """
    deadline = time.monotonic() + seconds
    seen: set[int] = set()
    while pids := list(marked(name, value, also=also)):
        for pid in pids:
            seen.add(pid)
            signal_pid(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return len(seen)
