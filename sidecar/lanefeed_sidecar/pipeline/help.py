"""A fill thread that would wait for windows reads row groups out of the decoded cache instead.

Reading an entry is a short copy, as long as filling a frame, and what a frame waits for is what comes first anyway. One
fill thread at a time: more would wait for each other's GIL. Nothing is decoded here, which would take as long as many
frames. Called by the engine.
"""

import time
from collections.abc import Callable

from lanefeed_sidecar.pipeline.decode import Workers
from lanefeed_sidecar.pipeline.needs import WindowKey
from lanefeed_sidecar.pipeline.stats import Stats
from lanefeed_sidecar.pipeline.store import Store, Task

__all__ = ["Help"]


class Help:
    """What fill threads of one engine do while their windows are not whole."""

    def __init__(self, store: Store, workers: Workers, stats: Stats) -> None:
        """Nothing is done yet."""
        self._store, self._workers, self._stats = store, workers, stats
        #: Guarded by the store's lock.
        self._helping = False

    def until(self, rank: int, step: int, needed: list[WindowKey], cancelled: Callable[[], bool]) -> None:
        """Read until the windows are whole, nothing is left to read, or the rank was moved away from `step`.

        Raises the error of a window.
        """
        began = time.monotonic()
        found = True
        while found and not cancelled() and (task := self._take(rank, step, needed)) is not None:
            try:
                # What was not there is left to the decode threads: who took it again would only be in their way.
                found = self._workers.help(task)
            finally:
                with self._store.changed:
                    self._helping = False
        self._stats.wait("assemble", "cache", time.monotonic() - began)

    def _take(self, rank: int, step: int, needed: list[WindowKey]) -> Task | None:
        with self._store.changed:
            if self._helping or self._store.position(rank) != step or self._store.readable(needed):
                return None
            task = self._store.choose(helping=True)
            self._helping = task is not None
            return task
