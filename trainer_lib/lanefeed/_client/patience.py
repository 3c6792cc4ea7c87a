"""How long an attach is waited for, and the word every ten seconds on what it waits for. Used by `client`."""

import logging
import threading
import time
from typing import Protocol

from lanefeed.errors import AttachTimeout, SidecarLost

__all__ = ["BACKOFF", "WORD_SECONDS", "Patience"]

log = logging.getLogger("lanefeed")

#: A line says what is waited for this often.
WORD_SECONDS = 10.0
#: Pauses between two tries to attach; the last one repeats.
BACKOFF = (0.02, 0.05, 0.1, 0.2, 0.5)


class Waiting(Protocol):
    """Who waits, and how long at most."""

    @property
    def rank(self) -> int:
        """For the word."""

    @property
    def attach_seconds(self) -> float:
        """Seconds at most."""


class Patience:
    """How long an attach may take, and the word every 10 seconds on what it waits for."""

    def __init__(self, target: Waiting, *, forever: bool) -> None:
        self._target = target
        self._began = self._said = time.monotonic()
        self._end = None if forever else self._began + target.attach_seconds
        self.tries = 0

    @property
    def left(self) -> float:
        """Seconds that one call may take."""
        return 60.0 if self._end is None else max(0.05, self._end - time.monotonic())

    def say(self, word: str) -> None:
        """Log the word if it is time; raise AttachTimeout if the time is over."""
        now = time.monotonic()
        if self._end is not None and now >= self._end:
            raise AttachTimeout(
                f"no sidecar answered within {self._target.attach_seconds:g} s: {word}. Look at the sidecar's log; "
                "attach_timeout= or LANEFEED_ATTACH_SECONDS sets how long to wait"
            )
        if now - self._said >= WORD_SECONDS:
            self._said = now
            log.warning("rank %d waits for its sidecar since %.0f s: %s", self._target.rank, now - self._began, word)

    def pause(self, word: str, closing: threading.Event) -> None:
        """Wait for the next try. Raises NotReady if the loader is closed meanwhile."""
        self.say(word)
        pause = BACKOFF[min(self.tries, len(BACKOFF) - 1)]
        self.tries += 1
        if closing.wait(pause):
            raise SidecarLost("the loader was closed")
