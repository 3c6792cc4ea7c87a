"""SIGTERM as a wish to stop, for users who ask for it: `lanefeed.stop_on_sigterm()`.

A pod that is evicted gets SIGTERM in its trainer's container; torchrun passes it on to its workers, which would die of
it at once. With this handler they go on, the sidecar hears of it (`Progress.stop_wanted`) and agrees on a step where it
can, and `loader.stop_requested` becomes true there. The library installs nothing by itself. The handler takes no lock
and does no I/O: it may run between any two lines of the main thread.
"""

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from lanefeed.errors import UsageError

__all__ = ["AGREE_SECONDS", "REASON", "StopOnSigterm", "alone", "caught", "stop_on_sigterm"]

#: What `loader.stop_reason` says.
REASON = "preemption"
#: How long an agreed step is waited for, before this rank leaves by itself.
AGREE_SECONDS = 5.0

_installed: "StopOnSigterm | None" = None


class StopOnSigterm:
    """The handler while it is installed. A context manager; `restore` puts the former handler back."""

    def __init__(self, agree_seconds: float) -> None:
        """Made by `stop_on_sigterm`."""
        self.agree_seconds = agree_seconds
        #: time.monotonic() at the first SIGTERM.
        self.since: float | None = None
        self._before: Any = None

    @property
    def caught(self) -> bool:
        """Whether SIGTERM has come."""
        return self.since is not None

    def restore(self) -> None:
        """SIGTERM does again what it did before. Idempotent; in the main thread."""
        global _installed
        if _installed is self:
            signal.signal(signal.SIGTERM, self._before)
            _installed = None

    def __enter__(self) -> "StopOnSigterm":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    def _install(self) -> None:
        before = signal.signal(signal.SIGTERM, self._catch)
        # None: a handler that was not installed from Python, which cannot be put back.
        self._before = signal.SIG_DFL if before is None else before

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if self.since is None:
            self.since = time.monotonic()
        if callable(self._before):
            self._before(number, frame)


def stop_on_sigterm(*, agree_seconds: float = AGREE_SECONDS) -> StopOnSigterm:
    """From now on SIGTERM does not end this process but makes `loader.stop_requested` true, for every loader in it.

    Call it once, early, in the main thread of each worker; then leave the training loop as for any other stop: save,
    commit, `raise lanefeed.Stopped`. All ranks leave at one step where somebody can agree on one: the sidecar, if all
    ranks are in its pod, else the operator, which sees the pod being deleted. Where nobody does within `agree_seconds`
    this rank leaves alone: then what was trained since the last commit is trained again, as after a kill.

    A handler that was installed before is called too. Raises UsageError outside of the main thread. The returned
    object is a context manager that puts the former handler back.
    """
    global _installed
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("stop_on_sigterm() must be called in the main thread: Python delivers signals there")
    if _installed is None:
        made = StopOnSigterm(agree_seconds)
        made._install()
        _installed = made
    _installed.agree_seconds = agree_seconds
    return _installed


def caught() -> bool:
    """Whether this process was told to end and waits to be told where."""
    return _installed is not None and _installed.since is not None


def alone() -> bool:
    """Whether it was told to end so long ago that it leaves though no step was agreed."""
    installed = _installed
    return (
        installed is not None
        and installed.since is not None
        and time.monotonic() - installed.since >= installed.agree_seconds
    )
