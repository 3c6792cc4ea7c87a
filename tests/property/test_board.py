"""The board's words under every kind of half-written memory: what is believed is exactly what was written, or nothing.

Memory is a bytearray. A CPU that reorders, a process that dies in between, a reader that comes in between: all of them
are "some of the new words are there and the others are old", for any choice of words, or of bytes.
"""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanefeed_core import board
from lanefeed_core.board import ENTRY_BYTES, HELD, Announcer, Noticer, board_bytes, seal, tag, unseal
from lanefeed_core.errors import LayoutError


def pair(slots: int = 3, lives: int = 1) -> tuple[bytearray, Announcer, Noticer]:
    memory = bytearray(board_bytes(slots))
    sidecar = Announcer(memoryview(memory), slots)
    life = 0
    for _ in range(lives):
        life = sidecar.begin()
    return memory, sidecar, Noticer(memoryview(memory), slots, life)


def mixed(before: bytes, after: bytes, keep: Callable[[int], bool], grain: int, start: int, size: int = 128) -> bytes:
    """`after`, but for the pieces of `grain` bytes of an entry that `keep` says are still as before."""
    found = bytearray(after)
    for at in range(start, start + size, grain):
        if keep(at):
            found[at : at + grain] = before[at : at + grain]
    return bytes(found)


def announce(sidecar: Announcer, number: int, body: bytes) -> None:
    assert sidecar.write(number, body)
    sidecar.show(number)


@settings(max_examples=150, deadline=None)
@given(lives=st.integers(1, 6), seed=st.integers(0, 1 << 32), grain=st.sampled_from([1, 2, 4, 8, 64]))
def test_a_description_is_read_whole_or_not_at_all(lives: int, seed: int, grain: int) -> None:
    """Over the entry of an older frame, any part of the new one is there."""
    memory, sidecar, trainer = pair(lives=lives)
    random = Random(seed)
    for number in range(7):
        body = random.randbytes(random.randrange(100))
        before = bytes(memory)
        announce(sidecar, number, body)
        after = bytes(memory)
        share = random.choice((0.1, 0.5, 0.9))
        for _ in range(8):
            memory[:] = mixed(
                before, after, lambda _at, share=share: random.random() < share, grain, trainer._at[number % 3]
            )
            assert trainer.read(number) in (None, body)
            assert trainer.read(number + 1) is None
        memory[:] = after
        assert trainer.read(number) == body


def torn_reads(trainer_reads: Callable[[Noticer, int], bytes | None]) -> int:
    """How many half-written descriptions are taken for whole ones: cut after each byte."""
    memory, sidecar, trainer = pair()
    wrong = 0
    for number in range(6):
        body = bytes([number]) * 40
        before = bytes(memory)
        announce(sidecar, number, body)
        after = bytes(memory)
        start = trainer._at[number % 3]
        for cut in range(start, start + 80):
            # The number is written last, so a reader that sees it may believe the rest: unless the CPU reorders.
            memory[:] = after[: start + 8] + before[start + 8 : cut] + after[cut:] if cut > start + 8 else after
            wrong += trainer_reads(trainer, number) not in (None, body)
        memory[:] = after
    return wrong


def test_no_cut_is_believed() -> None:
    assert torn_reads(Noticer.read) == 0


def test_tooth_without_the_checksum_a_torn_description_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "_check", lambda _life, _number, _body: 7)
    assert torn_reads(Noticer.read) > 0


def test_tooth_without_its_number_a_stale_description_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in the entry is whole, but of an earlier frame, or of an earlier life."""
    _, sidecar, trainer = pair()
    announce(sidecar, 0, b"old")
    assert trainer.read(3) is None
    assert trainer.read(0) == b"old"
    memory, sidecar, trainer = pair(lives=2)
    announce(sidecar, 0, b"of life 2")
    stale = bytes(memory)
    successor = Noticer(memoryview(memory), 3, sidecar.begin())
    at = successor._at[0]
    memory[at : at + 64] = stale[at : at + 64]
    assert successor.read(0) is None, "the checksum knows the life"
    monkeypatch.setattr(board, "_check", lambda _life, _number, _body: 7)
    announce(sidecar, 0, b"x")
    sidecar.life = 9
    assert successor.read(0) == b"x"


def torn(old: int, new: int, mask: int) -> int:
    """The word in which the bytes in `mask` are the new one's."""
    words = [word.to_bytes(8, "little") for word in (old, new)]
    return int.from_bytes(bytes(words[mask >> i & 1][i] for i in range(8)), "little")


def believed(sealed: Callable[[int], int]) -> int:
    """Of half-written positions of a stream, how many are read as a third number."""
    wrong = 0
    for old in (*range(300), *range(65_400, 65_600), *range(2**24 - 40, 2**24 + 40)):
        for new in (old + 1, old + 32):
            words = {torn(sealed(old), sealed(new), mask) for mask in range(256)}
            wrong += sum(word >> 16 not in (old, new) and sealed(word >> 16) == word for word in words)
    return wrong


def test_a_sealed_number_is_the_old_or_the_new_one_or_none() -> None:
    for value in (0, 1, 255, 65536, (1 << 48) - 1):
        assert unseal(seal(value)) == value
    assert unseal(0) is None
    assert believed(seal) == 0


def test_tooth_a_seal_whose_bytes_go_together_is_not_enough() -> None:
    assert believed(lambda v: v << 16 | (v ^ v >> 16 ^ v >> 32) & 0xFFFF) > 0


