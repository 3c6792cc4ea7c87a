"""When a read is stuck, a second one is sent and the quicker counts: after what, and how many of them. Pure.

After the time that 95 of 100 like it took; never more than a few percent of requests, so that a store that is slow as a
whole is not made slower.
"""

from collections import deque

__all__ = ["Hedge"]

_KEPT = 200
#: With fewer than these nothing is known of how long a read takes.
_ENOUGH = 10
_QUANTILE = 0.95
#: Before anything is known a read is stuck after so long.
_UNKNOWN_SECONDS = 2.0
_LEAST_SECONDS = 0.1
#: Reads that hang must not find the allowance spent on reads that were merely slow: they have one of their own.
_URGENT_SHARE, _URGENT_BURST = 0.02, 4.0
_URGENT_TIMES, _URGENT_SECONDS, _URGENT_MOST = 8.0, 2.0, 10.0


class Hedge:
    """Durations of recent reads, and the extra requests that they allow. Not thread safe: the caller holds a lock."""

    def __init__(self, share: float = 0.05, burst: float = 2.0) -> None:
        """`share`: extra requests for each read; `burst`: what is saved up at most, and there at the start."""
        self._share, self._burst = share, burst
        self._tokens, self._urgent = burst, _URGENT_BURST
        self._recent: dict[int, deque[float]] = {}
        self._after: dict[int, float] = {}

    def after(self, size: int) -> float:
        """Seconds after which a read of `size` bytes is stuck."""
        return self._after.get(_class(size), _UNKNOWN_SECONDS)

    def urgent(self, size: int) -> float:
        """Seconds after which it hangs."""
        return max(self.after(size), min(_URGENT_MOST, max(_URGENT_SECONDS, _URGENT_TIMES * self.after(size))))

    def took(self, size: int, seconds: float) -> None:
        """A read has succeeded."""
        kind = _class(size)
        recent = self._recent.setdefault(kind, deque(maxlen=_KEPT))
        recent.append(seconds)
        self._tokens = min(self._burst, self._tokens + self._share)
        self._urgent = min(_URGENT_BURST, self._urgent + _URGENT_SHARE)
        if len(recent) >= _ENOUGH:
            ordered = sorted(recent)
            # A third more than what is usual at worst: reads that are about to end are not stuck.
            usual = ordered[int(_QUANTILE * (len(ordered) - 1))]
            self._after[kind] = max(_LEAST_SECONDS, usual * 4 / 3)

    def take(self, *, urgent: bool = False) -> bool:
        """Whether one extra request may be sent now; `urgent`: for a read that hangs."""
        if self._tokens >= 1:
            self._tokens -= 1
            return True
        if urgent and self._urgent >= 1:
            self._urgent -= 1
            return True
        return False


def _class(size: int) -> int:
    """Reads of about the same size take about the same time."""
    return max(16, (max(1, size) - 1).bit_length()) // 2
