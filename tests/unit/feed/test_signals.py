"""SIGTERM ends a sidecar whatever its main thread is doing just then."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lanefeed_sidecar import supervisor
from support.feed_pod import Pod
from support.told import Told


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_handler_itself_takes_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The main thread may hold the lock of the event that it waits for, and of the log."""
    told = Told()

    def start(sidecar: Any) -> None:
        sidecar._stop = told
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(supervisor._Sidecar, "start", start)
    assert supervisor.run(Pod(tmp_path, tmp_path).config, lambda *_: pytest.fail("nothing is to be made")) == 0
    assert told.by == ["signals"]
