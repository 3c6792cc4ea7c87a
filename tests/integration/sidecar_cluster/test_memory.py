"""The pod's tmpfs has room for two arenas: a crashed sidecar's pages go first, kept tensors pin their slots alone."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lanefeed
from lanefeed._arena.mapping import Arena
from lanefeed_core.board import board_bytes
from lanefeed_core.layout import HEADER_BYTES
from support.feed_client import eventually
from support.feed_pod import Pod
from support.tmpfs import mounted

MakePod = Callable[..., Pod]
MIB = 1 << 20
ARENA = HEADER_BYTES + 4 * MIB + board_bytes(4)
#: An arena, the slots that four sessions pin, and up to three more of the last one: frames that the trainer has taken
#: and this test, which waits for the sidecar, does not read meanwhile (how many is the scheduler's). No third arena.
ROOM = "11500k"


def pod_in(make_pod: MakePod, folder: Path) -> Pod:
    """As render sizes it: two arenas, and a little."""
    pod = make_pod(slots=4, slot_bytes=MIB, epochs=200)
    pod.run_dir.rmdir()
    pod.run_dir = folder
    pod.config = pod.config.__class__(**{**vars(pod.config), "run_dir": str(folder)})
    return pod


def crash(pod: Pod) -> None:
    """As the kernel does it when memory is short."""
    assert pod.process is not None
    pod.process.send_signal(signal.SIGKILL)
    pod.process.wait()


def kept_over_restarts(pod: Pod, restarts: int) -> list[lanefeed.Batch]:
    """Train on over crashes, and keep a batch of each session for ever."""
    pod.start()
    loader = lanefeed.connect(rank=0, world=1, tensors="numpy", run_dir=str(pod.run_dir), plan_generation=1)
    expected = pod.expected()
    kept = []
    batches = (batch for _ in loader.epochs() for batch in loader)
    for _ in range(restarts):
        for _ in range(30):
            batch = next(batches)
        kept.append(batch)
        crash(pod)
        pod.start()
    for _ in range(30):
        last = next(batches)
    assert last.step == 30 * (restarts + 1) - 1
    for batch in [*kept, last]:
        assert batch.ids.tolist() == expected[batch.step]
        assert np.array_equal(batch["x"][:, 1], -batch.ids)
    loader.close()
    return kept


def test_kept_tensors_of_many_sessions_pin_their_slots_and_no_arenas(make_pod: MakePod) -> None:
    with mounted(ROOM) as folder:
        pod = pod_in(make_pod, folder)
        kept = kept_over_restarts(pod, 4)
        used = os.statvfs(folder)
        assert (used.f_blocks - used.f_bfree) * used.f_frsize <= ARENA + len(kept) * MIB + MIB
        assert pod.terminate() == 0
        del kept


def test_tooth_without_it_the_third_session_finds_no_room(make_pod: MakePod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arena, "give_back", lambda *_: None)
    with mounted(ROOM) as folder:
        pod = pod_in(make_pod, folder)
        with pytest.raises(AssertionError, match=rf"(?s)the sidecar ended with 1: .*the arena needs {ARENA} bytes"):
            kept_over_restarts(pod, 4)


def test_what_a_former_life_left_goes_before_memory_is_reserved(make_pod: MakePod) -> None:
    """k/k#128339: tmpfs content survives an OOM kill; a sidecar that does not remove it first fails for ever."""
    with mounted("9m") as folder:
        pod = pod_in(make_pod, folder)
        for number in range(2):
            (folder / f"arena-{number:032x}").write_bytes(b"x" * (4 * MIB))
        (folder / ".ranks.json.9.tmp").write_bytes(b"x" * (MIB // 2))
        assert os.statvfs(folder).f_bavail * 4096 < MIB
        pod.start()
        client = pod.client()
        client.attach()
        client.stream()
        client.run(30)
        for _ in range(3):
            crash(pod)
            pod.start()
            with eventually() as check:
                check(lambda: len(list(folder.glob("arena-*"))) == 1)
        client.close()
        assert pod.terminate() == 0
