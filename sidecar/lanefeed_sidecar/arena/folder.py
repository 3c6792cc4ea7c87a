"""The run folder: one sidecar at a time, leftovers of dead ones removed, the token that trainers must show.

Called by the supervisor at start and end. A sidecar that was killed leaves its arena and socket behind; the next one
takes the lock, so it knows that whatever lies there belongs to nobody.
"""

import contextlib
import fcntl
import logging
import os
import secrets
import time
from pathlib import Path

from lanefeed_core.wire import SOCKET_NAME, TOKEN_NAME
from lanefeed_sidecar.errors import ConfigError, SidecarError

__all__ = ["ARENA_PREFIX", "METRICS_NAME", "RunFolder", "write_atomically"]

log = logging.getLogger(__name__)

ARENA_PREFIX = "arena-"
METRICS_NAME = "metrics.addr"
LOCK_NAME = "sidecar.pid"

#: sun_path of a Unix socket, its final NUL left out.
MAX_SOCKET_PATH = 107
#: A sidecar that was killed may still be giving its memory back.
LOCK_SECONDS = 3.0


class RunFolder:
    """The folder, locked for this process until `close` or its death."""

    def __init__(self, path: str, *, lock_seconds: float = LOCK_SECONDS) -> None:
        """Lock it and remove what dead sessions left.

        Raises ConfigError where the folder cannot be used, SidecarError where another sidecar lives in it.
        """
        self.path = Path(path)
        self._check()
        self._lock_fd = self._lock(lock_seconds)
        self._reclaim()

    @property
    def socket(self) -> Path:
        """The Feed service's socket."""
        return self.path / SOCKET_NAME

    def arena(self, session: str) -> Path:
        """The arena file of a session."""
        return self.path / f"{ARENA_PREFIX}{session}"

    def token(self) -> str:
        """What trainers must send: written by the control plane, else made here. Raises ConfigError if unusable."""
        file = self.path / TOKEN_NAME
        try:
            text = file.read_text().strip()
        except FileNotFoundError:
            text = secrets.token_hex(32)
            write_atomically(file, text, 0o640)
        except OSError as error:
            raise ConfigError(
                f"the token {file} cannot be read: {error.strerror}; it must be readable by the sidecar"
            ) from None
        if len(text) < 16:
            raise ConfigError(f"the token {file} has {len(text)} characters: it must have at least 16 (64 hex digits)")
        return text

    def write_metrics_address(self, address: str) -> None:
        """Say where /metrics is."""
        write_atomically(self.path / METRICS_NAME, address + "\n", 0o640)

    def close(self) -> None:
        """Remove what belongs to this session, then unlock. Commits that wait stay."""
        if self._lock_fd < 0:
            return
        self._reclaim(quiet=True)
        os.close(self._lock_fd)
        self._lock_fd = -1

    def _check(self) -> None:
        if not self.path.is_dir():
            raise ConfigError(
                f"run_dir {self.path} is not a folder: make it (mode 0750, in tmpfs) before the sidecar starts"
            )
        longest = len(os.fsencode(self.socket))
        if longest > MAX_SOCKET_PATH:
            raise ConfigError(
                f"run_dir {self.path} is too long: its socket would have a path of {longest} bytes and the limit is "
                f"{MAX_SOCKET_PATH}; use a shorter folder"
            )
        # Not ours to change where the kubelet owns the folder (emptyDir): then its mode is the pod's decision.
        if self.path.stat().st_uid == os.geteuid():
            self.path.chmod(0o750)

    def _lock(self, seconds: float) -> int:
        try:
            fd = os.open(self.path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise ConfigError(f"run_dir {self.path} cannot be written: {error.strerror}") from None
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                other = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
                os.close(fd)
                raise SidecarError(
                    f"another sidecar (pid {other}) is alive in {self.path}: end it first, or use another run_dir"
                ) from None
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
            return fd

    def _reclaim(self, *, quiet: bool = False) -> None:
        """Unlink arenas and sockets of dead sessions; tmpfs pages live until the last mapping of a trainer goes."""
        for entry in sorted(self.path.iterdir()):
            stale = entry.name.startswith(ARENA_PREFIX) or entry.name in (SOCKET_NAME, METRICS_NAME)
            if stale or entry.name.endswith(".tmp"):
                if not quiet:
                    log.info("removing %s of an earlier session", entry)
                with contextlib.suppress(FileNotFoundError):
                    entry.unlink()


def write_atomically(file: Path, text: str, mode: int) -> None:
    """Readers see the old text or the new one, whenever the writer dies."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "w") as out:
        out.write(text)
    temporary.replace(file)
