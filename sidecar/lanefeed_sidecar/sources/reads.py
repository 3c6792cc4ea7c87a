"""Reads of one store that succeed where they can: tried again with jitter, hedged where stuck, paced after an outage.

Called by readers and the indexer. The policies are `pace` and `hedge`; here are their clock, threads and counters. A
read ends with its bytes, or with an error that says what the store said and what to do.
"""

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np

from lanefeed_sidecar.errors import ConfigError
from lanefeed_sidecar.sources.hedge import Hedge
from lanefeed_sidecar.sources.objects import KINDS, Attempt, ObjectInfo, ObjectStore, ReadFailed
from lanefeed_sidecar.sources.pace import Pace
from lanefeed_sidecar.sources.pool import DaemonPool

__all__ = ["Counters", "NoCounters", "Reads", "Settings", "from_environment"]

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Failures with which a store shows that it is there.
_ANSWERS = ("throttled", "server", "short", "range", "denied", "missing", "expired", "changed")
#: Failures are logged at most so often.
_SAY_SECONDS = 30.0

#: A server that sends wrong ranges does so for ever; it gets so many tries.
_WRONG_RANGES = 6


class Counters(Protocol):
    """Where reads are counted; `pipeline.Stats` is one."""

    def add(self, **counts: int) -> None:
        """Add to counts."""

    def failure(self, kind: str) -> None:
        """A try failed."""


class NoCounters:
    """Counts nothing."""

    def add(self, **counts: int) -> None:
        """See Counters."""

    def failure(self, kind: str) -> None:
        """See Counters."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Of all reads of a store."""

    #: Requests at once.
    requests: int = 32
    #: Bytes of one request at most; more are several requests at once.
    part: int = 4 << 20
    #: Seconds that a read tries before it is an error: an outage of this length is survived.
    patience: float = 300.0
    #: The same for a store that has never answered: its name is probably wrong.
    first: float = 20.0
    #: Seconds that new credentials may come later than the old ones end.
    grace: float = 20.0
    base: float = 0.1
    most: float = 10.0
    hedge: bool = True


def from_environment() -> Settings:
    """LANEFEED_READ_PATIENCE_SECONDS: how long an outage is borne; _REQUESTS: requests at once; _HEDGE: 0 for none."""
    default = Settings()
    try:
        patience = float(os.environ.get("LANEFEED_READ_PATIENCE_SECONDS") or default.patience)
        requests = int(os.environ.get("LANEFEED_READ_REQUESTS") or default.requests)
    except ValueError as error:
        raise ConfigError(f"LANEFEED_READ_PATIENCE_SECONDS or LANEFEED_READ_REQUESTS is no number: {error}") from None
    hedge = os.environ.get("LANEFEED_READ_HEDGE", "1") != "0"
    return replace(default, patience=patience, requests=max(1, requests), hedge=hedge)


