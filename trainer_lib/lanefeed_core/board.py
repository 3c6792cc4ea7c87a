"""The board: how frames are announced, and slots given back, through shared memory. docs/protocol.md, "The board".

Each rank has one in the arena, behind the slots. Used by the sidecar's and the trainer's `arena` rooms; this module has
the bytes and the decisions, and no wait. No word here is believed because of when it was written: a description carries
its number and a checksum, a release names the frame that it releases, other numbers are sealed. What is torn, stale or
of another life is simply not there (yet).
"""

import platform
import threading
import zlib
from struct import Struct

from lanefeed_core.errors import LayoutError

__all__ = ["ENTRY_BYTES", "HELD", "Announcer", "Noticer", "board_bytes", "fence", "seal", "tag", "unseal"]

#: Bytes of an entry: its head and a description. One that is larger goes by message.
ENTRY_BYTES = 8192
#: Each life of a rank has its own words to write to, so that a process that was replaced disturbs no successor of its.
AREAS = 4
#: Stands for the frame's number where a slot is held since a former life.
HELD = (1 << 40) - 2

_MAGIC = int.from_bytes(b"LFBOARD1", "little")
_PAGE = 4096
_LINE = 64
# Words of 8 bytes from the board's start: written by the sidecar only.
_AT_MAGIC, _AT_LIFE, _AT_SLOTS = 0, 1, 2
#: Byte of the u32 that counts announced frames: the trainer waits on it.
PUBLISHED_BYTE = _LINE
_AREAS_BYTE = 2 * _LINE
# An area: byte 0: a u32 that changes with each release (the sidecar waits on it); words; then a word a slot.
_AT_CONSUMED, _AT_TAKEN, _AT_RELEASES = 1, 2, _LINE // 8

#: Number, length, checksum of a description.
_HEAD = Struct("<QII")
#: Every bit of a number changes the upper bits of its product.
_SPREAD = 0x9E3779B97F4A7C15
_SALT = Struct("<QQ")


