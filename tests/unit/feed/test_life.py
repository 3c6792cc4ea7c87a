"""A rank's slots: filled, signalled, reused only after their release. The tooth: a premature reuse is seen."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.slots import Slots, SlotState
from lanefeed_sidecar.errors import DataError, ProtocolMismatch, SidecarError, Unavailable
from support.life_rig import Rig, wait


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, range(2, 6))
    yield made
    made.close()


def test_all_free_slots_are_filled_and_sent_in_one_message(rig: Rig) -> None:
    life = rig.life()
    wait(life, SlotState.READY, 4)
    message = next(life.messages())
    assert [f.slot for f in message.frames] == [2, 3, 4, 5]
    assert [f.sequence for f in message.frames] == [0, 1, 2, 3]
    assert [f.first_step for f in message.frames] == [0, 3, 6, 9]
    expected = rig.pod.expected()
    assert [row for f in message.frames for row in rig.ids(f)] == [expected[s] for s in range(12)]
    assert life.delivered == 12
    assert [int(rig.arena.view(f.slot)[0]) for f in message.frames] == [SlotState.LEASED] * 4


def reads_of_unreleased_slots(rig: Rig) -> None:
    """Consume the stream, one slot late, and check that a slot that is held never changes."""
    life = rig.life()
    got: dict[int, list[int]] = {}
    held: list[tuple[pb.Frame, list[list[int]]]] = []
    for message in life.messages():
        for frame in message.frames:
            held.append((frame, rig.ids(frame)))
            for k, row in enumerate(rig.ids(frame)):
                got[frame.first_step + k] = row
        time.sleep(0.005)
        for frame, before in held:
            assert rig.ids(frame) == before, f"slot {frame.slot} changed before it was released"
        done, held = held[: max(1, len(held) - 1)], held[max(1, len(held) - 1) :]
        life.progress(pb.Progress(released=[f.slot for f, _ in done]))
        if message.end:
            break
    assert got == rig.pod.expected()


def test_a_slot_is_reused_only_after_its_release(rig: Rig) -> None:
    reads_of_unreleased_slots(rig)


def test_tooth_a_slot_reused_too_early_is_caught(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: a signalled slot counts as free at once."""
    real = Slots.lease

    def lease(self: Slots, slot: int) -> None:
        real(self, slot)
        self._states[slot] = SlotState.FREE
        self._free.append(slot)

    monkeypatch.setattr(Slots, "lease", lease)
    monkeypatch.setattr(Slots, "release", lambda _self, _slot: None)
    with pytest.raises(AssertionError, match="changed before it was released"):
        reads_of_unreleased_slots(rig)


def test_no_free_slot_is_backpressure_and_counted(rig: Rig) -> None:
    life = rig.life()
    messages = life.messages()
    frames = list(next(messages).frames)
    while len(frames) < 4:
        frames += next(messages).frames
    time.sleep(0.1)
    assert life.count(SlotState.LEASED) == 4
    life.progress(pb.Progress(released=[3], consumed=3))
    assert [f.slot for f in next(messages).frames] == [3]
    assert rig.stats.snapshot().waits["fill", "slot"] > 0.05


@pytest.mark.parametrize("slot", [0, 1, 6, 5000, 4_000_000_000])
def test_a_slot_that_is_not_its_own_cannot_be_released(rig: Rig, slot: int) -> None:
    life = rig.life()
    next(life.messages())
    with pytest.raises(ProtocolMismatch, match=f"rank 0 released slot {slot}, which it may not"):
        life.progress(pb.Progress(released=[slot]))


def test_a_slot_is_released_once(rig: Rig) -> None:
    life = rig.life()
    wait(life, SlotState.READY, 4)
    next(life.messages())
    life.progress(pb.Progress(released=[2]))
    with pytest.raises(ProtocolMismatch, match="released slot"):
        life.progress(pb.Progress(released=[2]))


def test_steps_that_were_never_sent_are_not_believed(rig: Rig) -> None:
    life = rig.life()
    wait(life, SlotState.READY, 4)
    life.progress(pb.Progress(consumed=1))
    assert life.consumed == 0
    next(life.messages())
    life.progress(pb.Progress(consumed=12))
    assert life.consumed == 12
    life.progress(pb.Progress(consumed=12, wait_seconds=float("nan"), step_seconds=float("inf")))
    assert (life.consumed, life.wait_seconds, life.step_seconds) == (12, 0.0, 0.0)


def test_held_slots_stay_leased_over_a_seek(rig: Rig) -> None:
    first = rig.life()
    wait(first, SlotState.READY, 4)
    frames = next(first.messages()).frames
    kept = rig.ids(frames[1])
    first.close()
    assert first.join(60)
    second = rig.life(start=20, held=(3,))
    wait(second, SlotState.READY, 3)
    assert rig.ids(frames[1]) == kept
    messages = second.messages()
    assert sorted(f.slot for f in next(messages).frames) == [2, 4, 5]
    second.progress(pb.Progress(released=[3]))
    again = next(messages).frames[0]
    assert again.slot == 3
    assert rig.ids(again)[0] == rig.pod.expected()[again.first_step]


def test_the_end_is_said_once_after_the_last_frame_and_ended_means_consumed(rig: Rig) -> None:
    life = rig.life(start=rig.pod.total - 2)
    ends = 0
    for message in life.messages():
        for frame in message.frames:
            last = frame.first_step + frame.steps
            life.progress(pb.Progress(released=[frame.slot], consumed=last - 1))
        if message.end:
            ends += 1
            assert not life.ended, "the last batch is not consumed"
            life.progress(pb.Progress(consumed=rig.pod.total))
            assert life.ended
            life.close(Unavailable("test"))
            break
    assert ends == 1


def test_finish_ends_the_rank_early_and_frees_what_was_read_ahead(rig: Rig) -> None:
    life = rig.life()
    messages = life.messages()
    next(messages)
    life.progress(pb.Progress(finished=True))
    assert life.ended
    assert life.join(60)
    assert rig.engine.seeks[-1] == (0, -1)


def test_a_data_error_reaches_the_stream_with_its_text(rig: Rig) -> None:
    rig.engine.fail_at = "6"
    life = rig.life()
    assert life.join(60)
    assert [type(e) for e in rig.errors] == [DataError]
    life.fail(rig.errors[0])
    got = list(life.messages())
    assert sum(len(m.frames) for m in got) == 2, "frames before the bad shard are good"
    assert got[-1].failure.kind == "DataError"
    assert "part-0.parquet" in got[-1].failure.message
    assert not got[-1].failure.retryable


def test_a_bug_of_ours_is_an_error_and_no_silence(rig: Rig) -> None:
    rig.engine.fail_at, rig.engine.fail_kind = "0", "bug"
    life = rig.life()
    assert life.join(60)
    assert "internal error while assembling for rank 0: RuntimeError('a planted bug')" in str(rig.errors[0])


def test_close_wakes_everybody_and_frees_the_filler(rig: Rig) -> None:
    rig.engine.delay = 30
    life = rig.life()
    caught: list[BaseException] = []

    def read() -> None:
        try:
            list(life.messages())
        except SidecarError as error:
            caught.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(0.05)
    life.close(Unavailable("attached again"))
    thread.join(60)
    assert not thread.is_alive()
    assert str(caught[0]) == "attached again"
    assert life.join(60)
