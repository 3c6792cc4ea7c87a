"""How many connections the metrics server holds, and for how long: whoever reaches the port may open any number.

A connection takes a place before it has a thread. One whose request does not come in time, or whose answer is not
taken, is cut. Where all places are taken, one that waits gives way to the new one: nobody who says nothing keeps the
kubelet's probes and hooks out. Called by `http`; knows sockets, and nothing of HTTP.
"""

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["Places"]

#: The thread of a connection that was cut is gone in so long, or its place does not count as free.
HANDOVER_SECONDS = 1.0


@dataclass(slots=True)
class _Guest:
    address: str
    #: When its time began, by the clock.
    since: float
    #: Its answer is being made: that is our time, not its own.
    answering: bool = False


class Places:
    """Thread safe."""

    def __init__(self, places: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """So many at once; `seconds`: for a whole request, and again for its answer. `clock` is for tests."""
        self._seconds, self._clock = seconds, clock
        self._free = threading.BoundedSemaphore(places)
        self._lock = threading.Lock()
        self._guests: dict[socket.socket, _Guest] = {}

    def take(self, connection: socket.socket, address: str) -> bool:
        """Whether there is a place for it, also at the cost of another that waits. May take HANDOVER_SECONDS."""
        if not (self._free.acquire(blocking=False) or self._make_room()):
            return False
        with self._lock:
            self._guests[connection] = _Guest(address, self._clock())
        return True

    def _make_room(self) -> bool:
        return self._cut_one() and self._free.acquire(timeout=HANDOVER_SECONDS)

    def release(self, connection: socket.socket) -> None:
        """It is about to be closed, by its own thread. One that has no place is none of ours."""
        with self._lock:
            guest = self._guests.pop(connection, None)
        if guest is not None:
            self._free.release()

    @contextlib.contextmanager
    def answering(self, connection: socket.socket) -> Iterator[None]:
        """Its request is whole: meanwhile it is not cut, and afterwards it has its time once more."""
        with self._lock:
            guest = self._guests[connection]
            guest.answering = True
        try:
            yield
        finally:
            with self._lock:
                guest.answering, guest.since = False, self._clock()

    def cut_late(self) -> None:
        """End those whose time is over."""
        with self._lock:
            now = self._clock()
            for connection, guest in self._guests.items():
                if not guest.answering and now - guest.since > self._seconds:
                    _cut(connection)

    def _cut_one(self) -> bool:
        """End the one that waits longest, of the address that most of those come from; False: none only waits."""
        with self._lock:
            waiting = [(connection, guest) for connection, guest in self._guests.items() if not guest.answering]
            if not waiting:
                return False
            crowd = Counter(guest.address for _, guest in waiting)
            connection, _ = max(waiting, key=lambda one: (crowd[one[1].address], -one[1].since))
            _cut(connection)
            return True


def _cut(connection: socket.socket) -> None:
    """Under the lock, under which it is still open: what its thread waits for comes to an end."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