def _area_bytes(slots: int) -> int:
    return _LINE + -(-8 * slots // _LINE) * _LINE


def _entries_byte(slots: int) -> int:
    return -(-(_AREAS_BYTE + AREAS * _area_bytes(slots)) // _PAGE) * _PAGE


def board_bytes(slots: int) -> int:
    """Bytes of the board of a rank with so many slots, whole pages."""
    return _entries_byte(slots) + slots * ENTRY_BYTES


#: x86 keeps the order of reads among themselves and of writes among themselves, which is all that is asked for here.
_REORDERS = platform.machine() not in ("x86_64", "AMD64")


def fence() -> None:
    """What was read and written before is done before what follows, also on CPUs that reorder (docs/protocol.md).

    Two turns of a lock: the release of the first and the acquisition of the second cannot change places. The lock is
    nobody else's, so that finalizers may call this anywhere.
    """
    if not _REORDERS:
        return
    lock = threading.Lock()
    with lock:
        pass
    with lock:
        pass


def tag(life: int, number: int) -> int:
    """The word that says: frame `number` of `life` is released. Never 0."""
    return (life & 0xFFFFFF) << 40 | (number + 1)


def seal(value: int) -> int:
    """A number below 2**48 with 16 bits of check, so that a half-written word is none. Never 0."""
    return value << 16 | ((value + 1) * _SPREAD >> 48 & 0xFFFF)


def unseal(word: int) -> int | None:
    """The number in the word, or None where there is none."""
    value = word >> 16
    return value if seal(value) == word else None


def _check(life: int, number: int, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(_SALT.pack(life, number)))


class _Board:
    """One rank's board in `memory`: views of words."""

    def __init__(self, memory: memoryview, slots: int) -> None:
        if len(memory) < board_bytes(slots):
            raise LayoutError(f"a board for {slots} slots takes {board_bytes(slots)} bytes and there are {len(memory)}")
        self.memory = memory
        self.slots = slots
        self._words = memory[: _entries_byte(slots)].cast("Q")
        self._halves = memory[: _entries_byte(slots)].cast("I")
        self._at: list[int] = [_entries_byte(slots) + s * ENTRY_BYTES for s in range(slots)]
        self._numbers = memory.cast("Q")
        #: First word of the life's area.
        self._area = 0

    def _use(self, life: int) -> None:
        self._area = (_AREAS_BYTE + life % AREAS * _area_bytes(self.slots)) // 8

    @property
    def released_byte(self) -> int:
        """Where the u32 lies that changes with each release."""
        return self._area * 8

    @property
    def published(self) -> int:
        """Frames that were announced in this life, modulo 2**32, also those that went by message."""
        return self._halves[PUBLISHED_BYTE // 4]

    @property
    def releases(self) -> int:
        """Changes with each release."""
        return self._halves[self._area * 2]


class Announcer(_Board):
    """The sidecar's side: one thread announces, any may look."""

    life = 0

    def begin(self) -> int:
        """A new life of the rank: nothing that was written before counts. Its number."""
        words = self._words
        words[_AT_LIFE] = 0
        self.life += 1
        self._use(self.life)
        for at in range(self._area, self._area + _area_bytes(self.slots) // 8):
            words[at] = 0
        for at in self._at:
            _HEAD.pack_into(self.memory, at, 0, 0, 0)
        self._halves[PUBLISHED_BYTE // 4] = 0
        words[_AT_MAGIC], words[_AT_SLOTS] = _MAGIC, self.slots
        fence()
        words[_AT_LIFE] = self.life
        return self.life

    def write(self, number: int, body: bytes) -> bool:
        """Write frame `number`'s description, which nobody sees before `show`; False where it does not fit.

        The entry's former frame was read long ago: so many frames later its slot must have come back.
        """
        if len(body) > ENTRY_BYTES - _HEAD.size:
            return False
        at = self._at[number % self.slots]
        # The slot's bytes come before the description of them, and a reader of the old one is gone.
        fence()
        _HEAD.pack_into(self.memory, at, 0, len(body), _check(self.life, number, body))
        self.memory[at + _HEAD.size : at + _HEAD.size + len(body)] = body
        return True

    def show(self, number: int, *, by_message: bool = False) -> None:
        """The description of frame `number` is whole, or comes by message."""
        fence()
        if not by_message:
            at = self._at[number % self.slots]
            self._numbers[at // 8] = number + 1
        self._halves[PUBLISHED_BYTE // 4] = number + 1 & 0xFFFFFFFF

    def released(self, slot: int, number: int) -> bool:
        """Whether the trainer gave back the rank's `slot`, which holds frame `number` (HELD: one of a former life)."""
        return self._words[self._area + _AT_RELEASES + slot] == tag(self.life, number)

    @property
    def consumed(self) -> int | None:
        """The next step to consume, as the trainer said last."""
        return unseal(self._words[self._area + _AT_CONSUMED])

    @property
    def taken(self) -> int:
        """Frames that the trainer has read."""
        return unseal(self._words[self._area + _AT_TAKEN]) or 0


class Noticer(_Board):
    """The trainer's side, for one life."""

    def __init__(self, memory: memoryview, slots: int, life: int) -> None:
        """Raises LayoutError where there is no such board."""
        super().__init__(memory, slots)
        magic, found = self._words[_AT_MAGIC], self._words[_AT_SLOTS]
        if magic != _MAGIC or found != slots:
            raise LayoutError(
                f"the arena has no board for {slots} slots where the sidecar says (it begins with {magic:#x}, {found})"
            )
        self.life = life
        self._taken = 0
        self._use(life)

    @property
    def current(self) -> bool:
        """Whether this life is still the rank's: nobody has attached in its place."""
        return self._words[_AT_LIFE] == self.life

    def read(self, number: int) -> bytes | None:
        """Frame `number`'s description, or None while it is not there, whole."""
        at = self._at[number % self.slots]
        seen, length, check = _HEAD.unpack_from(self.memory, at)
        if seen != number + 1 or length > ENTRY_BYTES - _HEAD.size:
            return None
        fence()
        body = bytes(self.memory[at + _HEAD.size : at + _HEAD.size + length])
        if check != _check(self.life, number, body) or not self.current:
            return None
        fence()
        return body

    def release(self, slot: int, number: int, change: int) -> bool:
        """Nobody looks at `slot` any more, which held frame `number`; `change` is any number but the one before.

        Whether the sidecar should be woken: half of the slots or fewer hold frames that were not read yet. Otherwise
        it looks in time by itself, and fills several slots in a row.
        """
        fence()
        words, area = self._words, self._area
        if words[_AT_LIFE] != self.life:
            return False
        words[area + _AT_RELEASES + slot] = tag(self.life, number)
        fence()
        self._halves[area * 2] = change & 0xFFFFFFFF
        unread = self._halves[PUBLISHED_BYTE // 4] - self._taken & 0xFFFFFFFF
        return unread <= self.slots // 2

    def say(self, *, consumed: int | None = None, taken: int | None = None) -> None:
        """Where the trainer is: the next step to consume, and how many frames it has read."""
        words, area = self._words, self._area
        if words[_AT_LIFE] != self.life:
            return
        if consumed is not None:
            words[area + _AT_CONSUMED] = seal(consumed)
        if taken is not None:
            self._taken = taken
            words[area + _AT_TAKEN] = seal(taken)
