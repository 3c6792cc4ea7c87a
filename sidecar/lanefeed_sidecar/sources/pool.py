"""Threads for reads that may hang: daemons, so that a library that cannot be interrupted never keeps a process alive.

`concurrent.futures` joins its threads when the interpreter ends. Called by `reads` alone.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

__all__ = ["DaemonPool"]

_Work = tuple["Future[None]", Callable[..., None], tuple[object, ...]]


class DaemonPool:
    """At most `most` threads, started as they are needed."""

    def __init__(self, most: int, name: str) -> None:
        """No thread yet."""
        self._most, self._name = most, name
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._idle = 0
        self._closed = False

    def submit(self, action: Callable[..., None], *arguments: object) -> "Future[None]":
        """Run it in a thread. After `close` the future is cancelled."""
        future: Future[None] = Future()
        with self._lock:
            if self._closed:
                future.cancel()
                return future
            if self._idle:
                self._idle -= 1
            elif self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._run, name=f"{self._name}-{self._threads}", daemon=True).start()
            self._work.put((future, action, arguments))
        return future

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            future, action, arguments = work
            if future.set_running_or_notify_cancel():
                try:
                    action(*arguments)
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(None)
            # What the work held is not kept until the next.
            del work, future, action, arguments
            with self._lock:
                # Work that waits is taken at once: this thread is promised to nobody else.
                if self._work.empty():
                    self._idle += 1

    def close(self) -> None:
        """Start nothing more; threads end after what they do."""
        with self._lock:
            self._closed = True
            threads = self._threads
        while True:
            try:
                waiting = self._work.get_nowait()
            except queue.Empty:
                break
            if waiting is not None:
                waiting[0].cancel()
                waiting[0].set_running_or_notify_cancel()
        for _ in range(threads):
            self._work.put(None)
