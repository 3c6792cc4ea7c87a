"""A run folder that the user named (`run_dir=`): one life at a time, and nothing of an earlier one counts.

A folder of our own making is named by what is read in it and goes with its last user. A named one stays, and whoever
comes next may read other data in another world: the earlier manifest, book and starts would be taken for its own. So
the first user of a life removes them, before anybody indexes; those who come while it lasts must want the same.
Made by `sidecar`. It neither starts a sidecar nor knows what a life is about: that is a text to compare.
"""

import fcntl
import logging
import os
from collections.abc import Callable
from pathlib import Path

from lanefeed._local.folder import JOIN_SECONDS, USERS, RunFolder, lock
from lanefeed.errors import LanefeedError, UsageError

__all__ = ["LEFT", "NamedFolder"]

log = logging.getLogger("lanefeed")

#: What one life is about, in its folder.
_LIFE = "life.json"
#: What a life leaves and the next one must not read. Logs stay for people, the token for whoever wrote it, and arenas
#: and sockets go when the next sidecar starts.
LEFT = ("manifest.bin", "book.json", "ranks.json", "commits.jsonl", "pod.json", "pod.new")


class NamedFolder(RunFolder):
    """A folder that this process uses with those who want the same, or after all others have left."""

    def __init__(self, path: Path, life: str, *, kept: bool, end: Callable[[RunFolder], int]) -> None:
        """Join it, or begin a life in it.

        Args:
            life: what it is used for; ranks that share it give the same text.
            kept: a living sidecar without users is of this life if its text is: torchrun starts ranks anew, and the
                sidecar is its agent's. Otherwise it is about to follow its dead owner.
            end: ends the folder's sidecar; returns after it is gone, or after a while.

        Raises UsageError if others use it for something else, LanefeedError if it cannot be made.
        """
        self._life, self._kept, self._end = life, kept, end
        self._others = False
        super().__init__(path)

    def _take(self) -> int | None:
        """The users' lock, shared, in a life of our own kind; None if it cannot be had just now."""
        fd = lock(self.path / USERS, fcntl.LOCK_EX)
        if fd is None:
            return self._share()
        try:
            # Nobody uses the folder: whoever indexes has the shared lock. Between the two locks another one may come
            # in, and then begins the life once more, before anybody has read anything.
            if self._same(fd) and self._begin():
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return fd
        except BlockingIOError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        return None

    def _share(self) -> int | None:
        """The lock beside other users. Who wants something else does not touch it: somebody may be leaving just now."""
        if self._said() != self._life:
            if not self._others:
                log.info("waiting for the loaders that read something else in %s", self.path)
            self._others = True
            return None
        fd = lock(self.path / USERS, fcntl.LOCK_SH)
        if fd is not None and self._said() != self._life:
            os.close(fd)
            return None
        return fd

    def _begin(self) -> bool:
        """A life of our own, with the lock for us alone; False if the former one's sidecar does not end."""
        if self.has_sidecar():
            if self._kept and self._said() == self._life:
                return True
            self._end(self)
            if self.has_sidecar():
                return False
        for name in (_LIFE, *LEFT):
            (self.path / name).unlink(missing_ok=True)
        (self.path / _LIFE).write_text(self._life)
        return True

    def _said(self) -> str:
        try:
            return (self.path / _LIFE).read_text()
        except FileNotFoundError:
            return ""

    def _refused(self) -> LanefeedError:
        if not self._others:
            return super()._refused()
        return UsageError(
            f"run_dir {self.path} has been in use for {JOIN_SECONDS:g} s by loaders of other data, order or world, or "
            "of another launcher: close them first, or give this one another folder. Ranks of one launcher, each "
            "with a wrapper script for its parent, share one if the scripts `exec` python"
        )
