"""Threads that take jobs from the work queue and look at each once: the supervisor's edge of the operator.

Made by `main`, woken by watches, reports and the resync. Whatever a pass raises ends here: it is counted, said once in
a while, and the pass is tried again later; one job's trouble never holds up another's. Decides nothing.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lanefeed_operator.errors import OperatorError
from lanefeed_operator.kube.api import ApiError, Conflict, Unreachable
from lanefeed_operator.runtime.queue import WorkQueue

__all__ = ["JobKey", "QueueState", "Workers"]

log = logging.getLogger(__name__)

#: (namespace, name) of a ShardedTrainingJob.
JobKey = tuple[str, str]

#: Until somebody wakes it: a worker needs no clock of its own.
IDLE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class QueueState:
    """The queue at one moment, for metrics and health."""

    depth: int
    oldest: float
    longest_pass: float
    jobs: int


class Workers:
    """See the module. Thread safe."""

    def __init__(
        self,
        run: Callable[[JobKey], float | None],
        *,
        threads: int,
        passed: Callable[[JobKey, str, float], None],
        clock: Callable[[], float] = time.monotonic,
        seed: int | None = None,
    ) -> None:
        """`run` looks at a job; `passed(key, result, seconds)` is told of each pass, by the thread that made it."""
        self._run, self._passed, self._clock = run, passed, clock
        self._queue: WorkQueue[JobKey] = WorkQueue(random.Random(seed))  # noqa: S311 -- it spreads retries
        self._changed = threading.Condition()
        self._stopping = False
        self._failures: dict[JobKey, int] = {}
        self._threads = [threading.Thread(target=self._work, name=f"pass-{n}", daemon=True) for n in range(threads)]

    def start(self) -> None:
        """Begin with what has been asked for."""
        for thread in self._threads:
            thread.start()

    def wake(self, key: JobKey, delay: float = 0.0) -> None:
        """Look at this job in `delay` seconds at the latest."""
        with self._changed:
            before = self._queue.next_due()
            self._queue.add(key, self._clock() + delay)
            after = self._queue.next_due()
            if after is not None and (before is None or after < before or delay <= 0.0):
                self._changed.notify()

    def wake_all(self, keys: Iterable[JobKey], spread: float) -> None:
        """Look at all of these within `spread` seconds, one after the other."""
        keys = list(keys)
        for number, key in enumerate(keys):
            self.wake(key, spread * number / len(keys))

    def stop(self, seconds: float) -> bool:
        """Begin no pass any more and wait for those at hand; whether all of them ended in time."""
        deadline = time.monotonic() + seconds
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def state(self) -> QueueState:
        """The queue now."""
        with self._changed:
            now = self._clock()
            q = self._queue
            return QueueState(q.depth(now), q.oldest(now), q.longest_pass(now), len(q))

    # ---- a worker ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (key := self._take()) is not None:
            begun = self._clock()
            result, again, retry_after = self._pass(key)
            now = self._clock()
            self._passed(key, result, now - begun)
            with self._changed:
                if result == "ok":
                    self._queue.done(key, now, again)
                    self._failures.pop(key, None)
                else:
                    self._queue.failed(key, now, retry_after)
                # This worker looks for itself; another one may have to look at what this pass left.
                self._changed.notify()

    def _take(self) -> JobKey | None:
        """The next key, as soon as one is due; None: it is time to end."""
        with self._changed:
            while not self._stopping:
                now = self._clock()
                key = self._queue.take(now)
                if key is not None:
                    # This one was to wake up for the next key too: now another one has to.
                    self._changed.notify()
                    return key
                due = self._queue.next_due()
                self._changed.wait(IDLE_SECONDS if due is None else min(IDLE_SECONDS, due - now))
            return None

    def _pass(self, key: JobKey) -> tuple[str, float | None, float | None]:
        """(result, look again after, the server's wish to wait)."""
        try:
            return "ok", self._run(key), None
        except Conflict as error:
            # Ordinary: somebody else wrote, and the watch is about to say what.
            log.debug("job %s/%s: decided on an old copy, again with the new one: %s", *key, error, extra=_who(key))
            return "conflict", None, error.retry_after
        except Unreachable as error:
            self._say(key, logging.WARNING, f"the API server does not answer: {error}")
            return "unreachable", None, error.retry_after
        except ApiError as error:
            self._say(key, logging.ERROR, f"the API server refuses ({error.code}): {error}")
            return "refused", None, error.retry_after
        except OperatorError as error:
            self._say(key, logging.ERROR, str(error))
            return "error", None, None
        except Exception:
            # A fault of ours in one job's pass must not take the others down; it is counted, and alerted on.
            self._say(key, logging.ERROR, "the pass broke, a fault of the operator's", trace=True)
            return "crash", None, None

    def _say(self, key: JobKey, level: int, text: str, *, trace: bool = False) -> None:
        """The first failure, then the 2nd, 4th, 8th, ... in a row: a night without API server fits a screen."""
        with self._changed:
            number = self._failures[key] = self._failures.get(key, 0) + 1
        if number & (number - 1) == 0:
            line = "job %s/%s: pass failed (%d in a row), trying on: %s"
            log.log(level, line, *key, number, text, extra=_who(key), exc_info=trace)


def _who(key: JobKey) -> dict[str, str]:
    return {"job": f"{key[0]}/{key[1]}"}
