"""A rank's board as the sidecar uses it: frames go up, slots and positions come back, and waiting for a slot.

Made by the hub, one for each rank of the session; driven by `feed.life`. What a word means is `lanefeed_core.board`'s.
"""

from lanefeed_core.board import HELD, PUBLISHED_BYTE, Announcer
from lanefeed_core.futex import Futex, available
from lanefeed_sidecar import failpoints
from lanefeed_sidecar.arena.arena import Arena

__all__ = ["HELD", "Board", "boards"]


class Board:
    """One rank's board over its lives."""

    def __init__(self, memory: memoryview, slots: int) -> None:
        """Nobody is attached."""
        self._memory = memory
        self._words = Announcer(memory, slots)
        self._published = Futex(memory, PUBLISHED_BYTE)
        self._released = self._published

    def begin(self) -> int:
        """A life of the rank begins; its number, for the trainer. Words of former lives do not count any more."""
        life = self._words.begin()
        self._released = Futex(self._memory, self._words.released_byte)
        return life

    def announce(self, number: int, description: bytes) -> bool:
        """Show frame `number` to the trainer; False where its description is too large and must go by message."""
        fits = self._words.write(number, description)
        failpoints.hit("board.mid_write")
        self._words.show(number, by_message=not fits)
        failpoints.hit("board.before_wake")
        self._published.wake()
        return fits

    def released(self, slot: int, number: int) -> bool:
        """Whether the trainer gave back the rank's `slot` with frame `number` in it."""
        return self._words.released(slot, number)

    @property
    def consumed(self) -> int | None:
        """The next step to consume, as the trainer said last; None: it has not."""
        return self._words.consumed

    @property
    def taken(self) -> int:
        """Frames that the trainer has read."""
        return self._words.taken

    @property
    def releases(self) -> int:
        """To be given to `wait`; read before looking for released slots."""
        return self._words.releases

    def wait(self, seen: int, seconds: float) -> None:
        """Until a slot is released after `releases` was `seen`, `wake`, or so many seconds later."""
        self._released.wait(seen, seconds)

    def wake(self) -> None:
        """Whoever waits for a slot looks again."""
        self._released.wake()


def boards(arena: Arena, ranks: range) -> dict[int, Board]:
    """The boards of the pod's ranks; none where the machine cannot wait on shared memory."""
    if not available():
        return {}
    each = arena.slots // len(ranks)
    return {rank: Board(arena.board(rank - ranks.start), each) for rank in ranks}
