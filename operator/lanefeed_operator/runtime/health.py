"""/healthz and /readyz: whether the process does its work, and whether it may be sent reports.

Asked by the kubelet. Unhealthy means that a restart helps: a watch that is silent while the API server answers others,
or passes that do not move. An API server that is away is no reason: a restart would only forget. It is asked by a
thread of its own, since a probe must be answered at once also where packets to the API server just vanish.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping

from lanefeed_operator.kube.api import STJS, ApiError, Forbidden, KubeApi, NotFound
from lanefeed_operator.runtime.http import TEXT, Answer
from lanefeed_operator.runtime.workers import QueueState

__all__ = ["STALE_SECONDS", "Health", "api_answers"]

#: A live watch is heard of every 2 minutes; a pass takes well under a second.
STALE_SECONDS = 300.0
#: The report service's loop moves every second.
QUIET_SECONDS = 30.0
#: What the API server answered is good for this long.
PROBE_SECONDS = 10.0
#: One that has not answered by then is away, as far as a probe is concerned (the kubelet waits for 5 s).
ANSWER_SECONDS = 2.0


def api_answers(api: KubeApi, namespace: str) -> Callable[[], bool]:
    """A cheap question to the API server, of a job that does not exist."""

    def ask() -> bool:
        try:
            api.get(STJS, namespace, "lanefeed-health")
        except (NotFound, Forbidden):
            return True
        except ApiError:
            return False
        return True

    return ask


class Health:
    """See the module. Thread safe. `main` sets the callables as it makes the parts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Alive, not ready."""
        self._clock = clock
        self.queue: Callable[[], QueueState] = lambda: QueueState(0, 0.0, 0.0, 0)
        self.watches: Callable[[], Mapping[str, float]] = dict
        #: Seconds that the report service's event loop has not moved.
        self.reports_quiet: Callable[[], float] = lambda: 0.0
        self.api_answers: Callable[[], bool] = lambda: True
        self._lock = threading.Lock()
        self._waiting, self._ready = "starting", ""
        self._probed: tuple[float, bool] | None = None
        self._asking: threading.Thread | None = None

    def waiting(self, why: str) -> None:
        """Not ready."""
        with self._lock:
            self._waiting = why

    def ready(self, what: str = "ready") -> None:
        """Ready: it acts, or stands by (it has no port open for reports then)."""
        with self._lock:
            self._waiting, self._ready = "", what

    def readyz(self) -> Answer:
        """Whether a rollout may go on."""
        with self._lock:
            why, what = self._waiting, self._ready
        return (503, TEXT, f"{why}\n".encode()) if why else (200, TEXT, f"{what}\n".encode())

    def healthz(self) -> Answer:
        """Healthy: a restart would not help."""
        quiet = self.reports_quiet()
        if quiet > QUIET_SECONDS:
            return self._sick(f"the report service has not moved for {quiet:.0f} s")
        stale = "; ".join(self._stale())
        if not stale:
            return 200, TEXT, b"ok\n"
        if self._api():
            return self._sick(f"the API server answers, and {stale}")
        return 200, TEXT, f"ok; the API server does not answer, and {stale}\n".encode()

    def _stale(self) -> Iterator[str]:
        """What has not moved for long: with an API server that is away every pass waits for it."""
        queue = self.queue()
        if queue.oldest > STALE_SECONDS:
            yield f"the head of the queue has waited for {queue.oldest:.0f} s"
        if queue.longest_pass > STALE_SECONDS:
            yield f"a pass has taken {queue.longest_pass:.0f} s so far"
        silent = {name: age for name, age in self.watches().items() if age > STALE_SECONDS}
        if silent:
            names = ", ".join(f"{name} ({age:.0f} s)" for name, age in sorted(silent.items()))
            yield f"these watches are silent: {names}"

    def _api(self) -> bool:
        """Whether the API server answers. Waits for ANSWER_SECONDS at most, with no lock held."""
        with self._lock:
            if (known := self._answer()) is not None:
                return known
            if self._asking is None or not self._asking.is_alive():
                self._asking = threading.Thread(target=self._ask, name="health", daemon=True)
                self._asking.start()
            asking = self._asking
        asking.join(ANSWER_SECONDS)
        with self._lock:
            return bool(self._answer())

    def _answer(self) -> bool | None:
        """What was found out lately, None where nothing was."""
        fresh = self._probed is not None and self._clock() - self._probed[0] <= PROBE_SECONDS
        return self._probed[1] if fresh and self._probed is not None else None

    def _ask(self) -> None:
        answers = self.api_answers()
        with self._lock:
            self._probed = (self._clock(), answers)

    @staticmethod
    def _sick(why: str) -> Answer:
        return 500, TEXT, f"{why}\n".encode()
