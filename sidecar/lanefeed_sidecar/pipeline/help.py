"""A fill thread that would wait for windows reads row groups out of the decoded cache instead.

Reading an entry is a short copy, as long as filling a frame, and what a frame waits for is what comes first anyway. One
fill thread at a time: more would wait for each other's GIL. Nothing is decoded here, which would take as long as many
frames. Called by the engine.
"""

from collections.abc import Callable

from lanefeed_sidecar.pipeline.decode import Workers
from lanefeed_sidecar.pipeline.needs import WindowKey
from lanefeed_sidecar.pipeline.store import Store, Task

__all__ = ["Help"]


class Help:
    """What fill threads of one engine do while their windows are not whole."""

    def __init__(self, store: Store, workers: Workers) -> None:
        """Nothing is done yet."""
        self._store, self._workers = store, workers
        #: Guarded by the store's lock.
        self._helping = False

    def until(self, needed: list[WindowKey], cancelled: Callable[[], bool]) -> None:
        """Read until the windows are whole, or nothing is left to read. Raises the error of a window."""
        while not cancelled() and (task := self._take(needed)) is not None:
            try:
                self._workers.help(task)
            finally:
                with self._store.changed:
                    self._helping = False

    def _take(self, needed: list[WindowKey]) -> Task | None:
        with self._store.changed:
            if self._helping or self._store.readable(needed):
                return None
            task = self._store.choose(self._workers.reads)
            self._helping = task is not None
            return task
