"""Stall accounting: how long the trainer waited for data, and how long its steps took.

Counted by `Stream`, sent up with every Progress, shown by `loader.stats()`.
"""

from dataclasses import dataclass

__all__ = ["Counters", "Stats"]


@dataclass(frozen=True, slots=True)
class Stats:
    """Totals since the loader was made."""

    #: Batches handed out.
    batches: int
    #: Batches copied out of shared memory because kept ones starved the ring.
    copied: int
    #: Seconds spent waiting for data.
    wait_seconds: float
    #: Seconds between batches, waiting left out: the trainer's own time.
    step_seconds: float

    @property
    def stall_percent(self) -> float:
        """Share of the time that was spent waiting, in percent."""
        total = self.wait_seconds + self.step_seconds
        return 100.0 * self.wait_seconds / total if total else 0.0


class Counters:
    """The same, growing."""

    __slots__ = ("batches", "copied", "step_seconds", "wait_seconds")

    def __init__(self) -> None:
        """All zero."""
        self.batches = 0
        self.copied = 0
        self.wait_seconds = 0.0
        self.step_seconds = 0.0

    def stats(self, more: float = 0.0) -> Stats:
        """A copy; `more` seconds of the trainer's own are not counted yet."""
        return Stats(self.batches, self.copied, self.wait_seconds, self.step_seconds + more)
