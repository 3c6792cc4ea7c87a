"""The arena: one preallocated tmpfs file, a header, slots of one size (`lanefeed_core.layout`), a board a rank.

Every page is reserved with posix_fallocate before a byte is written, so that a full tmpfs is an error with numbers in
it and never SIGBUS. Each session has a file of its own (docs/adr/0003). Which rank may use which slot, and when, is
the feed's business; this module only has the memory.
"""

import errno
import mmap
import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lanefeed_core.board import board_bytes
from lanefeed_core.layout import HEADER_BYTES, MAGIC, VERSION
from lanefeed_core.slots import SlotState
from lanefeed_sidecar.errors import ArenaError

__all__ = ["Arena", "slot_stride"]

#: Slots begin at page borders.
PAGE = 4096
#: How long to wait for room that a dead session's arena still takes: a trainer may be reading its last frames.
ROOM_SECONDS = 3.0

_HEADER = struct.Struct("<8sIIQQ16s")


def slot_stride(slot_bytes: int) -> int:
    """Distance between slots: `slot_bytes` rounded up to a page."""
    return -(-slot_bytes // PAGE) * PAGE


class Arena:
    """The mapped file. Slot numbers count over all ranks; views stay valid as long as they are referenced."""

    def __init__(
        self,
        path: Path,
        *,
        session: str,
        slots: int,
        slot_bytes: int,
        plan_generation: int,
        ranks: int = 0,
        room_seconds: float = ROOM_SECONDS,
    ) -> None:
        """Make, reserve and map the file. Raises ArenaError where the folder cannot hold it.

        `ranks`: that many boards lie behind the slots, each for an equal part of them.
        """
        self.path = path
        self.slots = slots
        self.slot_bytes = slot_stride(slot_bytes)
        self._slots_end = HEADER_BYTES + slots * self.slot_bytes
        self._board_bytes = board_bytes(slots // ranks) if ranks else 0
        self.bytes = self._slots_end + ranks * self._board_bytes
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o660)
        try:
            os.fchmod(fd, 0o660)
            self._reserve(fd, room_seconds)
            self._map = mmap.mmap(fd, self.bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(fd)
        whole = np.frombuffer(self._map, dtype=np.uint8)
        at = [HEADER_BYTES + s * self.slot_bytes for s in range(slots)]
        self._views = [whole[start : start + self.slot_bytes] for start in at]
        self._words: Sequence[NDArray[np.uint64]] = [view[:24].view(np.uint64) for view in self._views]
        header = _HEADER.pack(MAGIC, VERSION, slots, self.slot_bytes, plan_generation, bytes.fromhex(session))
        self._map[: len(header)] = header

    def view(self, slot: int) -> NDArray[np.uint8]:
        """The slot's bytes, header included: uint8 [slot_bytes], writable."""
        return self._views[slot]

    def board_offset(self, rank: int) -> int:
        """Where the board of the pod's `rank`-th rank begins in the file."""
        return self._slots_end + rank * self._board_bytes

    def board(self, rank: int) -> memoryview:
        """The bytes of that board."""
        start = self.board_offset(rank)
        return memoryview(self._map)[start : start + self._board_bytes]

    def mark(self, slot: int, state: SlotState) -> None:
        """Write the slot's state word."""
        self._words[slot][0] = state

    def publish(self, slot: int, sequence: int, first_step: int) -> None:
        """The slot's frame is whole: number it, and write the state word last."""
        words = self._words[slot]
        words[1] = sequence
        words[2] = first_step
        words[0] = SlotState.READY

    def close(self) -> None:
        """Unlink the file. Mappings, ours and the trainers', live as long as somebody holds a view."""
        self.path.unlink(missing_ok=True)

    def _reserve(self, fd: int, room_seconds: float) -> None:
        deadline = time.monotonic() + room_seconds
        while True:
            try:
                os.posix_fallocate(fd, 0, self.bytes)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG):
                    raise ArenaError(f"cannot make the arena {self.path}: {error.strerror}") from None
                os.ftruncate(fd, 0)
                fits = self._fits(fd)
                if not fits or time.monotonic() > deadline:
                    raise self._no_room(fd, fits=fits) from None
                time.sleep(0.05)
            else:
                return

    def _fits(self, fd: int) -> bool:
        """Whether the file system is large enough once others have left it."""
        stat = os.fstatvfs(fd)
        return stat.f_blocks == 0 or stat.f_blocks * stat.f_frsize >= self.bytes

    def _no_room(self, fd: int, *, fits: bool) -> ArenaError:
        stat = os.fstatvfs(fd)
        free, whole = stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize
        error = ArenaError(
            f"the arena needs {self.bytes} bytes ({self.slots} slots of {self.slot_bytes} bytes) and "
            f"{self.path.parent} has {free} of {whole} bytes available: make the tmpfs larger (sizeLimit of the "
            "emptyDir, or /dev/shm), or lower sidecar.slots or sidecar.slotBytes"
        )
        error.retryable = fits
        return error
