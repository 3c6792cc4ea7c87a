"""Arenas of lost sessions: their memory goes back slot by slot, not when the last tensor of them dies.

A sidecar that restarts makes a new arena (docs/adr/0003) while this process may still read from the old one, whose file
is unlinked. One tensor that a user keeps would pin all of the old arena, and every further restart another one, until
the pod's memory limit is met. So the pages of a slot are given back as soon as nobody looks at it: from the moment on
that the arena's file is gone (the next sidecar unlinks it before it reserves its own, and waits for the room), later
when a lease ends. Called by the client; other ranks' slots are theirs.
"""

import logging
import os
import threading
from collections.abc import Iterable

from lanefeed._arena.leases import Leases
from lanefeed._arena.mapping import Arena

__all__ = ["FormerArenas"]

log = logging.getLogger("lanefeed")


class FormerArenas:
    """The present arena of a rank, and former ones that it still reads from. Thread safe."""

    def __init__(self) -> None:
        """None yet."""
        self._lock = threading.Lock()
        self._present: tuple[Arena, frozenset[int]] | None = None
        self._former: dict[str, Arena] = {}
        #: Slots of the present arena that were given back.
        self._gone: set[int] = set()

    def __len__(self) -> int:
        return len(self._former)

    def follow(self, arena: Arena, slots: Iterable[int], leases: Leases) -> None:
        """`arena` is the present one, and `slots` are the rank's; the one before becomes a former one."""
        with self._lock:
            before, self._present = self._present, (arena, frozenset(slots))
            if before is None or before[0].session == arena.session:
                return
            old, mine = before
            held = self._give_back(old, mine, leases)
            self._gone = set()
            if held:
                self._former[old.session] = old
                log.debug("%d slots of session %s are still looked at", len(held), old.session[:8])

    def look(self, leases: Leases) -> None:
        """No session is there: if the present arena's file is gone, so is its sidecar, and nobody fills its slots."""
        with self._lock:
            if self._present is not None and not os.path.exists(self._present[0].path):
                self._give_back(*self._present, leases)

    def _give_back(self, arena: Arena, mine: frozenset[int], leases: Leases) -> set[int]:
        """Those of `mine` that nobody looks at; the others are returned."""
        held = set(leases.held(arena.session))
        for slot in mine - held - self._gone:
            arena.give_back(slot)
        self._gone |= mine - held
        return held

    def released(self, session: str, slot: int, leases: Leases) -> None:
        """The lease of a former session's slot has ended."""
        with self._lock:
            arena = self._former.get(session)
            if arena is None:
                return
            arena.give_back(slot)
            if not leases.held(session):
                del self._former[session]
