"""Who takes row groups that the decoded cache holds: fewer threads than decode, and fill threads that would wait.

Reading an entry is a few short calls. After each of them a thread waits for another one's GIL, so that as many threads
as there are cores read less together than one fewer does, with a fill thread that helps (`help`). Called by the store
under its lock. Pure: no thread, no clock.
"""

from collections.abc import Iterator

from lanefeed_sidecar.pipeline.pieces import RowGroupKey
from lanefeed_sidecar.pipeline.tasks import Fits

__all__ = ["Share"]

#: Row groups that are passed over at most, by one who looks for what is not left to others.
_LOOK = 4


def _nothing(_group: RowGroupKey) -> bool:
    return False


class Share:
    """At most `most` decode threads at a time read what `reads` says is there to be read."""

    def __init__(self, reads: Fits = _nothing, most: int = 1) -> None:
        """Without arguments nothing is left to anybody."""
        self._reads, self._most = reads, most
        self._reading: set[RowGroupKey] = set()
        #: Whether the last look of a decode thread left something to those that read already.
        self.left = False

    def open_to(self, candidates: Iterator[RowGroupKey], *, helping: bool) -> Iterator[RowGroupKey]:
        """Those that a decode thread may take now or, `helping`, a fill thread."""
        passed, self.left = 0, False
        for group in candidates:
            reads = self._reads(group)
            if reads if helping else not reads or len(self._reading) < self._most:
                yield group
            else:
                passed, self.left = passed + 1, not helping
            if passed >= _LOOK:
                return

    def begin(self, group: RowGroupKey) -> bool:
        """A decode thread took it; whether it reads."""
        if not self._reads(group):
            return False
        self._reading.add(group)
        return True

    def end(self, group: RowGroupKey) -> None:
        """Whoever had it is done with it."""
        self._reading.discard(group)
