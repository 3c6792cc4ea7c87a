"""Who still looks at which slot: a slot is released when the last view of its frame dies.

The loader leases each frame that it receives; the client's sender takes releases from `released` and tells the
sidecar. Finalizers run anywhere, also while some lock is held: they only set a flag and put to a SimpleQueue, which is
made for that (its put is reentrant).
"""

import weakref
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

__all__ = ["Lease", "Leases"]


class Lease:
    """The right to read one slot of one session. `alive` until its base array has died or it was dropped."""

    __slots__ = ("_queue", "alive", "session", "slot", "turn")

    def __init__(self, session: str, slot: int, turn: int, queue: "SimpleQueue[Lease | None]") -> None:
        """Alive at once: the sidecar signalled the frame. `turn`: the attach that the sidecar knows it from."""
        self.session = session
        self.slot = slot
        self.turn = turn
        self.alive = True
        self._queue = queue

    def watch(self, base: NDArray[np.uint8]) -> None:
        """Release when `base` dies; every view of the slot must chain to it."""
        weakref.finalize(base, self.drop).atexit = False

    def drop(self) -> None:
        """Release now, once. Called by finalizers: no lock, no I/O, nothing that can fail."""
        if self.alive:
            self.alive = False
            self._queue.put(self)


class Leases:
    """All leases of a rank, oldest first, over sessions."""

    def __init__(self) -> None:
        """None yet."""
        #: Leases that have ended, for the sender; None wakes it.
        self.released: SimpleQueue[Lease | None] = SimpleQueue()
        self._leases: list[Lease] = []

    def add(self, session: str, slot: int, turn: int = 0) -> Lease:
        """Lease a slot whose frame was signalled."""
        lease = Lease(session, slot, turn, self.released)
        self._leases = [old for old in self._leases if old.alive]
        self._leases.append(lease)
        return lease

    def held(self, session: str) -> list[int]:
        """Slots of `session` that are still leased."""
        return [lease.slot for lease in self._leases if lease.alive and lease.session == session]

    def carry(self, session: str, turn: int) -> list[int]:
        """Take the leases of `session` that still live into another attach; their slots.

        The sidecar frees all other slots at that attach, so releases that wait since before it must not be sent any
        more: they could free a slot that is in use again. They keep their old turn, which tells them apart. A lease
        that dies just now is carried, and released after the attach.
        """
        slots = []
        for lease in list(self._leases):
            if lease.session == session and lease.alive:
                lease.turn = turn
                slots.append(lease.slot)
        return slots