@pytest.mark.parametrize(("before", "number"), [(0, 3), (255, 258), (65_533, 65_536), (HELD, 0), (7, 1 << 39)])
def test_a_release_counts_when_its_last_byte_is_there(before: int, number: int) -> None:
    memory, sidecar, trainer = pair(lives=5)
    trainer.release(1, before, 1)
    old = bytes(memory)
    trainer.release(1, number, 2)
    new = bytes(memory)
    for mask in range(256):
        memory[:] = bytes(new)
        at = next(i for i, (a, b) in enumerate(zip(old[128:], new[128:], strict=True), 128) if a != b and i % 64 >= 8)
        at -= at % 8
        memory[at : at + 8] = torn(int.from_bytes(old[at : at + 8], "little"), tag(5, number), mask).to_bytes(
            8, "little"
        )
        whole = memory[at : at + 8] == new[at : at + 8]
        assert sidecar.released(1, number) == whole
        assert not sidecar.released(1, number + 3)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=30), st.integers(1, 6))
def test_only_the_frame_in_the_slot_can_be_released(writes: list[tuple[int, int]], lives: int) -> None:
    _, sidecar, trainer = pair(lives=lives)
    given_back: set[tuple[int, int]] = set()
    last: dict[int, int] = {}
    for change, (slot, number) in enumerate(writes, 1):
        before = sidecar.releases
        trainer.release(slot, number, change)
        assert sidecar.releases != before
        last[slot] = number
        given_back = set(last.items())
        for s in range(3):
            for n in range(6):
                assert sidecar.released(s, n) == ((s, n) in given_back)


def test_words_of_a_process_that_was_replaced_change_nothing() -> None:
    """Even where it has not noticed yet (the planted race: it believes that it is current)."""
    memory, sidecar, zombie = pair()
    announce(sidecar, 0, b"a")
    for later in range(1, board.AREAS):
        life = sidecar.begin()
        trainer = Noticer(memoryview(memory), 3, life)
        trainer.release(1, 4, 1)
        trainer.say(consumed=later, taken=2)
        assert not zombie.current
        assert zombie.read(0) is None
        zombie.release(1, 0, 9)
        zombie.say(consumed=77, taken=77)
        zombie.life, real = life, zombie.life
        zombie.release(1, 0, 9)
        zombie.say(consumed=77, taken=77)
        zombie.life = real
        assert sidecar.released(1, 4)
        assert (sidecar.consumed, sidecar.taken) == (later, 2)


def test_the_sidecar_is_woken_for_a_slot_only_when_few_frames_are_left() -> None:
    _, sidecar, trainer = pair(slots=6)
    for number in range(5):
        announce(sidecar, number, b"x")
    woken = []
    for number in range(5):
        trainer.say(taken=number + 1)
        woken.append(trainer.release(number, number, number + 1))
    assert woken == [False, True, True, True, True], "4 unread frames are enough, 3 are half of the slots"


def test_fences_of_a_cpu_that_reorders_are_in_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands on either side of each, seen by whoever looks at that moment."""
    memory, sidecar, trainer = pair()
    seen: list[object] = []
    monkeypatch.setattr(
        board, "fence", lambda: seen.append((trainer.published, memory[trainer._at[0]], sidecar.releases))
    )
    announce(sidecar, 0, b"body")
    assert seen == [(0, 0, 0), (0, 0, 0)], "the slot's bytes, fence, the description, fence, its number"
    seen.clear()
    assert trainer.read(0) == b"body"
    assert len(seen) == 2, "its number, fence, the description, fence, the slot's bytes"
    seen.clear()
    trainer.release(0, 0, 1)
    assert seen == [(1, 1, 0), (1, 1, 0)], "all reads, fence, the release, fence, the wake-up word"
    monkeypatch.undo()
    monkeypatch.setattr(board, "_REORDERS", True)
    board.fence()
    announce(sidecar, 1, b"body")
    assert trainer.read(1) == b"body"


def test_a_new_life_begins_with_nothing() -> None:
    memory, sidecar, trainer = pair()
    for number in range(3):
        announce(sidecar, number, b"x")
        trainer.release(number, number, number + 1)
    trainer.say(consumed=5, taken=3)
    for _ in range(board.AREAS):
        life = sidecar.begin()
    again = Noticer(memoryview(memory), 3, life)
    assert (sidecar.consumed, sidecar.taken, sidecar.published, sidecar.releases) == (None, 0, 0, 0)
    assert [again.read(n) for n in range(3)] == [None] * 3
    assert not any(sidecar.released(s, n) for s in range(3) for n in (*range(3), HELD))


def test_what_is_too_large_goes_by_message_and_counts() -> None:
    _, sidecar, trainer = pair()
    assert not sidecar.write(0, bytes(ENTRY_BYTES - 15))
    sidecar.show(0, by_message=True)
    assert trainer.published == 1
    assert trainer.read(0) is None
    announce(sidecar, 1, bytes(ENTRY_BYTES - 16))
    assert trainer.read(1) == bytes(ENTRY_BYTES - 16)


def test_memory_that_is_no_board_is_refused() -> None:
    memory = memoryview(bytearray(board_bytes(4)))
    with pytest.raises(LayoutError, match=r"no board for 4 slots where the sidecar says \(it begins with 0x0, 0\)"):
        Noticer(memory, 4, 1)
    Announcer(memory, 3).begin()
    with pytest.raises(LayoutError, match="no board for 4 slots"):
        Noticer(memory, 4, 1)
    with pytest.raises(LayoutError, match=r"takes .* bytes and there are 100"):
        Announcer(memory[:100], 4)
