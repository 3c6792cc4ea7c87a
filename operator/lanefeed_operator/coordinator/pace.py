"""How often sidecars shall report: told to them in every answer, and longer the more of them there are.

A report costs about half a millisecond of CPU (bench/reports.py), so two a second of 64,000 pods cannot be taken. What
a person or reconcile wants to see needs no more than one every few seconds, and news (commits, ends, failures) are sent
at once whatever the pace. Pure: the time, and the chance that spreads pods apart, are arguments. Used by `handlers`.
"""

__all__ = ["Pacer"]

#: Reports a second that the service is willing to take: about a quarter of a core.
REPORTS_PER_SECOND = 500.0
#: Below this pods keep their own pace.
LEAST_SECONDS = 0.5
MOST_SECONDS = 60.0
#: A pod with commits that are not acknowledged, or whose job is to stop, comes back sooner.
SOON_SECONDS = 2.0
#: How long a pod counts after it reported, at least.
WINDOW_SECONDS = 10.0
#: The event loop being late by this much means that the process has too much to do.
LATE_SECONDS = 0.25
MOST_SLOWING = 16.0


class Pacer:
    """Counts the pods that report, and says when each shall report again."""

    def __init__(self, reports_per_second: float = REPORTS_PER_SECOND) -> None:
        """`reports_per_second`: what all pods together shall send."""
        self._rate = reports_per_second
        self._present: set[int] = set()
        self._past: set[int] = set()
        self._since = 0.0
        self._slowing = 1.0
        #: When the service last ticked, by a clock that does not jump; it hangs where that is long ago.
        self.ticked = 0.0

    @property
    def pods(self) -> int:
        """Pods that reported lately."""
        return max(len(self._present), len(self._past))

    @property
    def slowing(self) -> float:
        """How much longer the pace is than the number of pods asks for, since the process is overloaded."""
        return self._slowing

    def seen(self, pod_uid: str, now: float) -> None:
        """A pod reported."""
        if now - self._since >= max(WINDOW_SECONDS, 1.5 * self._interval()):
            self._past, self._present, self._since = self._present, set(), now
        self._present.add(hash(pod_uid))

    def late(self, seconds: float, now: float) -> None:
        """How late the service's own tick came: called about once a second."""
        self.ticked = now
        if seconds > LATE_SECONDS:
            self._slowing = min(MOST_SLOWING, 2.0 * self._slowing)
        else:
            self._slowing = max(1.0, 0.9 * self._slowing)

    def next_seconds(self, chance: float, *, soon: bool = False) -> float:
        """When a pod without news shall report again; 0: at its own pace. `chance`: in [0, 1), spreads pods apart."""
        wanted = self._interval()
        if soon:
            wanted = min(wanted, SOON_SECONDS)
        return round(wanted * (0.9 + 0.2 * chance), 2) if wanted > LEAST_SECONDS else 0.0

    def _interval(self) -> float:
        return min(MOST_SECONDS, self.pods / self._rate * self._slowing)
