"""One process of a pod: started in its own group, its output in a log, killed with the supervisor."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from lanefeed_operator.local import procs

__all__ = ["Container"]

FIRST_BACKOFF_SECONDS = 0.05
MAX_BACKOFF_SECONDS = 5.0
#: A process that ran for this long is started again at once.
LONG_SECONDS = 10.0


class Container:
    """A command that can be started again. The supervisor reaps, and tells with `ended`."""

    def __init__(self, *, name: str, command: list[str], cwd: str, env: Mapping[str, str], log: Path) -> None:
        """`env` is added to this process's environment."""
        self.name, self.command, self.cwd, self.log = name, command, cwd, log
        self.env = dict(os.environ) | dict(env) | {procs.CONTAINER_MARK: name}
        self.pid = 0
        self.exit_code: int | None = None
        self._began = 0.0
        self._ended = 0.0
        self._backoff = 0.0

    @property
    def running(self) -> bool:
        """Started and not reaped yet."""
        return self.pid > 0 and self.exit_code is None

    def start(self) -> None:
        """Start it. Raises OSError where the program or the folder cannot be used."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            process = subprocess.Popen(
                self.command,
                cwd=self.cwd,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                process_group=0,
                # The supervisor has one thread, so code between fork and exec is safe.
                preexec_fn=_prepare,
            )
        self.pid, self.exit_code, self._began = process.pid, None, time.monotonic()
        # The supervisor reaps all children itself; Popen must neither wait nor warn.
        process.returncode = 0

    def ended(self, code: int) -> None:
        """The process was reaped with this exit code."""
        self.exit_code, self._ended = code, time.monotonic()
        ran = self._ended - self._began
        longer = min(MAX_BACKOFF_SECONDS, max(FIRST_BACKOFF_SECONDS, self._backoff * 2))
        self._backoff = FIRST_BACKOFF_SECONDS if ran > LONG_SECONDS else longer

    def may_restart(self) -> bool:
        """Whether the backoff is over."""
        return time.monotonic() - self._ended >= self._backoff

    def signal(self, number: int) -> None:
        """Signal its group."""
        if self.running:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                pass

    def kill(self) -> None:
        """SIGKILL its group."""
        self.signal(signal.SIGKILL)

    def last_line(self) -> str:
        """The last line of its log: a sidecar says there why it ends."""
        try:
            with self.log.open("rb") as source:
                source.seek(max(0, self.log.stat().st_size - 8192))
                lines = source.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""


def _prepare() -> None:
    procs.die_with_parent()
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
