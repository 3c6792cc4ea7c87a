"""Remote shards: row groups are fetched ahead by threads of their own, so that decode threads never wait for a network.

A store's latency is hidden only if more row groups are on their way than cores decode. Fetch threads take row groups in
the order of need and hold their bytes, within a part of the read-ahead budget; decode threads take the first that is
there. Called by the engine where the manifest lies in a store; local data knows nothing of this.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from itertools import islice

from lanefeed_core.layout import Column
from lanefeed_core.manifest import Manifest
from lanefeed_sidecar.formats.remote import RemoteShards
from lanefeed_sidecar.pipeline.pieces import RowGroupKey
from lanefeed_sidecar.pipeline.stats import Stats
from lanefeed_sidecar.pipeline.store import Store, Task
from lanefeed_sidecar.sources.names import is_remote, join

__all__ = ["AheadStore", "Fetch", "raw_budget", "remote_shards"]

log = logging.getLogger(__name__)

#: Row groups on their way at once.
_THREADS = 16
#: Row groups in the order of need that are looked at.
_LOOK = 256
#: Share of the read-ahead budget that bytes as stored may take, on their way or waiting to be decoded.
_RAW_SHARE = 8
_NICE = 5
_LOOK_AGAIN_SECONDS = 0.1
_FETCHING, _READY, _TAKEN = "fetching", "ready", "taken"


def remote_shards(manifest: Manifest, columns: tuple[Column, ...], stats: Stats) -> RemoteShards | None:
    """The shards of a manifest that lies in stores; None where all are local."""
    if not any(is_remote(join(manifest.root, shard.path)) for shard in manifest.shards[:1]):
        return None
    return RemoteShards(manifest, columns, stats)


def raw_budget(read_ahead_bytes: int) -> int:
    """Bytes of the read-ahead budget that are for bytes as stored."""
    return read_ahead_bytes // _RAW_SHARE


class AheadStore(Store):
    """A store that gives those row groups to decode whose bytes are there."""

    #: Set by `Fetch`; called with the lock held.
    fetched: Callable[[RowGroupKey], bool] = staticmethod(lambda _: True)
    taken: Callable[[RowGroupKey], None] = staticmethod(lambda _: None)

    def upcoming(self, count: int) -> list[RowGroupKey]:
        """Row groups that open windows wait for and nobody decodes yet, in the order of need. The lock is held."""
        return list(islice(dict.fromkeys(self._candidates()), count))

    def decoding(self) -> set[RowGroupKey]:
        """Row groups in the hands of decode threads. The lock is held."""
        return self._busy

    def choose(self, *, helping: bool = False) -> Task | None:
        """As `Store.choose`; of what is not there yet, nothing."""
        waits = False
        for group in self.share.open_to(self._candidates(), helping=helping):
            if group in self._kept or self.fetched(group):
                task = self._take(group, helping)
                # Who only helps may have to give it back, with its bytes.
                if task is not None and not helping:
                    self.taken(group)
                return task
            waits = True
        if waits:
            self._idle_on = "fetch"
        return None

    def needs_fetch(self, group: RowGroupKey) -> bool:
        """Whether bytes are needed: it is not in memory, and not so large that it is read piece by piece."""
        return group not in self._kept and not self.streams(group)


class Fetch:
    """The fetch threads of one sidecar."""

    def __init__(
        self,
        store: AheadStore,
        shards: RemoteShards,
        *,
        budget: int,
        cached: Callable[[RowGroupKey], bool] | None = None,
        threads: int = _THREADS,
    ) -> None:
        """`budget`: bytes on their way and waiting; `cached`: whether the decoded cache has the row group."""
        self._store, self._shards, self._budget, self._cached = store, shards, budget, cached
        self._stopped = threading.Event()
        #: Guarded by the store's lock, with the bytes that they take.
        self._state: dict[RowGroupKey, str] = {}
        self._cost: dict[RowGroupKey, int] = {}
        self._held = 0
        self._threads: list[threading.Thread] = []
        if shards.ahead:
            store.fetched, store.taken = self._is_ready, self._take
            names = [f"fetch-{i}" for i in range(threads)]
            self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for name in names]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Cut what is on its way, and end; waits at most 5 s."""
        self._stopped.set()
        self._shards.close()
        deadline = time.monotonic() + 5
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

    def held(self) -> int:
        """Bytes on their way or waiting to be decoded, about."""
        return self._held

    def _is_ready(self, group: RowGroupKey) -> bool:
        return self._state.get(group) == _READY

    def _take(self, group: RowGroupKey) -> None:
        if group in self._state:
            self._state[group] = _TAKEN

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while not self._stopped.is_set():
            group = self._next()
            if group is None:
                continue
            try:
                if not (self._cached and self._cached(group)):
                    self._shards.fetch(*group)
            except Exception:  # a bug: the decode thread reads it itself and says what is wrong
                log.exception("fetching row group %s of shard %s", group.group, group.shard)
            with self._store.changed:
                if self._state.get(group) == _FETCHING:
                    self._state[group] = _READY
                self._store.changed.notify_all()

    def _next(self) -> RowGroupKey | None:
        """The next row group to fetch, after a short wait where there is none."""
        with self._store.changed:
            group = self._choose()
            if group is None and not self._stopped.is_set():
                self._store.changed.wait(_LOOK_AGAIN_SECONDS)
            return group

    def _choose(self) -> RowGroupKey | None:
        upcoming = self._store.upcoming(_LOOK)
        self._sweep(set(upcoming) | self._store.decoding())
        for group in upcoming:
            if self._state.get(group) == _TAKEN:
                # It was decoded for the windows of that time, and is wanted by others: it is fetched once more.
                self._held -= self._cost.pop(group)
                del self._state[group]
                self._shards.forget(*group)
            if group in self._state:
                continue
            if not self._store.needs_fetch(group):
                self._state[group], self._cost[group] = _READY, 0
                self._store.changed.notify_all()
                continue
            cost = self._shards.cost(*group)
            # One at a time always may: without it nothing would move.
            if self._held and self._held + cost > self._budget:
                return None
            self._state[group], self._cost[group] = _FETCHING, cost
            self._held += cost
            return group
        return None

    def _sweep(self, wanted: set[RowGroupKey]) -> None:
        """Let go of what was decoded, or is not needed any more."""
        for group in [g for g, state in self._state.items() if g not in wanted and state != _FETCHING]:
            # Also of what was taken: its bytes are there still if the decoded cache had it meanwhile.
            del self._state[group]
            self._shards.forget(*group)
            self._held -= self._cost.pop(group)
