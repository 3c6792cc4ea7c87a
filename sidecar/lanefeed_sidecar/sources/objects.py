"""What a store of remote objects is: listing, and reads of byte ranges that fail with a known kind.

Implemented by `http`, `s3`, `arrowfs` and `plugins`; used by `remote` (listing) and `reads` (everything about trying
again). A store tries once and says what happened; it decides nothing.
"""

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Attempt", "ObjectInfo", "ObjectStore", "ReadFailed", "KINDS"]

#: Kinds of failures: what each means, and whether the same read may succeed later.
KINDS = {
    "timeout": True,  # no answer, or no byte of it, in time
    "reset": True,  # the connection broke
    "connect": True,  # no connection: refused, unreachable, unknown host
    "throttled": True,  # 429, 503
    "server": True,  # 500, 502, 504
    "short": True,  # the body ended early
    "damaged": True,  # the right version, and yet not its bytes
    "range": True,  # other bytes than those asked for
    "expired": False,  # credentials that ended: read anew once
    "denied": False,  # 401, 403
    "credentials": False,  # none were found
    "missing": False,  # 404
    "changed": False,  # another version than the one that the manifest pins
    "refused": False,  # any other answer that will not change
    "cancelled": False,  # another read of the same bytes was quicker
}


class ReadFailed(Exception):
    """One try failed. The text says what the store said, without the object's name or any secret."""

    def __init__(self, kind: str, text: str, retry_after: float = 0.0) -> None:
        """`kind` is one of KINDS; `retry_after`: seconds that the store asked to wait."""
        super().__init__(text)
        self.kind, self.retry_after = kind, retry_after


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object: its key in the store, bytes, and the store's word for its version (an ETag, or a time)."""

    key: str
    size: int
    version: str


class Attempt:
    """One try of a read, that another thread may cancel: then the connection is cut and the try ends at once."""

    def __init__(self) -> None:
        """Nothing to cut yet."""
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self.cancelled = False

    def holds(self, connection: socket.socket | None) -> None:
        """The try reads from this socket now; None: from none. Raises ReadFailed if it was cancelled."""
        with self._lock:
            self._socket = connection
            if self.cancelled and connection is not None:
                raise ReadFailed("cancelled", "another read was quicker")

    def deliver(self, view: memoryview, data: bytes) -> None:
        """Copy what came, unless it comes too late. For libraries whose reads cannot be cut."""
        with self._lock:
            if self.cancelled:
                raise ReadFailed("cancelled", "another read was quicker")
            view[:] = data

    def cancel(self) -> bool:
        """End it; whether it may write for a moment longer, until its socket tells it."""
        with self._lock:
            self.cancelled = True
            if self._socket is None:
                return False
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            return True


class ObjectStore(Protocol):
    """One bucket, host or file system. Thread safe; every method tries once and raises ReadFailed."""

    #: For messages: where this is, as `s3://bucket at http://host`.
    place: str

    def below(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects whose key begins with `prefix`, in any order."""
        ...

    def stat(self, key: str) -> ObjectInfo:
        """One object."""
        ...

    def read(self, key: str, start: int, view: memoryview, attempt: Attempt) -> str:
        """Fill `view` with the object's bytes from `start`; returns the version read, "" where it is unknown."""
        ...

    def refresh(self, since: float) -> bool:
        """Read credentials anew, unless that was done after `since` (monotonic); False where there are none."""
        ...

    def close(self) -> None:
        """Close idle connections."""
        ...
