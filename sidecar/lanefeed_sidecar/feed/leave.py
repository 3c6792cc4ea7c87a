"""The pod is to end: hold up the trainer's SIGTERM until its ranks have left with a checkpoint.

The kubelet calls `/leave` as the trainer container's preStop hook, before any signal. The control plane sees meanwhile
that the pod is to go, and asks all ranks of the job to leave at one step; a SIGTERM that came first would end the rank
in the middle of a step, and its peers with it. Called by the metrics server; decides nothing but how long to wait.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

__all__ = ["ASK_SECONDS", "Leave"]

#: An agreed stop comes with the answer to a report or two; later, nobody will ask.
ASK_SECONDS = 6.0
LOOK_SECONDS = 0.1


class RankLife(Protocol):
    """What is asked of a rank's life."""

    @property
    def alive(self) -> bool:
        """Its trainer has neither left nor been replaced."""

    @property
    def ended(self) -> bool:
        """The whole stream was consumed."""


class Ranks(Protocol):
    """What is asked of the hub."""

    #: When a stop was heard of, by the monotonic clock; None: none was.
    stop_heard: float | None

    @property
    def barred(self) -> Exception | None:
        """Why nobody may attach."""

    def lives(self) -> Mapping[int, RankLife]:
        """The newest life of every rank."""

    def stop_wanted(self) -> None:
        """The pod is to go: where it is the only one of the job a step is agreed at once."""


class Leave:
    """Answers the hook."""

    def __init__(
        self,
        ranks: Ranks,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`clock` and `sleep` are for tests."""
        self._ranks, self._clock, self._sleep = ranks, clock, sleep

    def wait(self, seconds: float) -> str:
        """Until the trainer may be ended; why. `seconds`: how long ranks may take once they were asked to leave."""
        began = self._clock()
        self._ranks.stop_wanted()
        while True:
            why = self._over(self._clock() - began, seconds)
            if why:
                return why
            self._sleep(LOOK_SECONDS)

    def _over(self, waited: float, seconds: float) -> str:
        """Why there is nothing to wait for, "" while there is."""
        here = _busy(self._ranks.lives())
        if not here:
            return "no rank trains"
        if self._ranks.barred is not None:
            return "nobody may train here any more"
        heard = self._ranks.stop_heard
        if heard is None:
            return f"no stop was asked for within {ASK_SECONDS:g} s" if waited >= ASK_SECONDS else ""
        if self._clock() - heard >= seconds:
            return f"ranks {here} did not leave within {seconds:g} s of the stop"
        return ""


def _busy(lives: Mapping[int, RankLife]) -> Iterable[int]:
    return [rank for rank, life in sorted(lives.items()) if life.alive and not life.ended]
