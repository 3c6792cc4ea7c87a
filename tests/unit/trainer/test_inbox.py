"""What a trainer receives over the board, beside messages: order, releases, lost sessions, what cannot be believed."""

import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import pytest

from lanefeed._arena.board import Board
from lanefeed._arena.leases import Leases
from lanefeed._arena.mapping import Arena
from lanefeed._client import inbox as inbox_module
from lanefeed._client.feed import End, Failed, FrameCame
from lanefeed._client.inbox import Inbox
from lanefeed.errors import ArenaError, NotConnected, SidecarError
from lanefeed_core.board import HELD, PUBLISHED_BYTE, Announcer
from lanefeed_core.futex import Futex
from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_sidecar.arena import Arena as SidecarArena

SESSION, OTHER = "ab" * 16, "cd" * 16
SLOTS = 4


class Sidecar:
    """The other side of one session, by hand: frames of two steps."""

    def __init__(self, folder: Path, session: str = SESSION) -> None:
        self.session = session
        self.arena = SidecarArena(
            folder / session, session=session, slots=2 * SLOTS, slot_bytes=4096, plan_generation=1, ranks=2
        )
        self.memory = self.arena.board(1)
        self.words = Announcer(self.memory, SLOTS)
        self.published = Futex(self.memory, PUBLISHED_BYTE)
        self.attaches = 0

    def attach(self) -> Any:
        """What `client.session.Session` is to an inbox."""
        self.attaches += 1
        life = self.words.begin()
        mapped = Arena(str(self.arena.path), self.arena.bytes, self.arena.slot_bytes, self.session)
        session = type("Session", (), {})()
        session.id, session.turn, session.arena = self.session, self.attaches, mapped
        session.board = Board(mapped, self.arena.board_offset(1), range(SLOTS, 2 * SLOTS), life)
        return session

    def frame(self, number: int, first: int, slot: int | None = None) -> pb.Frame:
        slot = SLOTS + number % SLOTS if slot is None else slot
        self.arena.publish(slot, number, first)
        return pb.Frame(slot=slot, sequence=number, first_step=first, steps=2, rows=1)

    def announce(self, number: int, first: int, slot: int | None = None) -> None:
        assert self.words.write(number, self.frame(number, first, slot).SerializeToString())
        self.words.show(number)
        self.published.wake()


@pytest.fixture
def sidecar(shm_root: Path) -> Iterator[Sidecar]:
    made = Sidecar(shm_root)
    yield made
    made.arena.close()


class Bed:
    def __init__(self, start: int = 0) -> None:
        self.leases = Leases()
        self.doubts: list[str] = []
        self.inbox = Inbox(self.leases, start, self.doubts.append)

    def take(self) -> FrameCame:
        event = self.inbox.get_nowait()
        assert isinstance(event, FrameCame), event
        return event


def test_frames_come_in_order_and_their_release_names_them(sidecar: Sidecar) -> None:
    bed = Bed(10)
    bed.inbox.attach(sidecar.attach())
    with pytest.raises(Empty):
        bed.inbox.get_nowait()
    sidecar.announce(0, 10)
    sidecar.announce(1, 12)
    first, second = bed.take(), bed.take()
    assert [first.message.first_step, second.message.first_step, bed.inbox.next_step] == [10, 12, 14]
    assert sidecar.words.taken == 2
    assert bed.inbox.heard()[1] == "frame 1 up to step 14 was the last to come"
    assert not sidecar.words.released(0, 0)
    lease = first.lease
    view = first.base[100:][3:]
    del first
    gc.collect()
    assert lease.alive
    del view
    gc.collect()
    assert sidecar.words.released(0, 0)
    assert not sidecar.words.released(1, 1)
    assert bed.leases.released.empty(), "nobody is woken for it"
    with pytest.raises(Empty):
        bed.inbox.get_nowait(13)
    assert sidecar.words.consumed == 13
    sidecar.announce(2, 14)
    bed.inbox.get_nowait(14)
    assert (sidecar.words.consumed, sidecar.words.taken) == (14, 3)


