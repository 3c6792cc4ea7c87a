"""How fast a job goes: total steps a second over the last few seconds, by the fastest rank. Pure."""

from collections import deque

__all__ = ["Speed"]

WINDOW_SECONDS = 10.0
#: Reports of a thousand ranks come far more often than a point is wanted.
GAP_SECONDS = 0.5


class Speed:
    """A few points (time, total step) of the recent past."""

    __slots__ = ("_points",)

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._points: deque[tuple[float, int]] = deque()

    def due(self, now: float) -> bool:
        """Whether another point is wanted."""
        return not self._points or not 0.0 <= now - self._points[-1][0] < GAP_SECONDS

    def add(self, now: float, step: int) -> None:
        """The fastest rank stands at `step`."""
        self._points.append((now, step))
        while now - self._points[0][0] > WINDOW_SECONDS:
            self._points.popleft()

    def rate(self, now: float) -> float:
        """Total steps a second; 0 where too little is known."""
        recent = [point for point in self._points if now - point[0] <= WINDOW_SECONDS]
        if len(recent) < 2:
            return 0.0
        (t0, s0), (t1, s1) = recent[0], recent[-1]
        return max(0.0, (s1 - s0) / (t1 - t0)) if t1 - t0 > 0.25 else 0.0
