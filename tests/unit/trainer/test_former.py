"""What a lost session's arena costs: only the slots that somebody still looks at."""

import os
import weakref
from pathlib import Path

import numpy as np
import pytest

from lanefeed._arena.former import FormerArenas
from lanefeed._arena.leases import Leases
from lanefeed._arena.mapping import Arena
from unit.trainer.test_lifetime import SLOT, arena_file

OLD, NEW, NEWER = "0" * 32, "1" * 32, "2" * 32
PAGES = SLOT // 4096


class Bed:
    """Arenas of eight slots in tmpfs; slots 2 to 5 are this rank's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.leases, self.former = Leases(), FormerArenas()

    def arena(self, session: str, *, unlink: bool = True) -> Arena:
        path = self.folder / session
        arena = Arena(str(path), arena_file(path, slots=8, session=session), SLOT, session)
        self.fd = os.open(path, os.O_RDONLY)
        if unlink:
            path.unlink()
        return arena

    def take(self, arena: Arena, slot: int) -> np.ndarray:
        base = arena.slot(slot, 10 + slot, 100 * slot)
        self.leases.add(arena.session, slot).watch(base)
        return base

    def pages(self, fd: int) -> int:
        return os.fstat(fd).st_blocks * 512 // 4096

    def drain(self) -> None:
        """What a session's writer does with leases that have ended."""
        while not self.leases.released.empty():
            lease = self.leases.released.get()
            if lease is not None:
                self.former.released(lease.session, lease.slot, self.leases)


@pytest.fixture
def bed(shm_root: Path) -> Bed:
    return Bed(shm_root)


def test_free_slots_go_at_once_kept_ones_when_their_last_view_dies(bed: Bed) -> None:
    old = bed.arena(OLD)
    fd = bed.fd
    bed.former.follow(old, range(2, 6), bed.leases)
    kept, other = bed.take(old, 3), bed.take(old, 4)
    expected = kept.tobytes()
    assert bed.pages(fd) == 1 + 8 * PAGES
    new = bed.arena(NEW)
    bed.former.follow(new, range(2, 6), bed.leases)
    assert bed.pages(fd) == 1 + 6 * PAGES, "the header, two kept slots, four of other ranks"
    del other
    bed.drain()
    assert bed.pages(fd) == 1 + 5 * PAGES
    assert kept.tobytes() == expected
    assert len(bed.former) == 1
    del kept
    bed.drain()
    assert bed.pages(fd) == 1 + 4 * PAGES
    assert len(bed.former) == 0
    gone = weakref.ref(old)
    del old
    assert gone() is None, "nobody but the views keeps a former arena"
    os.close(fd)
    os.close(bed.fd)


def test_a_stream_that_broke_while_the_session_lives_gives_nothing_back(bed: Bed) -> None:
    """The tooth: such a slot is in use."""
    arena = bed.arena(OLD)
    bed.former.follow(arena, range(2, 6), bed.leases)
    again = bed.take(arena, 3)
    before = arena.root.tobytes()
    bed.former.follow(arena, range(2, 6), bed.leases)
    del again
    bed.drain()
    assert arena.root.tobytes() == before
    os.close(bed.fd)


def test_a_sidecar_that_is_gone_is_known_by_its_file(bed: Bed) -> None:
    """Its successor reserves memory before it can be attached to: free slots must go before that."""
    arena = bed.arena(OLD, unlink=False)
    bed.former.follow(arena, range(2, 6), bed.leases)
    kept = [bed.take(arena, slot) for slot in (2, 3)]
    bed.former.look(bed.leases)
    assert bed.pages(bed.fd) == 1 + 8 * PAGES, "it may only be its stream that broke"
    Path(arena.path).unlink()
    bed.former.look(bed.leases)
    assert bed.pages(bed.fd) == 1 + 6 * PAGES
    del kept[0]
    bed.former.look(bed.leases)
    assert bed.pages(bed.fd) == 1 + 5 * PAGES
    bed.former.follow(bed.arena(NEW), range(2, 6), bed.leases)
    assert kept[0].any()


def test_kept_slots_of_many_sessions_are_known_apart(bed: Bed) -> None:
    kept, fds = [], []
    for number, session in enumerate((OLD, NEW, NEWER)):
        arena = bed.arena(session)
        fds.append(bed.fd)
        bed.former.follow(arena, range(8), bed.leases)
        kept.append(bed.take(arena, number))
    assert [bed.pages(fd) for fd in fds] == [1 + PAGES, 1 + PAGES, 1 + 8 * PAGES]
    del arena, kept[0]
    bed.drain()
    assert [bed.pages(fd) for fd in fds[:2]] == [1, 1 + PAGES]
    assert len(bed.former) == 1
    for fd in fds:
        os.close(fd)