def test_events_come_after_the_frames_before_them(sidecar: Sidecar) -> None:
    bed = Bed()
    bed.inbox.attach(sidecar.attach())
    sidecar.announce(0, 0)
    sidecar.announce(1, 2)
    bed.inbox.put(End())
    assert [bed.take().message.sequence for _ in range(2)] == [0, 1]
    assert isinstance(bed.inbox.get_nowait(), End)


def test_a_frame_that_came_as_a_message_stands_in_its_place(sidecar: Sidecar) -> None:
    bed = Bed()
    session = sidecar.attach()
    bed.inbox.attach(session)
    sidecar.announce(0, 0)
    sidecar.words.show(1, by_message=True)
    sidecar.announce(2, 4)
    bed.inbox.frame(session, sidecar.frame(1, 2))
    got = [bed.take() for _ in range(3)]
    assert [came.message.sequence for came in got] == [0, 1, 2]
    got[1].lease.drop()
    assert sidecar.words.released(1, 1), "its slot goes back over the board as well"


def test_a_lost_session_leaves_what_it_had_announced(sidecar: Sidecar, shm_root: Path) -> None:
    bed = Bed()
    bed.inbox.attach(sidecar.attach())
    sidecar.announce(0, 0)
    sidecar.announce(1, 2)
    bed.inbox.detach()
    assert bed.inbox.next_step == 4, "frames in hand are not asked for again"
    after = Sidecar(shm_root, OTHER)
    held = bed.leases.carry(SESSION, 7)
    assert held == [SLOTS, SLOTS + 1]
    session = after.attach()
    bed.leases.settle(OTHER, session.turn, session.board)
    bed.inbox.attach(session)
    after.announce(0, 4)
    got = [bed.take() for _ in range(3)]
    assert [(c.lease.session, c.message.first_step) for c in got] == [(SESSION, 0), (SESSION, 2), (OTHER, 4)]
    for came in got:
        came.lease.drop()
    assert not sidecar.words.released(0, 0), "nobody looks at that board any more"
    assert after.words.released(0, 0)
    former = [bed.leases.released.get_nowait() for _ in range(2)]
    assert [lease.slot for lease in former if lease] == [SLOTS, SLOTS + 1], "memory of the old arena can be given back"
    after.arena.close()


@pytest.mark.parametrize("when", ["before", "between", "after"])
@pytest.mark.parametrize("board", [True, False])
def test_a_slot_that_is_held_over_an_attach_comes_back_whenever_it_is_dropped(
    sidecar: Sidecar, when: str, board: bool
) -> None:
    """Before it is said to be held, between that and the answer, and after; on the new life's board or by message."""
    bed = Bed()
    bed.inbox.attach(sidecar.attach())
    sidecar.announce(0, 0)
    came = bed.take()
    bed.inbox.detach()
    if when == "before":
        came.lease.drop()
    held = bed.leases.carry(SESSION, 2)
    if when == "between":
        came.lease.drop()
    session = sidecar.attach()
    bed.leases.settle(SESSION, 2, session.board if board else None)
    if when == "after":
        came.lease.drop()
    assert held == ([] if when == "before" else [SLOTS])
    assert sidecar.words.released(0, HELD) == (board and when != "before")
    messages = []
    while not bed.leases.released.empty():
        messages.append(bed.leases.released.get_nowait())
    assert messages == ([came.lease] if not board and when != "before" else [])


def test_a_slot_used_again_too_early_is_noticed(sidecar: Sidecar) -> None:
    """The tooth: the sidecar fills the slot of a frame that was announced and not given back."""
    bed = Bed()
    bed.inbox.attach(sidecar.attach())
    sidecar.announce(0, 0)
    sidecar.arena.publish(SLOTS, 4, 8)
    event = bed.inbox.get_nowait()
    assert isinstance(event, Failed)
    assert isinstance(event.error, ArenaError)
    assert "holds frame 4 (step 8), frame 0 (step 0) was signalled: the slot was used again too early" in str(
        event.error
    )


