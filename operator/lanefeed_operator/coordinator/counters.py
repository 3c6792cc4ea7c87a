"""What became of calls, counted by result. Read by the operator's metrics (`reports_total{result}`)."""

import threading
from collections import Counter

from lanefeed_operator.coordinator.rejected import RESULTS

__all__ = ["Counters"]


class Counters:
    """Counts by result; safe from any thread. Every result is there from the start, so that rates can be made of it."""

    def __init__(self) -> None:
        """All zero."""
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter(dict.fromkeys(RESULTS, 0))

    def add(self, result: str) -> None:
        """Count one; `result` is one of RESULTS."""
        with self._lock:
            self._counts[result] += 1

    def totals(self) -> dict[str, int]:
        """All counts since the start."""
        with self._lock:
            return dict(self._counts)
