"""Ctrl-C reaches a local runner whatever its main thread is doing just then."""

import signal

from lanefeed_operator.local.runner import Runner
from support.told import Told


def test_the_handler_itself_takes_no_lock() -> None:
    """The loop clears and waits for its event in the thread that the handler interrupts."""
    runner, told = object.__new__(Runner), Told()
    runner._wake, runner._interrupts, runner._signal = told, 0, 0
    runner._interrupt(signal.SIGINT, None)
    assert (runner._interrupts, runner._signal) == (1, signal.SIGINT), "the next pass sees it"
    assert told.by == []
