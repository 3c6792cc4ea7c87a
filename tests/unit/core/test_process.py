"""What a process asks of its system: signals that are heard while the main thread holds a lock, and files enough."""

import os
import resource
import signal
import threading
from collections.abc import Iterator

import pytest

from lanefeed_core.process import hear_signals, raise_open_files

UNLIMITED = resource.RLIM_INFINITY


@pytest.fixture
def usual() -> Iterator[None]:
    """Afterwards SIGUSR1 does what it did."""
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.timeout(120)
def test_a_signal_is_heard_while_the_main_thread_is_about_to_wait(usual: None) -> None:
    """It comes when `wait` holds the event's lock. A handler that set the event would stand still here for ever."""
    stop, heard = threading.Event(), list[int]()

    def hear(number: int) -> None:
        heard.append(number)
        stop.set()

    hear_signals([signal.SIGUSR1], hear)
    with stop._cond:  # type: ignore[attr-defined]
        os.kill(os.getpid(), signal.SIGUSR1)
        assert not stop.is_set()
    assert stop.wait(60)
    assert heard == [signal.SIGUSR1]


def test_each_signal_is_heard(usual: None) -> None:
    every = threading.Semaphore(0)
    hear_signals([signal.SIGUSR1], lambda _: every.release())
    for _ in range(3):
        signal.raise_signal(signal.SIGUSR1)
    assert all(every.acquire(timeout=60) for _ in range(3))


@pytest.mark.parametrize(
    ("soft", "hard", "asked", "files"),
    [
        (1024, 1 << 20, [5000], 5000),
        (1024, 4096, [4096], 4096),
        (1024, UNLIMITED, [5000], 5000),
        (6000, 6000, [], 6000),
        (UNLIMITED, UNLIMITED, [], 5000),
    ],
)
def test_open_files(soft: int, hard: int, asked: list[int], files: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: made.append(limits))
    assert raise_open_files(5000) == (files, "")
    assert made == [(limit, hard) for limit in asked], "the hard limit stays"


def test_open_files_that_may_not_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_open_files(5000) == (1024, "not allowed to raise maximum limit")
