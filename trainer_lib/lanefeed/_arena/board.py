"""A rank's board as the trainer uses it: frames are read from it, slots and positions go back. docs/protocol.md.

Made by the session after an attach, for that life of the rank. `read` and `say` are for whoever takes frames, one at a
time; `release` may be called by any thread's finalizer. What a word means is `lanefeed_core.board`'s.
"""

from collections.abc import Sequence
from itertools import count

from google.protobuf.message import DecodeError

from lanefeed._arena.mapping import Arena
from lanefeed.errors import ArenaError
from lanefeed_core.board import PUBLISHED_BYTE, Noticer, board_bytes
from lanefeed_core.errors import LayoutError
from lanefeed_core.futex import Futex
from lanefeed_core.proto import lanefeed_pb2 as pb

__all__ = ["Board"]


class Board:
    """The board of one life of a rank, in its session's arena."""

    def __init__(self, arena: Arena, offset: int, slots: Sequence[int], life: int) -> None:
        """Raises ArenaError where there is no such board."""
        memory = arena.part(offset, board_bytes(len(slots)))
        try:
            self._words = Noticer(memory, len(slots), life)
        except LayoutError as error:
            raise ArenaError(f"{arena.path}: {error}; this is a bug of Lanefeed, please report it") from None
        self._published = Futex(memory, PUBLISHED_BYTE)
        self._released = Futex(memory, self._words.released_byte)
        self._base = slots[0]
        self._changes = count(1)

    def read(self, number: int) -> pb.Frame | None:
        """Frame `number`, or None while its description is not there, whole."""
        body = self._words.read(number)
        if body is None:
            return None
        try:
            return pb.Frame.FromString(body)
        except DecodeError:
            # What was written is no description: the message comes, or the stream begins again without a board.
            return None

    @property
    def published(self) -> int:
        """Frames announced so far, modulo 2**32; to be given to `wait`, read before `read`."""
        return self._words.published

    def release(self, slot: int, number: int) -> None:
        """Nobody looks at the arena's `slot` any more, which held frame `number`. No lock, nothing that can fail."""
        if self._words.release(slot - self._base, number, next(self._changes)):
            self._released.wake()

    def say(self, *, consumed: int | None = None, taken: int | None = None) -> None:
        """Where the trainer is."""
        self._words.say(consumed=consumed, taken=taken)

    def wait(self, seen: int, seconds: float) -> None:
        """Until a frame is announced after `published` was `seen`, `wake`, or so many seconds later."""
        self._published.wait(seen, seconds)

    def wake(self) -> None:
        """Whoever waits looks again."""
        self._published.wake()
