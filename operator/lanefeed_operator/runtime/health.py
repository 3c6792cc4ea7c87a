"""/healthz and /readyz: whether the process does its work, and whether it may be sent reports.

Asked by the kubelet. Unhealthy means that a restart helps: a watch that is silent while the API server answers others,
or passes that do not move. An API server that is away is no reason: a restart would only forget.
"""

import threading
import time
from collections.abc import Callable, Mapping

from lanefeed_operator.kube.api import STJS, ApiError, Forbidden, KubeApi, NotFound
from lanefeed_operator.runtime.http import TEXT, Answer
from lanefeed_operator.runtime.workers import QueueState

__all__ = ["STALE_SECONDS", "Health", "api_answers"]

#: A live watch is heard of every 2 minutes; a pass takes well under a second.
STALE_SECONDS = 300.0
#: The report service's loop moves every second.
QUIET_SECONDS = 30.0
#: A probe's answer is good for this long.
PROBE_SECONDS = 10.0


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
        queue = self.queue()
        if queue.oldest > STALE_SECONDS:
            return self._sick(f"the head of the queue has waited for {queue.oldest:.0f} s")
        if queue.longest_pass > STALE_SECONDS:
            return self._sick(f"a pass has taken {queue.longest_pass:.0f} s so far")
        quiet = self.reports_quiet()
        if quiet > QUIET_SECONDS:
            return self._sick(f"the report service has not moved for {quiet:.0f} s")
        silent = {name: age for name, age in self.watches().items() if age > STALE_SECONDS}
        if not silent:
            return 200, TEXT, b"ok\n"
        names = ", ".join(f"{name} ({age:.0f} s)" for name, age in sorted(silent.items()))
        if self._api():
            return self._sick(f"the API server answers, and these watches are silent: {names}")
        return 200, TEXT, f"ok; the API server does not answer, silent: {names}\n".encode()

    def _api(self) -> bool:
        with self._lock:
            now = self._clock()
            if self._probed is None or now - self._probed[0] > PROBE_SECONDS:
                self._probed = (now, self.api_answers())
            return self._probed[1]

    @staticmethod
    def _sick(why: str) -> Answer:
        return 500, TEXT, f"{why}\n".encode()
