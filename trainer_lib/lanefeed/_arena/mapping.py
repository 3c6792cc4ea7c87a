"""One session's arena, mapped into the trainer.

The client makes one for each session. The mapping outlives the file and the session: it is unmapped when the last view
of it dies. Every frame gets a base array of its own (`slot`), which all views chain to.
"""

import logging
import mmap
import os
import struct

import numpy as np
from numpy.typing import NDArray

from lanefeed.errors import ArenaError, ProtocolMismatch
from lanefeed_core.layout import HEADER_BYTES, MAGIC, VERSION

__all__ = ["Arena"]

log = logging.getLogger("lanefeed")

#: magic, version, slots, slot bytes, plan generation, session (layout.HEADER_BYTES).
_HEADER = struct.Struct("<8sIIQQ16s")
_SLOT_HEADER = struct.Struct("<QQQ")


class Arena:
    """The arena file at `path`, writable. Raises ArenaError or ProtocolMismatch if it is not what the sidecar said."""

    def __init__(self, path: str, nbytes: int, slot_bytes: int, session: str) -> None:
        """Map the file and check its header."""
        self.session = session
        self.path = path
        self.slot_bytes = slot_bytes
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise ArenaError(
                f"cannot open the arena {path}: {error.strerror}; trainer and sidecar must share this folder, and the "
                "trainer must be in its group"
            ) from error
        try:
            size = os.fstat(fd).st_size
            if size < nbytes:
                raise ArenaError(f"the arena {path} has {size} bytes and the sidecar said {nbytes}: it was cut off")
            memory = mmap.mmap(fd, nbytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(fd)
        self._memory = memory
        #: All bytes, uint8 [nbytes]; a device registers it and unregisters when it dies, before the memory is unmapped.
        self.root: NDArray[np.uint8] = np.frombuffer(memory, dtype=np.uint8)
        self._check(slot_bytes)
        #: Bytes of each slot that was asked for: cutting them out of the whole costs next() as much as the rest.
        self._slots: dict[int, memoryview] = {}

    def _check(self, slot_bytes: int) -> None:
        magic, version, slots, size, _, session = _HEADER.unpack_from(self._memory)
        if magic != MAGIC:
            raise ArenaError(f"{self.path} is no arena (it begins with {magic!r})")
        if version != VERSION:
            raise ProtocolMismatch(
                f"the arena {self.path} has layout version {version} and this trainer library knows {VERSION}: use the "
                "same Lanefeed version in both images"
            )
        if size != slot_bytes or session.hex() != self.session or HEADER_BYTES + slots * size > len(self.root):
            raise ArenaError(
                f"the arena {self.path} belongs to session {session.hex()} with {slots} slots of {size} bytes, and the "
                f"sidecar's session is {self.session} with slots of {slot_bytes} bytes"
            )

    def part(self, start: int, size: int) -> memoryview:
        """Bytes of the mapping, writable. Raises ArenaError where there are none."""
        if start + size > len(self.root):
            raise ArenaError(f"the arena {self.path} has {len(self.root)} bytes: none from {start} to {start + size}")
        return memoryview(self._memory)[start : start + size]

    def give_back(self, slot: int) -> None:
        """Free the memory of a slot that nobody will look at again: of a session that is over, its file unlinked."""
        try:
            self._memory.madvise(mmap.MADV_REMOVE, HEADER_BYTES + slot * self.slot_bytes, self.slot_bytes)
        except (OSError, ValueError) as error:
            # Then it goes with the whole mapping.
            log.debug("slot %d of %s cannot be given back: %s", slot, self.path, error)

    def slot(self, slot: int, sequence: int, first_step: int) -> NDArray[np.uint8]:
        """The bytes of a slot, uint8 [slot_bytes]: a new base array. Raises ArenaError if it holds another frame."""
        part = self._slots.get(slot)
        if part is None:
            start = HEADER_BYTES + slot * self.slot_bytes
            if start + self.slot_bytes > len(self.root):
                raise ArenaError(f"slot {slot} lies outside the arena {self.path} of {len(self.root)} bytes")
            part = self._slots[slot] = self.root.data[start : start + self.slot_bytes]
        # Through a memoryview: NumPy gives a view of a view the first array as base, and would skip this one, whose
        # death releases the slot, unless this one's own base is no array.
        base: NDArray[np.uint8] = np.frombuffer(part, dtype=np.uint8)
        _, found, step = _SLOT_HEADER.unpack_from(part)
        if (found, step) != (sequence, first_step):
            raise ArenaError(
                f"slot {slot} of {self.path} holds frame {found} (step {step}), frame {sequence} (step {first_step}) "
                "was signalled: the slot was used again too early; this is a bug of Lanefeed, please report it"
            )
        return base
