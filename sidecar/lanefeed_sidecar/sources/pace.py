"""How many requests a store gets at once, and when: after an outage few, then more with each success. Pure.

Every reader sees the same outage; left alone each would try again, all together, for as long as it lasts and once more
when it ends. So failures that say "not now" halve the number of requests at once and make everybody wait together; each
success lets one more in. Time and randomness are arguments.
"""

from collections.abc import Callable

__all__ = ["Pace"]

#: What a store that is overloaded or away does.
_PUSHBACK = ("throttled", "connect")
#: These count as an outage when so many come with no success between. Others say nothing of the store's state.
_OUTAGE = (*_PUSHBACK, "timeout", "reset", "server")
_IN_A_ROW = 4
_BASE_SECONDS = 0.1
_MOST_SECONDS = 5.0
#: A store that asks for longer is asked again after so long: its word stops every reader, and may be a mistake.
_MOST_RETRY_AFTER = 60.0


class Pace:
    """Who may ask now. Not thread safe: the caller holds a lock."""

    def __init__(self, most: int, rng: Callable[[], float]) -> None:
        """`most`: requests at once when all is well."""
        self._most, self._rng = most, rng
        self.limit = float(most)
        self.running = 0
        self._failures = 0
        self._not_before = 0.0
        self._cut_at = 0.0

    def wait(self, now: float) -> float:
        """Seconds until it is worth asking again; 0: go, and tell `ended` afterwards. inf: when another has ended."""
        if now < self._not_before:
            return self._not_before - now
        if self.running >= max(1, int(self.limit)):
            return float("inf")
        self.running += 1
        return 0.0

    def ended(self, began: float, now: float, kind: str, retry_after: float = 0.0) -> None:
        """A request that began at `began` has ended: "" is success, else the kind of its failure."""
        self.running -= 1
        if not kind:
            self._failures = 0
            self.limit = min(self._most, self.limit + 1)
            return
        if kind not in _OUTAGE:
            return
        self._failures += 1
        if retry_after:
            # Later by up to a half: all clients of the store were told the same time.
            self._hold(now + min(retry_after, _MOST_RETRY_AFTER) * (1 + 0.5 * self._rng()))
        if kind not in _PUSHBACK and self._failures < _IN_A_ROW:
            return
        # Requests that were under way together tell of one event: it is counted once.
        if began < self._cut_at:
            return
        self._cut_at = now
        self.limit = max(1.0, self.limit / 2)
        pause = min(_MOST_SECONDS, _BASE_SECONDS * 2 ** min(self._failures, 10))
        self._hold(now + pause * (0.5 + 0.5 * self._rng()))

    def _hold(self, until: float) -> None:
        self._not_before = max(self._not_before, until)
