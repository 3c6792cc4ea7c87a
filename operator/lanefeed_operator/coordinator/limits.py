"""How much one caller may ask for: calls at a time, calls a second, refused tokens. Pure; used by the report service.

A caller above a limit is not only refused but answered late (`TARPIT_SECONDS`), so that hurrying gains it nothing.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from lanefeed_operator.coordinator.rejected import Rejected

__all__ = ["MAX_LATE", "TARPIT_SECONDS", "AtOnce", "Buckets", "PerSecond"]

#: How late a caller above a limit is answered.
TARPIT_SECONDS = 1.0
#: Calls that are answered late at a time: more would take places from those that are not.
MAX_LATE = 512


class AtOnce:
    """Calls that are under way: at most `each` of one caller (of "" any number) and `most` of all."""

    def __init__(self, what: str, each: int, most: int) -> None:
        """`what`: what is counted, for the message."""
        self._what, self._each, self._most = what, each, most
        self._now: Counter[str] = Counter()
        self._all = 0

    @contextmanager
    def held(self, who: str) -> Iterator[None]:
        """While one more is under way. Raises Rejected where that is one too many."""
        if who and self._now[who] >= self._each:
            raise Rejected.busy(f"{self._now[who]} {self._what} of {who} are under way: wait for their answers")
        if self._all >= self._most:
            raise Rejected.busy(f"{self._all} {self._what} are under way here: try again in a few seconds")
        self._now[who] += 1
        self._all += 1
        try:
            yield
        finally:
            self._all -= 1
            self._now[who] -= 1
            if not self._now[who]:
                del self._now[who]

    def __len__(self) -> int:
        return self._all


class PerSecond:
    """Calls of each caller in the present second; one too many waits for the next."""

    def __init__(self, most: int) -> None:
        """`most`: of one caller."""
        self._most = most
        self._second = 0
        self._calls: Counter[str] = Counter()

    def wait(self, who: str, now: float) -> float:
        """Count one; how long it must wait before it is served."""
        if int(now) != self._second:
            self._second = int(now)
            self._calls.clear()
        self._calls[who] += 1
        return self._second + 1 - now if self._calls[who] > self._most else 0.0


class Buckets:
    """A leaky bucket for each caller: `burst` at once, then `rate` a second; the idlest callers are forgotten."""

    def __init__(self, rate: float, burst: float, callers: int = 4096) -> None:
        """Remembers at most `callers`."""
        self._rate, self._burst, self._callers = rate, burst, callers
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def full(self, who: str, now: float) -> bool:
        """Whether one more would be too many."""
        return self._level(who, now) + 1.0 > self._burst

    def pour(self, who: str, now: float) -> None:
        """Count one."""
        self._levels[who] = (min(self._burst, self._level(who, now) + 1.0), now)
        self._levels.move_to_end(who)
        while len(self._levels) > self._callers:
            self._levels.popitem(last=False)

    def _level(self, who: str, now: float) -> float:
        level, since = self._levels.get(who, (0.0, now))
        return max(0.0, level - max(0.0, now - since) * self._rate)
