"""Who still looks at which slot: a slot is released when the last view of its frame dies.

The loader leases each frame that it receives; the client's sender takes releases from `released` and tells the
sidecar. Finalizers run anywhere, also while some lock is held: they only set a flag and put to a SimpleQueue, which is
made for that (its put is reentrant).
"""

import weakref
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

__all__ = ["Lease", "Leases", "Release"]

#: (session, slot) of a slot whose last view is gone, or None to wake the sender.
Release = tuple[str, int] | None


class Lease:
    """The right to read one slot of one session. `alive` until its base array has died or it was dropped."""

    __slots__ = ("_queue", "alive", "session", "slot")

    def __init__(self, session: str, slot: int, queue: "SimpleQueue[Release]") -> None:
        """Alive at once: the sidecar signalled the frame."""
        self.session = session
        self.slot = slot
        self.alive = True
        self._queue = queue

    def watch(self, base: NDArray[np.uint8]) -> None:
        """Release when `base` dies; every view of the slot must chain to it."""
        weakref.finalize(base, self.drop).atexit = False

    def drop(self) -> None:
        """Release now, once. Called by finalizers: no lock, no I/O, nothing that can fail."""
        if self.alive:
            self.alive = False
            self._queue.put((self.session, self.slot))


class Leases:
    """All leases of a rank, oldest first, over sessions."""

    def __init__(self) -> None:
        """None yet."""
        self.released: SimpleQueue[Release] = SimpleQueue()
        self._leases: list[Lease] = []

    def add(self, session: str, slot: int) -> Lease:
        """Lease a slot whose frame was signalled."""
        lease = Lease(session, slot, self.released)
        self._leases = [old for old in self._leases if old.alive]
        self._leases.append(lease)
        return lease

    def held(self, session: str) -> list[int]:
        """Slots of `session` that are still leased."""
        return [lease.slot for lease in self._leases if lease.alive and lease.session == session]
