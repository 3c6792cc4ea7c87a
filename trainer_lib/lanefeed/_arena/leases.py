"""Who still looks at which slot: a slot is released when the last view of its frame dies.

The loader leases each frame that it receives. A release goes to the rank's board, if there is one; else the client's
sender takes it from `released` and tells the sidecar. Finalizers run anywhere, also while some lock is held: they only
set a flag, and write a word or put to a SimpleQueue, which is made for that (its put is reentrant).
"""

import sys
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lanefeed_core.board import HELD

__all__ = ["Lease", "Leases"]


class Returns(Protocol):
    """Where a slot is given back: `_arena.board.Board`."""

    def release(self, slot: int, number: int) -> None:
        """Slot of the arena, and the number of the frame in it."""


class Lease:
    """The right to read one slot of one session. `alive` until its base array has died or it was dropped."""

    __slots__ = ("_board", "_number", "_queue", "_unsent", "_watched", "alive", "session", "slot", "turn")

    def __init__(
        self,
        session: str,
        slot: int,
        turn: int,
        queue: "SimpleQueue[Lease | None]",
        board: Returns | None = None,
        number: int = 0,
    ) -> None:
        """Alive at once: the sidecar signalled the frame. `turn`: the attach that the sidecar knows it from.

        With a board the slot is given back there, as the one with frame `number` in it.
        """
        self.session = session
        self.slot = slot
        self.turn = turn
        self.alive = True
        self._queue = queue
        self._board = board
        self._number = number
        self._unsent = [True]
        #: Made once a frame, in next(): a tenth of what weakref.finalize costs. `Leases` keeps it, and so its callback.
        self._watched: weakref.ref[NDArray[np.uint8]] | None = None

    def watch(self, base: NDArray[np.uint8]) -> None:
        """Release when `base` dies; every view of the slot must chain to it."""
        self._watched = weakref.ref(base, self.drop)

    def drop(self, _watched: object = None, _over: Callable[[], bool] = sys.is_finalizing) -> None:
        """Release now, once. Called by finalizers: no lock, no I/O, nothing that can fail."""
        # At the interpreter's end modules are being taken apart, and the process's slots come back by themselves.
        if self.alive and not _over():
            self.alive = False
            self._send()

    def move(self, board: Returns | None, number: int) -> None:
        """After another attach: from now on the slot is given back there. The flag comes first in `drop` and last
        here, so that one of both sends it, or both do, which is the same as one.
        """
        before, self._number, self._board = self._board, number, board
        if not self.alive and before is not None:
            self._send()

    def forget(self) -> None:
        """Its life is over, and it was not carried into another: its board means nothing any more."""
        self._board = None

    def _send(self) -> None:
        board = self._board
        if board is not None:
            board.release(self.slot, self._number)
        elif self._unsent:
            try:
                self._unsent.pop()
            except IndexError:
                return
            self._queue.put(self)


class Leases:
    """All leases of a rank, oldest first, over sessions."""

    def __init__(self) -> None:
        """None yet."""
        #: Leases that have ended, for the sender; None wakes it.
        self.released: SimpleQueue[Lease | None] = SimpleQueue()
        self._leases: list[Lease] = []

    def add(self, session: str, slot: int, turn: int = 0, board: Returns | None = None, number: int = 0) -> Lease:
        """Lease a slot whose frame was signalled; `number` is the frame's, for the board."""
        lease = Lease(session, slot, turn, self.released, board, number)
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

    def settle(self, session: str, turn: int, board: Returns | None) -> None:
        """The attach number `turn` is done: leases that were carried into it are given back on its board (None: by
        message), those of other sessions to `released`. Whoever looks for memory to give back looks after this.
        """
        for lease in list(self._leases):
            if lease.session == session and lease.turn == turn:
                lease.move(board, HELD)
            else:
                lease.forget()
