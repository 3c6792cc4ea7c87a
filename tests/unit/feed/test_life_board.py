"""A rank's slots over the board: announced, read, given back, reused only then; the trainer's side is the core's.

The tooth: a slot reused before it was given back, a release of an earlier frame, or of a former life, is caught.
"""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lanefeed_core.board import ENTRY_BYTES, HELD, Noticer
from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.slots import SlotState
from lanefeed_sidecar.arena.board import Board, boards
from lanefeed_sidecar.feed.life import Life
from support.life_rig import Rig, wait

SLOTS = 4


class Trainer:
    """Reads frames of one life from its board, in order."""

    def __init__(self, rig: Rig, life: Life) -> None:
        self.words = Noticer(rig.arena.board(0), SLOTS, life.board_life)
        self.rig = rig
        self.number = self.changes = 0

    def take(self, seconds: float = 60) -> pb.Frame:
        end = time.monotonic() + seconds
        while (body := self.words.read(self.number)) is None:
            assert time.monotonic() < end, f"frame {self.number} did not come"
            time.sleep(0.001)
        self.number += 1
        self.words.say(taken=self.number)
        return pb.Frame.FromString(body)

    def give_back(self, frame: pb.Frame, number: int | None = None) -> None:
        self.changes += 1
        self.words.release(frame.slot, frame.sequence if number is None else number, self.changes)
        assert self.rig.board is not None
        self.rig.board.wake()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, range(SLOTS), ranks=1)
    made.board = boards(made.arena, range(1))[0]
    yield made
    made.close()
    assert not made.errors


def reads_one_slot_late(rig: Rig, seconds: float = 60) -> None:
    """Consume the stream holding one frame, which must not change meanwhile; a frame is waited for so long."""
    life = rig.life()
    trainer, got = Trainer(rig, life), {}
    held: tuple[pb.Frame, list[list[int]]] | None = None
    while len(got) < rig.pod.total:
        frame = trainer.take(seconds)
        rows = rig.ids(frame)
        for k, row in enumerate(rows):
            got[frame.first_step + k] = row
        time.sleep(0.003)
        if held is not None:
            assert rig.ids(held[0]) == held[1], f"slot {held[0].slot} changed before it was released"
            trainer.give_back(held[0])
        held = frame, rows
    assert got == rig.pod.expected()


def test_the_whole_stream_over_the_board(rig: Rig) -> None:
    reads_one_slot_late(rig)
    life = rig.lives[0]
    messages = life.messages()
    assert next(messages).end, "nothing else goes by message"
    assert life.delivered == rig.pod.total


