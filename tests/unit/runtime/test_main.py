"""The process itself: a thread that it cannot do without takes it along."""

import logging
import threading
from typing import Any

import pytest

from lanefeed_operator.runtime.main import FAILED, Process
from lanefeed_operator.runtime.settings import PREFIX, read


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
    process = Process(read({PREFIX + "SIDECAR_IMAGE": "sidecar:1", PREFIX + "NAMESPACE": "ours"}))
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
