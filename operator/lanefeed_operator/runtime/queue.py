"""The work queue: which job is looked at next, and when. Pure: time and randomness are arguments.

Called by `workers`, which owns the lock and the threads. A key is in here at most once, however often it is asked for
(many events make one pass), one worker has it at a time, and what comes in meanwhile makes one more pass afterwards.
A pass that failed waits: twice as long each time, with jitter, at least as long as the server asked for; nothing that
happens meanwhile shortens that wait, or a pass that fails because of its own writes would spin.
A key that nobody asks for any more leaves nothing behind.
"""

import heapq
import random
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["FIRST_BACKOFF", "MAX_BACKOFF", "WorkQueue"]

FIRST_BACKOFF = 0.25
#: A minute that the API server was away costs no more than this after it is back.
MAX_BACKOFF = 20.0
#: A pass may ask for another one at once, this often in a row; from then on it waits CALM_SECONDS.
MAX_HURRY = 50
CALM_SECONDS = 1.0
#: Sooner than this is "at once".
HURRY_SECONDS = 0.05
#: Entries of the heap for each key, and besides, above which those that are not true any more are swept out.
MAX_ENTRIES, SPARE_ENTRIES = 4, 64

K = TypeVar("K")


@dataclass(slots=True)
class _Item:
    """What is known of one key."""

    #: When it is to be looked at; None: it is being looked at and nobody has asked for more.
    due: float | None
    #: Not before, whoever asks: set by failures.
    floor: float = float("-inf")
    failures: int = 0
    hurries: int = 0
    running: float | None = None

    @property
    def at(self) -> float | None:
        return None if self.due is None else max(self.due, self.floor)


class WorkQueue(Generic[K]):
    """See the module. Not thread safe."""

    def __init__(self, rng: random.Random) -> None:
        """`rng` spreads the retries of keys that failed together."""
        self._rng = rng
        self._items: dict[K, _Item] = {}
        #: (time, number, key): entries that no longer fit their item are passed over.
        self._heap: list[tuple[float, int, K]] = []
        self._pushed = 0

    def add(self, key: K, at: float) -> None:
        """Look at `key` at `at`, or sooner if it is due sooner; never before its wait after a failure is over."""
        item = self._items.get(key)
        if item is None:
            item = self._items[key] = _Item(at)
        elif item.due is not None and item.due <= at:
            return
        item.due = at
        self._push(key, item)

    def take(self, now: float) -> K | None:
        """The key that has been due the longest; its holder must call `done` or `failed`. None: nothing is due."""
        head = self._head()
        if head is None or head[0] > now:
            return None
        _, _, key = heapq.heappop(self._heap)
        item = self._items[key]
        item.due, item.running = None, now
        return key

    def done(self, key: K, now: float, again_in: float | None = None) -> None:
        """The pass is over; look again after `again_in` seconds, or when asked (None)."""
        item = self._end(key)
        item.failures, item.floor = 0, float("-inf")
        if again_in is None:
            item.hurries = 0
            if item.due is None:
                del self._items[key]
                return
        else:
            item.hurries = item.hurries + 1 if again_in < HURRY_SECONDS else 0
            again_in = max(again_in, CALM_SECONDS) if item.hurries > MAX_HURRY else max(again_in, 0.0)
            item.due = now + again_in if item.due is None else min(item.due, now + again_in)
        self._push(key, item)

    def failed(self, key: K, now: float, retry_after: float | None = None) -> float:
        """The pass failed: it is tried again after the returned seconds."""
        item = self._end(key)
        item.failures += 1
        longest = min(MAX_BACKOFF, FIRST_BACKOFF * 2.0 ** min(item.failures - 1, 30))
        delay = max(longest * self._rng.uniform(0.5, 1.0), retry_after or 0.0)
        item.due = item.floor = now + delay
        self._push(key, item)
        return delay

    def next_due(self) -> float | None:
        """When the next key is due (it may be past); None: nothing waits."""
        head = self._head()
        return None if head is None else head[0]

    # ---- what metrics and health ask ----------------------------------------------------------------------------

    def depth(self, now: float) -> int:
        """Keys that are due and wait for a worker."""
        return sum(1 for item in self._items.values() if self._waits(item, now))

    def oldest(self, now: float) -> float:
        """Seconds that the head of the queue has been due; 0: nothing is."""
        head = self._head()
        return 0.0 if head is None else max(0.0, now - head[0])

    def longest_pass(self, now: float) -> float:
        """Seconds that the longest pass at hand has taken so far."""
        return max((now - item.running for item in self._items.values() if item.running is not None), default=0.0)

    def running(self) -> int:
        """Passes at hand."""
        return sum(1 for item in self._items.values() if item.running is not None)

    def __len__(self) -> int:
        return len(self._items)

    # ---- inside --------------------------------------------------------------------------------------------------

    @staticmethod
    def _waits(item: _Item, now: float) -> bool:
        at = item.at
        return item.running is None and at is not None and at <= now

    def _end(self, key: K) -> _Item:
        item = self._items.get(key)
        if item is None or item.running is None:
            raise RuntimeError(f"{key!r} is not being looked at: done() and failed() follow take(), once")
        item.running = None
        return item

    def _push(self, key: K, item: _Item) -> None:
        """While it runs a key is in no heap: nobody else may take it."""
        at = item.at
        if item.running is None and at is not None:
            self._pushed += 1
            heapq.heappush(self._heap, (at, self._pushed, key))
            if len(self._heap) > SPARE_ENTRIES + MAX_ENTRIES * len(self._items):
                self._sweep()

    def _sweep(self) -> None:
        """A job that waits for days is looked at every few minutes: each look leaves an entry for the same day."""
        kept = {key: (at, number, key) for at, number, key in self._heap if self._true(at, key)}
        self._heap = sorted(kept.values())

    def _true(self, at: float, key: K) -> bool:
        item = self._items.get(key)
        return item is not None and item.running is None and item.at == at

    def _head(self) -> tuple[float, int, K] | None:
        """The first entry that is still true."""
        while self._heap:
            at, _, key = self._heap[0]
            if self._true(at, key):
                return self._heap[0]
            heapq.heappop(self._heap)
        return None
