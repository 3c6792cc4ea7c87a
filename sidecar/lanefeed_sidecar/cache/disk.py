"""A bounded folder of entries that several sidecars of one node may share, and that a crash at any byte leaves usable.

Names are a function of content, so two writers of one entry write the same bytes; the second rename wins and nothing
is lost. What the folder holds is kept in a small file under a lock; who opens the folder alone counts anew and sweeps
what a crash left. Removing is unlinking: whoever has the entry open reads on. Knows names and bytes, no meaning.
"""

import fcntl
import logging
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lanefeed_sidecar.errors import ConfigError

__all__ = ["DiskCache"]

log = logging.getLogger(__name__)

LOCK, USAGE, ALIVE = "lock", "usage", "alive"
TEMPORARY = ".new-"
_FOLDER = re.compile(r"[0-9a-f]{32}")
_ENTRY = re.compile(rf"[0-9]+|{re.escape(TEMPORARY)}{_FOLDER.pattern}")
#: Entries of others that nobody has read for so long may go when room is needed.
IDLE_SECONDS = 120.0


class DiskCache:
    """Entries by name ("<32 hex digits>/<number>"), at most `limit` bytes in all. Thread safe."""

    def __init__(self, root: Path, limit: int) -> None:
        """Make or join the folder. Raises ConfigError where it cannot be used."""
        self.root, self.limit = root, limit
        # Joining pathlib's paths costs as much as opening the file.
        self._prefix = f"{root}/"
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._alive = os.open(root / ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
            with self._locked():
                self._join()
        except OSError as error:
            raise ConfigError(
                f"the cache folder {root} cannot be used: {error.strerror}; give the sidecar a folder that it may "
                "write, or leave the cache out"
            ) from None

    def _join(self) -> None:
        """Alone: count, and sweep what a crash left. Then hold the folder, shared."""
        try:
            fcntl.flock(self._alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            self._recount()
        fcntl.flock(self._alive, fcntl.LOCK_SH)

    def _recount(self) -> None:
        used = 0
        for path, stat in self._files():
            if path.name.startswith(TEMPORARY):
                path.unlink(missing_ok=True)
            else:
                used += stat.st_size
        self._set_used(used)

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Entries, and what is being written: nothing else in the folder is ours to count or to remove."""
        for folder in os.scandir(self.root):
            if not (_FOLDER.fullmatch(folder.name) and folder.is_dir(follow_symlinks=False)):
                continue
            for entry in os.scandir(folder):
                try:
                    if _ENTRY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        yield Path(entry.path), entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    # Another sidecar has just removed it.
                    continue

    # ---- bytes -------------------------------------------------------------------------------------------------

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclusive among all processes and threads; held for a few system calls."""
        # A descriptor of its own each time: flock is per open file, so that threads exclude each other too.
        fd = os.open(self.root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    @property
    def used(self) -> int:
        """Bytes of all entries, and of those being written."""
        try:
            return int((self.root / USAGE).read_text() or 0)
        except (FileNotFoundError, ValueError):
            return 0

    def _set_used(self, used: int) -> None:
        """In one write of one length: a process that is killed leaves the old number or the new one."""
        fd = os.open(self.root / USAGE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o660)
        try:
            os.pwrite(fd, f"{max(0, used):020}".encode(), 0)
        finally:
            os.close(fd)

    def _reserve(self, size: int) -> bool:
        with self._locked():
            used = self.used
            if used + size > self.limit:
                return False
            self._set_used(used + size)
            return True

    def _give_back(self, size: int) -> None:
        with self._locked():
            self._set_used(self.used - size)

    # ---- entries -----------------------------------------------------------------------------------------------

    def open(self, name: str) -> tuple[int, int] | None:
        """A descriptor of the entry, to be closed by the caller, and its bytes; None where there is none."""
        try:
            fd = os.open(self._prefix + name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            stat = os.fstat(fd)
        except OSError:
            os.close(fd)
            return None
        if stat.st_mtime < time.time() - IDLE_SECONDS / 4:
            # Others see by it that the entry is wanted.
            with suppress(OSError):
                os.utime(fd)
        return fd, stat.st_size

    def has(self, name: str) -> bool:
        """Whether the entry is there."""
        return os.path.exists(self._prefix + name)

    def add(self, name: str, size: int, write: Callable[[int], int]) -> bool:
        """Reserve about `size` bytes and write the entry with `write(fd)`, which returns its bytes.

        False where there is no room. Raises OSError where it could not be written; nothing of it is left then.
        """
        if not self._reserve(size):
            return False
        path = self.root / name
        temporary = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
        written = 0
        try:
            path.parent.mkdir(exist_ok=True)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o660)
            try:
                made = write(fd)
            finally:
                os.close(fd)
            with self._locked():
                before = _size(path)
                temporary.replace(path)
                written = made
                self._set_used(self.used - before)
        finally:
            temporary.unlink(missing_ok=True)
            self._give_back(size - written)
        return True

    def remove(self, name: str) -> int:
        """Unlink the entry; its bytes, 0 where it was gone."""
        path = self.root / name
        with self._locked():
            size = _size(path)
            try:
                path.unlink()
            except FileNotFoundError:
                return 0
            self._set_used(self.used - size)
        return size

    def idle(self, now: float | None = None) -> Iterator[str]:
        """Names of entries that nobody has read or written lately, the longest first."""
        before = (time.time() if now is None else now) - IDLE_SECONDS
        found = [(stat.st_mtime, path) for path, stat in self._files() if stat.st_mtime < before]
        for _, path in sorted(found):
            yield f"{path.parent.name}/{path.name}"

    def close(self) -> None:
        """Leave the folder; the entries stay."""
        os.close(self._alive)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
