"""Finds the processes of a local job by the marks that the local runner puts into their environment."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path


def environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty if it is gone."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.decode(errors="replace").partition("=") for item in raw.split(b"\0") if item)
    return {key: value for key, _, value in pairs}


def command(pid: int) -> str:
    """A process's command line, "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def marked(**wanted: str) -> Iterator[int]:
    """Pids of processes whose environment holds all of `wanted`."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            env = environment(int(entry.name))
            if all(env.get(key) == value for key, value in wanted.items()):
                yield int(entry.name)


def kill(pids: list[int]) -> int:
    """SIGKILL them; how many there were."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return len(pids)
