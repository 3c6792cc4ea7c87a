"""The board between real processes: either side is killed at any moment, or cannot be believed; the batches are exact.

The sidecar is a process with the small engine, the loader is the library's.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lanefeed
from lanefeed._client import client as client_module
from lanefeed._client import inbox as inbox_module
from lanefeed_core import futex
from lanefeed_core.board import Noticer
from support.feed_client import eventually
from support.feed_pod import Pod

HERE = Path(__file__).resolve().parents[2]


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    made = Pod(tmp_path)
    yield made
    made.close()


def connect(pod: Pod, **kwargs: Any) -> lanefeed.Loader:
    return lanefeed.connect(
        run_dir=str(pod.run_dir), rank=0, world=1, plan_generation=1, tensors="numpy", stall_timeout=60.0, **kwargs
    )


def ids(batch: lanefeed.Batch) -> list[int]:
    found = batch.ids.tolist()
    assert batch["x"].tolist() == [[3 * i + 1, -i] for i in found]
    assert batch["text"].to_list() == [str(i) for i in found]
    return found


def read(loader: lanefeed.Loader, each: Callable[[lanefeed.Batch], None] = lambda _batch: None) -> dict[int, list[int]]:
    got = {}
    for _ in loader.epochs():
        for batch in loader:
            each(batch)
            got[batch.step] = ids(batch)
    return got


def boards_used(loader: lanefeed.Loader) -> bool:
    session = loader._feed._life._session  # type: ignore[attr-defined]
    return session.board is not None


@contextlib.contextmanager
def kept_alive(pod: Pod, env: dict[str, str]) -> Iterator[list[int]]:
    """A sidecar that comes back whenever it is killed, as a pod's supervisor does; the numbers of its deaths."""
    deaths: list[int] = []
    over = threading.Event()
    pod.spawn(env)

    def keep() -> None:
        while not over.is_set():
            assert pod.process is not None
            with contextlib.suppress(subprocess.TimeoutExpired):
                deaths.append(pod.process.wait(0.05))
                # Not waited for: it may have been ready, and killed again, before anybody has looked.
                pod.spawn(env)

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        yield deaths
    finally:
        over.set()
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    "point",
    ["board.mid_write=kill@5", "board.before_wake=kill@4", "server.before_signal=kill@4", "slot.mid_write=kill@5"],
)
def test_a_sidecar_killed_on_its_way_to_the_board_costs_nothing(pod: Pod, point: str) -> None:
    with kept_alive(pod, {"LANEFEED_FAILPOINTS": point, "ENGINE_DELAY": "0.002"}) as deaths, connect(pod) as loader:
        assert read(loader) == pod.expected()
        assert boards_used(loader)
    assert len(deaths) > 2, "it was hardly ever killed"
    assert set(deaths) == {-signal.SIGKILL}
    assert "epoch 1 is proven" in pod.text()


def test_a_trainer_killed_at_any_moment_goes_on_from_its_checkpoint(pod: Pod, tmp_path: Path) -> None:
    pod.start()
    out = tmp_path / "out"
    out.mkdir()
    dice, kills = random.Random(7), 0
    command = [sys.executable, str(HERE / "support/board_trainer.py"), str(pod.run_dir), str(out)]
    end = time.monotonic() + 240
    while not (out / "done").exists():
        assert time.monotonic() < end, "it does not get to the end"
        lines = len((out / "batches").read_text().splitlines()) if (out / "batches").exists() else 0
        with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) as trainer:
            # Killed somewhere in its first batches, so that it gets a few steps further each time.
            target = lines + dice.randrange(4, 14)
            while trainer.poll() is None and kills < 8:
                now = (out / "batches").read_text().splitlines() if (out / "batches").exists() else []
                if len(now) >= target:
                    time.sleep(dice.random() * 0.005)
                    trainer.kill()
                    kills += 1
                    break
                time.sleep(0.0005)
            trainer.wait(60)
    assert kills >= 3
    expected = pod.expected()
    seen = set()
    for line in (out / "batches").read_text().splitlines():
        step, _, found = line.partition(" ")
        if not found.endswith("]"):
            continue  # the kill came in the middle of this line
        assert [-i for i in json.loads(found)] == expected[int(step)]
        seen.add(int(step))
    assert seen == set(expected)
    with eventually() as check:
        check(lambda: pod.metric("lanefeed_slots_free", rank="0") == 4)


def test_a_stream_that_breaks_while_its_sidecar_lives_leaks_no_slot(pod: Pod) -> None:
    """Views of the life before stay as they are, and their slots come back under the new life's name."""
    pod.start()
    with connect(pod) as loader:
        kept: list[tuple[lanefeed.Batch, list[int]]] = []
        number = 0

        def each(batch: lanefeed.Batch) -> None:
            nonlocal number
            number += 1
            kept.append((batch, ids(batch)))
            if number % 4 == 0:
                loader._feed._life._session.cancel()  # type: ignore[attr-defined]
            for old, before in kept:
                assert ids(old) == before
            del kept[:-2]

        assert read(loader, each) == pod.expected()
        assert loader.stats().copied == 0
        kept.clear()
        assert boards_used(loader)
        with eventually() as check:
            check(
                lambda: (
                    sum(pod.metric(f"lanefeed_slots_{name}", rank="0") for name in ("free", "ready")) >= 3
                    and pod.metric("lanefeed_slots_leased", rank="0") <= 1
                )
            )


def test_a_description_that_is_never_whole_sends_the_stream_back_to_messages(
    pod: Pod, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = Noticer.read
    monkeypatch.setattr(inbox_module, "DOUBT_SECONDS", 0.2)
    monkeypatch.setattr(Noticer, "read", lambda self, number: real(self, number) if number < 3 else None)
    pod.start()
    with connect(pod) as loader:
        assert read(loader) == pod.expected()
        assert not boards_used(loader)
    assert "the description of number 3 is not whole" in caplog.text
    assert "attaching again without shared signals" in caplog.text


def test_without_a_futex_frames_come_as_messages(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(futex, "available", lambda: False)
    assert client_module.futex is futex
    pod.start()
    with connect(pod) as loader:
        assert read(loader) == pod.expected()
        assert not boards_used(loader)


def test_tooth_a_sidecar_that_reuses_slots_too_early_is_caught(
    pod: Pod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: the sidecar takes whatever it announced for given back."""
    planted = tmp_path / "planted"
    planted.mkdir()
    (planted / "sitecustomize.py").write_text(
        "import lanefeed_sidecar.arena.board as b\nb.Board.released = lambda self, slot, number: True\n"
    )
    pod.start(env={"PYTHONPATH": os.pathsep.join([str(planted), *filter(None, sys.path)])})
    loader = connect(pod)
    # What the trainer holds changes, or a frame is overwritten before it is read, which it notices itself.
    monkeypatch.setattr(inbox_module, "DOUBT_SECONDS", 1e9)
    kept: list[tuple[lanefeed.Batch, list[int]]] = []

    def look_late() -> None:
        # All that were kept: on a busy machine the sidecar looks again whenever it gets a core.
        for _ in loader.epochs():
            for batch in loader:
                kept.append((batch, batch.ids.tolist()))
                time.sleep(0.05)
                for old, before in kept:
                    assert ids(old) == before

    with pytest.raises((AssertionError, lanefeed.SidecarError)):
        look_late()
    kept.clear()
    loader.close()