def test_steps_left_out_are_noticed(sidecar: Sidecar) -> None:
    bed = Bed()
    bed.inbox.attach(sidecar.attach())
    sidecar.announce(0, 2)
    event = bed.inbox.get_nowait()
    assert isinstance(event, Failed)
    assert isinstance(event.error, SidecarError)
    assert "sent steps 2..4 and step 0 is next" in str(event.error)


def test_a_description_that_stays_torn_is_doubted_and_never_believed(
    sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_module, "DOUBT_SECONDS", 0.1)
    bed = Bed()
    bed.inbox.attach(sidecar.attach())
    sidecar.announce(0, 0)
    sidecar.memory[sidecar.words._at[0] + 17] ^= 1
    for _ in range(200):
        with pytest.raises(Empty):
            bed.inbox.get(timeout=0.3)
        if bed.doubts:
            break
    assert bed.doubts
    assert "1 frames were announced and the description of number 0 is not whole" in bed.doubts[0]
    sidecar.memory[sidecar.words._at[0] + 17] ^= 1
    assert bed.take().message.sequence == 0


def test_a_message_after_a_frame_that_is_not_whole_is_doubted_at_once(sidecar: Sidecar) -> None:
    bed = Bed()
    session = sidecar.attach()
    bed.inbox.attach(session)
    sidecar.words.write(0, sidecar.frame(0, 0).SerializeToString())
    bed.inbox.frame(session, sidecar.frame(1, 2))
    assert bed.doubts == ["frame 1 came and number 0 is not whole"]
    with pytest.raises(Empty):
        bed.inbox.get_nowait()


def test_what_is_whole_and_no_description_is_not_believed(sidecar: Sidecar) -> None:
    bed = Bed()
    bed.inbox.attach(sidecar.attach())
    assert sidecar.words.write(0, b"\xff\xff\xff")
    sidecar.words.show(0)
    with pytest.raises(Empty):
        bed.inbox.get_nowait()


def test_a_wait_ends_with_the_frame_an_event_or_its_time(sidecar: Sidecar) -> None:
    bed = Bed()
    began = time.monotonic()
    with pytest.raises(Empty):
        bed.inbox.get(timeout=0.05)
    threading.Timer(0.1, lambda: bed.inbox.attach(sidecar.attach())).start()
    threading.Timer(0.2, lambda: sidecar.announce(0, 0)).start()
    event = bed.inbox.get(timeout=60)
    assert isinstance(event, FrameCame)
    threading.Timer(0.1, lambda: bed.inbox.put(Failed(NotConnected("closed")))).start()
    assert isinstance(bed.inbox.get(timeout=60), Failed)
    assert time.monotonic() - began < 50, "somebody was not woken"


def test_the_wake_up_crosses_processes(sidecar: Sidecar) -> None:
    bed = Bed()
    bed.inbox.attach(sidecar.attach())
    began = time.monotonic()
    pid = os.fork()
    if not pid:
        time.sleep(0.2)
        sidecar.announce(0, 0)
        os._exit(0)
    assert isinstance(bed.inbox.get(timeout=60), FrameCame)
    os.waitpid(pid, 0)
    assert time.monotonic() - began < 50


def test_a_board_that_is_not_there_is_an_error_with_both_sides(sidecar: Sidecar) -> None:
    sidecar.words.begin()
    mapped = Arena(str(sidecar.arena.path), sidecar.arena.bytes, sidecar.arena.slot_bytes, SESSION)
    with pytest.raises(ArenaError, match="no board for 4 slots where the sidecar says"):
        Board(mapped, sidecar.arena.board_offset(0), range(SLOTS), 1)
    with pytest.raises(ArenaError, match="no board for 3 slots"):
        Board(mapped, sidecar.arena.board_offset(1), range(SLOTS, SLOTS + 3), 1)
    with pytest.raises(ArenaError, match="none from"):
        Board(mapped, sidecar.arena.bytes - 4096, range(SLOTS), 1)
