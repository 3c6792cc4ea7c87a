"""Which commit sidecars may be told of: the newest that is persisted, and that has not been void since.

Used by `core` alone, under its lock; pure. A commit is not safe because one of more steps was persisted: all ranks may
have gone back since, so that the newest commit is of fewer steps, and of a way that no status knows of yet. What goes
back takes the commits of all versions with it, persisted or about to be, so a commit that is made again at a step that
was void counts anew.
"""

from lanefeed_core.book import JobCommit

__all__ = ["Safe"]


class Safe:
    """See the module."""

    def __init__(self, commit: JobCommit) -> None:
        """Begin with what the persisted status says."""
        self.commit = commit
        #: Number of the event that made it, so that lives that began later had no part in it; 0: before our time.
        self.event = 0
        self._coming: dict[int, tuple[JobCommit, int]] = {}

    def changed(self, version: int, commit: JobCommit, event: int) -> None:
        """`commit`, which `event` made, is the newest of this version, which is not persisted yet."""
        self._coming[version] = (commit, event)

    def went_back(self, step: int, commit: JobCommit) -> None:
        """Commits after `step` are void, in what comes too; `commit` is the newest that is left."""
        self._coming = {v: (c if c.step <= step else commit, event) for v, (c, event) in self._coming.items()}
        if self.commit.step > step:
            self.commit = commit

    def persisted(self, version: int) -> None:
        """Everything up to this version is durable."""
        for number in sorted(n for n in self._coming if n <= version):
            self.commit, self.event = self._coming.pop(number)
