"""What the cluster holds, read as a whole: at the start, every ten minutes, and when a watch has lost its place.

Run by `main` in a thread of its own. A watch that begins anew says what exists and not what is gone; a whole listing
finds that out. Then every job is looked at once, spread over a part of the interval: whatever event was lost, no job
waits for it longer than that.
"""

import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from lanefeed_operator.kube.api import ApiError, Kind, Object
from lanefeed_operator.runtime.feed import Feed, selector
from lanefeed_operator.runtime.guard import GuardedApi
from lanefeed_operator.runtime.workers import JobKey

__all__ = ["Resync"]

log = logging.getLogger(__name__)

#: Share of the interval that the jobs' passes are spread over, and by which the interval itself varies.
SPREAD, JITTER = 0.25, 0.1
#: Listings that were asked for within this time are done once.
SETTLE_SECONDS = 1.0
RETRY_SECONDS = 10.0


class Resync:
    """See the module."""

    def __init__(
        self,
        api: GuardedApi,
        feed: Feed,
        *,
        kinds: Sequence[Kind],
        namespaces: Sequence[str],
        seconds: float,
        wake_all: Callable[[list[JobKey], float], None],
        rng: random.Random | None = None,
    ) -> None:
        """`namespaces` empty: the whole cluster. `wake_all(keys, spread)` asks for a look at each."""
        self._api, self._feed = api, feed
        self._kinds, self._namespaces = tuple(kinds), tuple(namespaces)
        self._seconds, self._wake_all = seconds, wake_all
        self._rng = rng or random.Random()  # noqa: S311 -- it spreads load
        self._asked: queue.SimpleQueue[Kind | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="resync", daemon=True)
        self._stopping = threading.Event()

    def load(self) -> int:
        """The first listing of everything, and a look at each job; the number of jobs. Raises ApiError."""
        for kind in self._kinds:
            self.relist(kind)
        keys = self._feed.view.keys()
        self._wake_all(keys, 0.0)
        return len(keys)

    def start(self) -> None:
        """Begin with the periodic resync."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a listing at hand is not waited for."""
        self._stopping.set()
        self._asked.put(None)

    def ask(self, kind: Kind) -> None:
        """List this kind soon: its watch may have missed what was deleted."""
        self._asked.put(kind)

    def relist(self, kind: Kind) -> None:
        """Make the View hold what is there. Raises ApiError, once all namespaces that answer were listed."""
        refused = None
        for namespace in self._namespaces if kind.namespaced and self._namespaces else ("",):
            since = self._feed.view.stamp()
            try:
                matters = self._feed.listed(kind, self._listing(kind, namespace), since, namespace)
            except ApiError as error:
                refused = refused or error
                continue
            log.debug("listed %s: it matters to %d jobs", kind.plural, matters, extra={"resource": kind.plural})
        if refused is not None:
            raise refused

    def _listing(self, kind: Kind, namespace: str) -> Iterable[Object]:
        return self._api.scan(kind, namespace, labels=selector(kind))

    # ---- the thread --------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        again = time.monotonic() + self._interval()
        while not self._stopping.is_set():
            wanted = self._wait(again)
            if self._stopping.is_set():
                return
            whole = time.monotonic() >= again
            failed = self._relist_all(self._kinds if whole else wanted)
            for kind in failed:
                self._asked.put(kind)
            if failed and self._stopping.wait(RETRY_SECONDS):
                return
            if whole:
                again = time.monotonic() + self._interval()
                self._wake_all(self._feed.view.keys(), self._seconds * SPREAD)

    def _interval(self) -> float:
        return self._seconds * self._rng.uniform(1.0 - JITTER, 1.0 + JITTER)

    def _wait(self, until: float) -> tuple[Kind, ...]:
        """What was asked for, once it is; nothing when the time is up."""
        wanted: dict[Kind, None] = {}
        while (left := until - time.monotonic()) > 0 and not self._stopping.is_set():
            try:
                kind = self._asked.get(timeout=SETTLE_SECONDS if wanted else left)
            except queue.Empty:
                break
            if kind is not None:
                wanted[kind] = None
        return tuple(wanted)

    def _relist_all(self, kinds: Sequence[Kind]) -> list[Kind]:
        """The kinds that could not be listed."""
        failed = []
        for kind in kinds:
            try:
                self.relist(kind)
            except ApiError as error:
                log.warning("cannot list %s, again in %g s: %s", kind.plural, RETRY_SECONDS, error)
                failed.append(kind)
        return failed