class Reads:
    """Reads of one store. Thread safe."""

    def __init__(
        self,
        store: ObjectStore,
        counters: Counters | None = None,
        settings: Settings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        rng: Callable[[], float] = random.random,
    ) -> None:
        """Owns the store from now on."""
        self.store, self._counters, self.settings = store, counters or NoCounters(), settings or from_environment()
        self._clock, self._rng = clock, rng
        self._changed = threading.Condition()
        self._pace = Pace(self.settings.requests, rng)
        self._hedge = Hedge()
        self._closed = False
        self._answered = False
        self._said_at = -_SAY_SECONDS
        # Tries that are being cut take a thread for a moment longer.
        self._pool = DaemonPool(self.settings.requests + 8, "read")
        self._attempts: set[Attempt] = set()

    def read(self, key: str, start: int, length: int, version: str = "") -> memoryview:
        """Bytes [start, start + length) of an object. `version`: the only one that will do; "": any.

        Raises ReadFailed when no more tries can help.
        """
        return self.read_all(key, [(start, length)], version)[0]

    def read_all(self, key: str, ranges: Sequence[tuple[int, int]], version: str = "") -> list[memoryview]:
        """Several ranges (start, length), all at once."""
        buffers = [_buffer(length) for _, length in ranges]
        size = self.settings.part
        parts = [
            (start + at, buffer[at : at + size])
            for (start, length), buffer in zip(ranges, buffers, strict=True)
            for at in range(0, length, size)
        ]
        if len(parts) < 2:
            for start, view in parts:
                self._part(key, start, view, version)
            return buffers
        threads = [_Thread(self._part, key, start, view, version) for start, view in parts[1:]]
        try:
            self._part(key, *parts[0], version)
        finally:
            errors = [thread.join() for thread in threads]
        for error in errors:
            if error is not None:
                raise error
        return buffers

    def stat(self, key: str) -> ObjectInfo:
        """One object's size and version."""
        return self.persist(lambda: self.store.stat(key))

    def count(self, kind: str) -> None:
        """A read failed in a way that only its reader sees."""
        self._counters.failure(kind)

    # ---- trying again ------------------------------------------------------------------------------------------

    def _part(self, key: str, start: int, view: memoryview, version: str) -> None:
        self.persist(lambda: self._race(key, start, view, version))

    def persist(self, action: Callable[[], T]) -> T:
        """Do it until it succeeds, fails for good, or patience ends."""
        began, tries, wrong = self._clock(), 0, 0
        last: ReadFailed | None = None
        expired: float | None = None
        while True:
            self._enter(began, last)
            start = self._clock()
            try:
                result = action()
            except ReadFailed as failed:
                self._leave(start, failed)
                tries, last = tries + 1, failed
                wrong += failed.kind == "range"
                patience = self._patience(failed, start)
                # New credentials get their time from when the old ones were refused, however long the store was away.
                expired = (start if expired is None else expired) if failed.kind == "expired" else None
                since = began if expired is None else expired
                if not patience or wrong >= _WRONG_RANGES or self._closed:
                    raise
                pause = self._rng() * min(self.settings.most, self.settings.base * 2 ** min(tries, 16))
                if self._clock() + pause - since > patience:
                    waited = f"{failed}; tried {tries} times in {self._clock() - began:.0f} s"
                    raise ReadFailed(failed.kind, waited) from failed
                self._counters.add(remote_retries=1)
                self._say(failed)
                self._sleep(pause)
            except CancelledError:
                self._leave(start, ReadFailed("cancelled", ""))
                raise ReadFailed("cancelled", "reading has ended") from None
            except BaseException:
                self._leave(start, ReadFailed("refused", ""))
                raise
            else:
                self._leave(start, None)
                return result

    def _patience(self, failed: ReadFailed, start: float) -> float:
        """How long to try after such a failure; 0: not again."""
        if failed.kind == "expired" and self.store.refresh(start):
            # What writes the new ones may be a little late.
            self._counters.add(remote_credentials=1)
            return min(self.settings.patience, self.settings.grace)
        if not KINDS[failed.kind]:
            return 0.0
        return self.settings.patience if self._answered else min(self.settings.patience, self.settings.first)

    def _say(self, failed: ReadFailed) -> None:
        """A line now and then while reads fail and are made again."""
        now = self._clock()
        with self._changed:
            if now - self._said_at < _SAY_SECONDS:
                return
            self._said_at = now
        # Its text: a record that is kept must not keep the frames of the read, and with them the client.
        log.warning("%s: %s (%s); reads are tried again", self.store.place, str(failed), failed.kind)

    def _enter(self, began: float, last: ReadFailed | None) -> None:
        """Wait for a place among the requests; no longer than patience."""
        with self._changed:
            while not self._closed:
                seconds = self._pace.wait(self._clock())
                if not seconds:
                    return
                if self._clock() - began > self.settings.patience:
                    raise last or ReadFailed("timeout", f"the store took no request for {self.settings.patience:.0f} s")
                self._changed.wait(min(seconds, 1.0))
        raise ReadFailed("cancelled", "reading has ended")

    def _leave(self, start: float, failed: ReadFailed | None) -> None:
        kind = failed.kind if failed else ""
        if failed and kind != "cancelled":
            self._counters.failure(kind)
        with self._changed:
            self._answered = self._answered or failed is None or kind in _ANSWERS
            self._pace.ended(start, self._clock(), kind, failed.retry_after if failed else 0.0)
            self._changed.notify_all()

    def _sleep(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed, seconds)

    # ---- one try, or two ---------------------------------------------------------------------------------------

    def _race(self, key: str, start: int, view: memoryview, version: str) -> None:
        """One read, and a second where the first is stuck; the first whole one counts."""
        if not self.settings.hedge:
            self._try(key, start, view, version, Attempt())
            return
        first = self._submit(key, start, view, version)
        if not self._is_stuck(first[0], len(view)):
            first[0].result()
            return
        # Into memory of its own: the first may still write.
        spare = _buffer(len(view))
        second = self._submit(key, start, spare, version)
        self._counters.add(remote_hedges=1)
        running = {first[0], second[0]}
        while True:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            won = next((f for f in done if f.exception() is None), None)
            if won is not None or not running:
                break
        second[1].cancel()
        if won is None:
            first[0].result()
        elif won is second[0]:
            if first[1].cancel():
                # It holds the buffer until its cut connection tells it to end, which is at once.
                wait([first[0]])
            view[:] = spare
            self._counters.add(remote_hedges_won=1)

    def _is_stuck(self, read: "Future[None]", size: int) -> bool:
        """Whether to send a second request; waits until that is known, or the read has ended."""
        with self._changed:
            slow, hangs = self._hedge.after(size), self._hedge.urgent(size)
        if wait([read], timeout=slow).done:
            return False
        if self._may_hedge(urgent=False):
            return True
        return not wait([read], timeout=hangs - slow).done and self._may_hedge(urgent=True)

    def _may_hedge(self, *, urgent: bool) -> bool:
        with self._changed:
            return not self._closed and self._hedge.take(urgent=urgent)

    def _submit(self, key: str, start: int, view: memoryview, version: str) -> "tuple[Future[None], Attempt]":
        attempt = Attempt()
        with self._changed:
            if self._closed:
                raise ReadFailed("cancelled", "reading has ended")
            self._attempts.add(attempt)
        return self._pool.submit(self._try, key, start, view, version, attempt), attempt

    def _try(self, key: str, start: int, view: memoryview, version: str, attempt: Attempt) -> None:
        began = self._clock()
        try:
            found = self.store.read(key, start, view, attempt)
        finally:
            with self._changed:
                self._attempts.discard(attempt)
        if version and found and found != version:
            raise ReadFailed("changed", f"its version is {found} and was {version}")
        with self._changed:
            self._hedge.took(len(view), self._clock() - began)
        self._counters.add(remote_requests=1, remote_bytes=len(view))

    def close(self) -> None:
        """Cut all reads; whoever waits for one gets an error."""
        with self._changed:
            self._closed = True
            attempts = list(self._attempts)
            self._changed.notify_all()
        for attempt in attempts:
            attempt.cancel()
        self._pool.close()
        self.store.close()


def _buffer(length: int) -> memoryview:
    """Memory that nobody has set to zero."""
    return np.empty(length, np.uint8).data


class _Thread(threading.Thread):
    """A part's own thread; what it raised is handed over."""

    def __init__(self, action: Callable[..., None], *arguments: object) -> None:
        super().__init__(name="part", daemon=True)
        self._action, self._arguments = action, arguments
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._action(*self._arguments)
        except BaseException as error:
            self._error = error

    def join(self, timeout: float | None = None) -> BaseException | None:  # type: ignore[override]
        super().join(timeout)
        return self._error