def test_tooth_a_slot_reused_too_early_is_caught(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: whatever is announced counts as given back."""
    monkeypatch.setattr(Board, "released", lambda _self, _slot, _number: True)
    with pytest.raises(AssertionError, match=r"changed before it was released|did not come"):
        reads_one_slot_late(rig, 2)


def test_tooth_a_release_that_does_not_name_its_frame_is_caught(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: a word that is not empty counts, whichever frame it names: the one before frees the slot."""

    def released(self: Board, slot: int, _number: int) -> bool:
        words = self._words
        return words._words[words._area + 8 + slot] != 0

    monkeypatch.setattr(Board, "released", released)
    with pytest.raises(AssertionError, match=r"changed before it was released|did not come"):
        reads_one_slot_late(rig, 2)


def test_slots_wait_ready_until_they_are_read_and_leased_until_given_back(rig: Rig) -> None:
    life = rig.life()
    wait(life, SlotState.READY, SLOTS)
    trainer = Trainer(rig, life)
    frame = trainer.take()
    assert (life.count(SlotState.READY), life.count(SlotState.LEASED)) == (3, 1)
    trainer.give_back(frame)
    wait(life, SlotState.READY, SLOTS)
    assert rig.stats.snapshot().waits["fill", "slot"] > 0


def test_words_that_say_something_else_free_nothing(rig: Rig) -> None:
    life = rig.life()
    wait(life, SlotState.READY, SLOTS)
    trainer = Trainer(rig, life)
    frames = [trainer.take() for _ in range(SLOTS)]
    for number in (1, 2, HELD, 4):
        trainer.give_back(frames[0], number)
        assert life.count(SlotState.LEASED) == SLOTS
    trainer.give_back(frames[0])
    wait(life, SlotState.READY, 1)


def test_held_slots_stay_over_a_new_life_and_come_back_under_its_name(rig: Rig) -> None:
    first = rig.life()
    wait(first, SlotState.READY, SLOTS)
    old = Trainer(rig, first)
    frames = [old.take(), old.take()]
    kept = rig.ids(frames[1])
    rig.end(first)
    second = rig.life(start=20, held=(frames[1].slot,), resuming=True)
    wait(second, SlotState.READY, SLOTS - 1)
    old.give_back(frames[1])
    new = Trainer(rig, second)
    seen = [new.take() for _ in range(SLOTS - 1)]
    assert second.count(SlotState.LEASED) == SLOTS, "what the former life says of it does not count"
    assert rig.ids(frames[1]) == kept
    new.give_back(frames[1], HELD)
    again = new.take()
    assert again.slot == frames[1].slot
    assert rig.ids(again)[0] == rig.pod.expected()[again.first_step]
    assert [f.first_step for f in seen] == [20, 23, 26]
    assert old.words.read(2) is None, "a process that was replaced reads no frame of its successor"


def test_positions_are_the_boards_and_never_ahead_of_what_was_announced(rig: Rig) -> None:
    life = rig.life(start=5)
    wait(life, SlotState.READY, SLOTS)
    trainer = Trainer(rig, life)
    assert life.consumed == 5
    life.progress(pb.Progress(consumed=6))
    assert life.consumed == 6, "until the board says more, messages count"
    trainer.words.say(consumed=8)
    assert life.consumed == 8
    trainer.words.say(consumed=4000)
    life.progress(pb.Progress(consumed=7))
    assert life.consumed == 8
    life.reached(9)
    assert life.consumed == 9, "a commit says more than the word of before"
    trainer.words.say(consumed=2)
    assert life.consumed == 2, "a trainer that reads ahead may have consumed less than it seemed"


def test_what_is_announced_may_be_committed_at_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = Board.announce

    def announce(self: Board, number: int, description: bytes) -> bool:
        seen.append(rig.lives[0].delivered if rig.lives else -1)
        return real(self, number, description)

    monkeypatch.setattr(Board, "announce", announce)
    life = rig.life()
    wait(life, SlotState.READY, SLOTS)
    assert [n for n in seen if n >= 0] == [3, 6, 9, 12][-len([n for n in seen if n >= 0]) :]


def test_a_description_that_is_too_large_comes_as_a_message_in_its_place(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Board.announce

    def announce(self: Board, number: int, description: bytes) -> bool:
        return real(self, number, description if number != 1 else bytes(ENTRY_BYTES))

    monkeypatch.setattr(Board, "announce", announce)
    life = rig.life()
    wait(life, SlotState.READY, SLOTS)
    trainer = Trainer(rig, life)
    zero = trainer.take()
    messages = life.messages()
    (one,) = next(messages).frames
    assert (zero.sequence, one.sequence, one.first_step) == (0, 1, 3)
    trainer.number = 2
    assert trainer.take().first_step == 6
    assert life.count(SlotState.LEASED) == 3
    trainer.give_back(one)
    assert trainer.take().first_step == 9
    assert trainer.take().slot == one.slot


def test_closing_wakes_a_filler_that_waits_for_a_slot(rig: Rig) -> None:
    life = rig.life()
    wait(life, SlotState.READY, SLOTS)
    began = threading.active_count()
    rig.end(life)
    assert threading.active_count() < began + 1
    assert rig.errors == []


def test_a_trainer_that_wants_no_more_ends_the_filler(rig: Rig) -> None:
    life = rig.life()
    wait(life, SlotState.READY, SLOTS)
    life.progress(pb.Progress(finished=True))
    assert life.join(60)
    assert life.ended
