"""`lanefeed.stop_on_sigterm()`: only where it is asked for, and a rank that nobody tells a step leaves by itself."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

import lanefeed
from lanefeed import _sigterm
from lanefeed._loader import Loader
from lanefeed.testing import fake_loader, feed_of


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    if _sigterm._installed is not None:
        _sigterm._installed.restore()
    assert signal.getsignal(signal.SIGTERM) is before


def make() -> Loader:
    return fake_loader({"x": np.arange(40)}, global_batch_size=4)


def test_the_library_installs_nothing_by_itself() -> None:
    before = signal.getsignal(signal.SIGTERM)
    loader = make()
    next(iter(loader))
    assert signal.getsignal(signal.SIGTERM) is before
    assert not loader.stop_requested
    assert not loader._stream.report().stop_wanted


def test_a_step_that_is_agreed_meanwhile_is_waited_for() -> None:
    loader = make()
    batches = iter(loader)
    with lanefeed.stop_on_sigterm(agree_seconds=0.0) as handler:
        next(batches)
        assert not loader.stop_requested
        os.kill(os.getpid(), signal.SIGTERM)
        assert handler.caught
        assert loader._stream.report().stop_wanted
        feed_of(loader).stop(3, "Eviction")
        assert (loader.stop_requested, loader.stop_reason) == (False, "Eviction")
        next(batches)
        next(batches)
        assert loader.stop_requested
    assert _sigterm._installed is None


def test_without_an_agreement_this_rank_leaves_alone_after_a_while() -> None:
    loader = make()
    next(iter(loader))
    handler = lanefeed.stop_on_sigterm(agree_seconds=1000.0)
    began = time.monotonic()
    os.kill(os.getpid(), signal.SIGTERM)
    assert (loader.stop_requested, loader.stop_reason) == (False, "preemption")
    assert lanefeed.stop_on_sigterm(agree_seconds=0.2) is handler, "calling it again changes the time alone"
    while not loader.stop_requested:
        assert time.monotonic() - began < 60
        time.sleep(0.01)
    assert time.monotonic() - began > 0.15
    assert make().stop_requested, "it is the process that ends, whatever loader is asked"


def test_a_handler_of_the_users_is_called_too_and_comes_back() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: seen.append(number))
    try:
        with lanefeed.stop_on_sigterm() as handler:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            since = handler.since
        assert seen == [signal.SIGTERM] * 2
        assert since is not None
        os.kill(os.getpid(), signal.SIGTERM)
        assert len(seen) == 3
        assert handler.since == since, "after `restore` it is not ours any more"
        handler.restore()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_outside_of_the_main_thread_it_says_so() -> None:
    errors: list[BaseException] = []

    def call() -> None:
        try:
            lanefeed.stop_on_sigterm()
        except lanefeed.UsageError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert "must be called in the main thread" in str(errors[0])
