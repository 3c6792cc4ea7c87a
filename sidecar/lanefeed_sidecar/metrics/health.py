"""Whether the sidecar is ready, and why not: one small state that the supervisor writes and /readyz reads."""

import threading

__all__ = ["Health"]


class Health:
    """Ready, or the reason why not. Thread safe."""

    def __init__(self) -> None:
        """Starting."""
        self._lock = threading.Lock()
        self._reason = "starting: the configuration is being read"
        self._failed = False

    def waiting(self, reason: str) -> None:
        """Not ready yet."""
        with self._lock:
            if not self._failed:
                self._reason = reason

    def ready(self) -> None:
        """Plan checked, socket bound, engine started."""
        with self._lock:
            if not self._failed:
                self._reason = ""

    def failed(self, reason: str) -> None:
        """Never ready again."""
        with self._lock:
            if not self._failed:
                self._failed, self._reason = True, reason

    @property
    def reason(self) -> str:
        """Why it is not ready; "" if it is."""
        with self._lock:
            return self._reason
