"""Run folders made on this machine, and their end.

A folder lives while a process holds a shared lock on its `users.lock`, or a sidecar the lock on its `sidecar.pid`.
Locks, unlike pids, die with their process and mean the same in every pid namespace that shares the tmpfs; so whatever
a SIGKILL left behind is found and removed at the next start.
"""

import fcntl
import logging
import os
import shutil
import time
from pathlib import Path

from lanefeed.errors import LanefeedError, UsageError
from lanefeed_core.tmpfs import MOUNTS, on_disk
from lanefeed_core.wire import ENV_SHM_ROOT

__all__ = [
    "JOIN_SECONDS",
    "PREFIX",
    "USERS",
    "RunFolder",
    "StartLock",
    "lock",
    "locked",
    "reclaim",
    "shm_root",
    "warn_on_disk",
]

log = logging.getLogger("lanefeed")

#: Run folders of `lanefeed.open` begin with this.
PREFIX = "lanefeed-open-"
#: Indexing a large dataset takes minutes.
START_LOCK_SECONDS = 700.0
#: A line says what is waited for this often.
WORD_SECONDS = 10.0
USERS = "users.lock"
#: How long to wait for somebody who is just ending the folder's sidecar.
JOIN_SECONDS = 20.0
_PID = "sidecar.pid"


def shm_root() -> Path:
    """Where run folders go. Raises UsageError where that is no folder."""
    root = Path(os.environ.get(ENV_SHM_ROOT) or "/dev/shm")  # noqa: S108 - this is what the variable is for
    if not root.is_dir():
        raise UsageError(f"{root} is not a folder: set {ENV_SHM_ROOT} to a tmpfs folder that trainer and sidecar share")
    return root


def warn_on_disk(folder: Path) -> None:
    """A word in the log where the folder is not in memory: all works there, only slowly."""
    try:
        warning = on_disk(os.path.realpath(folder), Path(MOUNTS).read_text(errors="surrogateescape"))
    except OSError:
        return
    if warning:
        log.warning("%s", warning)


def lock(path: Path, kind: int, *, create: bool = True) -> int | None:
    """Lock a file without waiting: its descriptor, or None if somebody else holds it (or there is no such file)."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o640)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def locked(path: Path) -> bool:
    """Whether a living process holds a lock on the file."""
    fd = lock(path, fcntl.LOCK_EX, create=False)
    if fd is None:
        return path.exists()
    os.close(fd)
    return False


def reclaim(root: Path) -> list[Path]:
    """Remove the run folders whose users and sidecars are all gone; returns them."""
    gone = []
    for folder in sorted(root.glob(f"{PREFIX}*")):
        try:
            fd = lock(folder / USERS, fcntl.LOCK_EX, create=False)
            if fd is None and (folder / USERS).exists():
                continue
            if fd is None and time.time() - folder.stat().st_mtime < 10.0:
                continue  # being made right now: its lock comes next
            try:
                if not locked(folder / _PID):
                    shutil.rmtree(folder, ignore_errors=True)
                    gone.append(folder)
            finally:
                if fd is not None:
                    os.close(fd)
        except OSError:
            continue  # another user's, or gone meanwhile
    for folder in gone:
        log.info("removed %s, left behind by an earlier run", folder)
    return gone


class RunFolder:
    """One run folder that this process uses, alone or with the other ranks on this machine."""

    def __init__(self, path: Path) -> None:
        """Make it or join it. Raises LanefeedError if it cannot be made."""
        self.path = path
        self._fd: int | None = None
        missing, end = 0, time.monotonic() + JOIN_SECONDS
        while missing < 50 and time.monotonic() < end:
            try:
                self.path.mkdir(mode=0o750, parents=True, exist_ok=True)
                fd = self._take()
            except FileNotFoundError:
                missing += 1
                time.sleep(0.01)
                continue  # its last user removed it this moment: make it anew
            except OSError as error:
                raise LanefeedError(f"cannot make the run folder {self.path}: {error.strerror}") from error
            if fd is not None and self._same(fd):
                self._fd = fd
                return
            if fd is not None:
                os.close(fd)
            time.sleep(0.05)
        raise self._refused()

    def _take(self) -> int | None:
        """The users' lock, shared; None if somebody is just ending the folder."""
        return lock(self.path / USERS, fcntl.LOCK_SH)

    def _refused(self) -> LanefeedError:
        """Why it was not had in all that time."""
        return LanefeedError(
            f"cannot make and lock {self.path / USERS}: nothing can be written there, or another process removes the "
            f"folder again and again; set {ENV_SHM_ROOT} to a writable tmpfs folder"
        )

    def _same(self, fd: int) -> bool:
        """Whether the locked file is still the folder's: it may have been removed between open and lock."""
        try:
            return os.path.samestat(os.fstat(fd), os.stat(self.path / USERS))
        except OSError:
            return False

    def has_sidecar(self) -> bool:
        """Whether a living sidecar holds the folder."""
        return locked(self.path / _PID)

    def sidecar_pid(self) -> int:
        """Pid of the living sidecar, or 0 if there is none (or it is just starting)."""
        try:
            return int((self.path / _PID).read_text() or 0) if self.has_sidecar() else 0
        except (OSError, ValueError):
            return 0

    def starting(self) -> "StartLock":
        """A lock for whoever starts the sidecar."""
        return StartLock(self.path / "start.lock")

    def leave(self) -> bool:
        """Let go of the folder. True for the last user, who ends the sidecar and then calls `done`.

        The shared lock goes first: of several that leave at once, exactly one finds nobody else. Until `done` nobody
        can join.
        """
        fd, self._fd = self._fd, None
        if fd is None:
            return False
        os.close(fd)
        try:
            self._fd = lock(self.path / USERS, fcntl.LOCK_EX, create=False)
        except OSError:
            return False
        return self._fd is not None

    def done(self, *, remove: bool) -> None:
        """The end for the last user: with `remove` the folder goes with all in it; then others may make it anew."""
        if remove:
            shutil.rmtree(self.path, ignore_errors=True)
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


class StartLock:
    """Exclusive among the ranks that share a folder; waits."""

    def __init__(self, path: Path) -> None:
        """Not locked yet."""
        self._path = path
        self._fd = -1

    def __enter__(self) -> None:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        end, said = time.monotonic() + START_LOCK_SECONDS, time.monotonic()
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                now = time.monotonic()
                if now > end:
                    os.close(self._fd)
                    raise LanefeedError(
                        f"waited {START_LOCK_SECONDS:g} s for another rank to index the data and start the sidecar "
                        f"({self._path})"
                    ) from None
                if now - said >= WORD_SECONDS:
                    said = now
                    log.warning("waiting for another rank to index the data and start the sidecar (%s)", self._path)
                time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
