"""The process itself: a thread that it cannot do without takes it along, and a signal ends it."""

import logging
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from lanefeed_operator.runtime import main as main_module
from lanefeed_operator.runtime.main import FAILED, Process
from lanefeed_operator.runtime.settings import PREFIX, read
from support.told import Told

ENVIRONMENT = {PREFIX + "SIDECAR_IMAGE": "sidecar:1", PREFIX + "NAMESPACE": "ours"}


class NoTimer:
    """Instead of the one that would end the test run."""

    def __init__(self, *_: Any) -> None:
        self.daemon = False

    def start(self) -> None:
        pass


@pytest.mark.parametrize(("name", "ends"), [("pass-3", True), ("resync", True), ("grpc-poller", False)])
def test_a_thread_that_breaks_ends_the_process_where_it_is_needed(
    name: str, ends: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    process = Process(read(ENVIRONMENT))
    monkeypatch.setattr(threading, "excepthook", process.broke)

    def work() -> None:
        raise KeyError("an object without a name")

    thread = threading.Thread(target=work, name=name)
    with monkeypatch.context() as without, caplog.at_level(logging.ERROR):
        without.setattr(threading, "Timer", NoTimer)
        thread.start()
        thread.join(60)
    assert process._stop.is_set() is ends
    assert process._code == (FAILED if ends else 0)
    assert f"thread {name} broke" in caplog.text
    assert "an object without a name" in caplog.text


@pytest.fixture
def handlers() -> Iterator[None]:
    """Afterwards signals do what they did."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_handler_of_a_signal_takes_no_lock(handlers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The main thread may hold the lock of the event that it waits for, and of the log."""
    told, timed = Told(), threading.Event()

    class Timer(NoTimer):
        def start(self) -> None:
            timed.set()

    def run(process: Process) -> int:
        process._stop = told
        signal.raise_signal(signal.SIGTERM)
        assert told.wait(60)
        assert timed.wait(60), "whatever hangs, the process ends"
        return process._code

    monkeypatch.setattr(Process, "run", run)
    monkeypatch.setattr(main_module.logs, "setup", lambda **_: None)
    # `main` sets it.
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(threading, "Timer", Timer)
    assert main_module.main((), ENVIRONMENT) == 0
    assert told.by == ["signals"]
