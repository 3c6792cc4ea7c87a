"""Watches the process that a sidecar belongs to (`lanefeed.open`): pids are used again, start times are not."""

from pathlib import Path

__all__ = ["Owner"]


class Owner:
    """The owner as it was when the sidecar started. Pid 0: there is none, and it is never gone."""

    def __init__(self, pid: int) -> None:
        """Remember its start time."""
        self._pid = pid
        self._start = _start_time(pid) if pid else ""

    def gone(self) -> bool:
        """Whether it has ended."""
        return self._pid > 0 and (not self._start or _start_time(self._pid) != self._start)


def _start_time(pid: int) -> str:
    """Clock ticks since boot at which the process started; "" if it has ended (zombies have)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return ""
    return "" if fields[0] in "ZX" else fields[19]
