"""What the decode threads ask: is this row group decoded already, and shall what was just decoded be kept?

An entry that is needed later than the newcomer goes first; then what other jobs left and nobody reads. A damaged entry
is removed, counted and decoded again: the cache can cost time, never a wrong byte.
"""

import hashlib
import heapq
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from lanefeed_core.layout import Column
from lanefeed_core.manifest import Manifest
from lanefeed_core.podconfig import PodConfig
from lanefeed_sidecar.cache.disk import DiskCache
from lanefeed_sidecar.cache.entry import EntryError, chunk_bytes, read_entry, write_entry
from lanefeed_sidecar.formats.chunk import Chunk

if TYPE_CHECKING:
    from lanefeed_sidecar.pipeline.needs import WindowKey
    from lanefeed_sidecar.pipeline.pieces import RowGroupKey, RowGroups
    from lanefeed_sidecar.pipeline.stats import Stats

__all__ = ["NEVER", "DecodedCache", "Future", "open_cache"]

log = logging.getLogger(__name__)

#: Former needs that are kept beside those of now before they are taken away.
_STALE = 64

#: No use is known: needed later than everything else.
NEVER = 1 << 62

#: Part of every name: other rules of decoding make other entries.
DECODE_VERSION = 1
#: After a failed write (a full disk) none is tried for so long.
PAUSE_SECONDS = 30.0
#: What others left is looked for no more often than this.
SWEEP_SECONDS = 20.0


class Future(Protocol):
    """What is needed when."""

    def next_use(self, group: "RowGroupKey", served: "Sequence[WindowKey]") -> int:
        """Total step of the next use after the windows that were just `served`; NEVER where none is known."""


@dataclass(slots=True)
class _Known:
    """An entry that this process has written or read."""

    name: str
    need: int


class DecodedCache:
    """One sidecar's use of a cache folder. Thread safe."""

    def __init__(
        self,
        disk: DiskCache,
        manifest: Manifest,
        columns: tuple[Column, ...],
        groups: "RowGroups",
        future: Future,
        stats: "Stats",
        clock: Callable[[], float] = time.monotonic,
        made_by: tuple[object, ...] = (),
    ) -> None:
        """`future` says when row groups are needed next; `made_by`: what values depend on besides files and columns."""
        self._disk, self._columns, self._groups, self._future = disk, columns, groups, future
        self._stats, self._clock = stats, clock
        decode = [DECODE_VERSION, manifest.format, [column.to_dict() for column in columns]]
        decode += made_by
        decode += [manifest.packing.identity()] if manifest.packing is not None else []
        self._folders = [
            _digest([decode, s.content or [os.path.join(manifest.root, s.path), s.etag], s.size, s.fingerprint])
            for s in manifest.shards
        ]
        self._lock = threading.Lock()
        self._known: dict[RowGroupKey, _Known] = {}
        #: (-need, row group): the one needed last is on top; needs that changed are passed over.
        self._heap: list[tuple[int, RowGroupKey]] = []
        self._paused_until = self._sweep_at = 0.0

    def _name(self, group: "RowGroupKey") -> str:
        return f"{self._folders[group.shard]}/{group.group}"

    # ---- reading -----------------------------------------------------------------------------------------------

    def get(
        self, group: "RowGroupKey", served: "Sequence[WindowKey]", into: Mapping[int, NDArray[Any]] | None = None
    ) -> Chunk | None:
        """The decoded row group, None where it must be decoded. `served`: the windows that it is read for.

        `into`: memory that the values of some columns are read to; after None it may hold anything.
        """
        name = self._name(group)
        opened = self._disk.open(name)
        if opened is None:
            self._forget(group)
            return None
        fd, size = opened
        try:
            chunk = read_entry(fd, size, self._columns, self._groups.rows(group), self._disk.limit, into)
        except (EntryError, OSError) as error:
            self._stats.add(disk_cache_damaged=1)
            log.warning("entry %s of the cache is damaged (%s): it is removed and decoded again", name, error)
            # One of another user may stay: it is found damaged again, which costs time.
            with suppress(OSError):
                self._disk.remove(name)
            self._forget(group)
            return None
        finally:
            os.close(fd)
        self._stats.add(disk_cache_hits=1, disk_cache_bytes_read=chunk.nbytes)
        self._remember(group, name, self._future.next_use(group, served))
        return chunk

    def _remember(self, group: "RowGroupKey", name: str, need: int) -> None:
        with self._lock:
            self._known[group] = _Known(name, need)
            heapq.heappush(self._heap, (-need, group))
            if len(self._heap) > 2 * len(self._known) + _STALE:
                # Each use leaves the former need behind; only giving entries up would take them away.
                self._heap = [(-known.need, group) for group, known in self._known.items()]
                heapq.heapify(self._heap)

    def _forget(self, group: "RowGroupKey") -> None:
        with self._lock:
            self._known.pop(group, None)

    # ---- writing -----------------------------------------------------------------------------------------------

    def has(self, group: "RowGroupKey") -> bool:
        """Whether `get` will probably find it."""
        return self._disk.has(self._name(group))

    def knows(self, group: "RowGroupKey") -> bool:
        """Whether this process has read or written it, and nobody is known to have removed it. Costs nothing."""
        return group in self._known

    def wants(self, group: "RowGroupKey", served: "Sequence[WindowKey]") -> int | None:
        """When the decoded row group is needed next; None where it is there already, or nothing can be written.

        NEVER is worth writing too, where there is room: other jobs of the node may read it.
        """
        if self._clock() < self._paused_until or self._disk.has(self._name(group)):
            return None
        return self._future.next_use(group, served)

    def put(self, group: "RowGroupKey", chunk: Chunk, need: int) -> bool:
        """Write it, if room can be made by giving up what is needed later; whether it was written."""
        size = chunk_bytes(chunk)
        name = self._name(group)
        try:
            while not self._disk.add(name, size, lambda fd: write_entry(fd, chunk)):
                if size > self._disk.limit or not (self._give_up(need) or self._sweep(size)):
                    return False
        except OSError as error:
            self._paused_until = self._clock() + PAUSE_SECONDS
            self._stats.error("CacheWriteFailed")
            log.warning("the cache in %s takes nothing for %.0f s: %s", self._disk.root, PAUSE_SECONDS, error.strerror)
            return False
        self._stats.add(disk_cache_writes=1)
        self._remember(group, name, need)
        return True

    def _give_up(self, need: int) -> bool:
        """Remove the entry that is needed last, if that is later than `need`."""
        with self._lock:
            while self._heap:
                known_need, group = -self._heap[0][0], self._heap[0][1]
                known = self._known.get(group)
                if known is None or known.need != known_need:
                    heapq.heappop(self._heap)
                    continue
                if known_need <= need:
                    return False
                heapq.heappop(self._heap)
                del self._known[group]
                break
            else:
                return False
        self._disk.remove(known.name)
        self._stats.add(disk_cache_evictions=1)
        return True

    def _sweep(self, size: int) -> bool:
        """Remove what other jobs left and nobody reads, as much as is needed; whether anything went."""
        with self._lock:
            # Looking through a large folder takes a second: not for every row group that finds no room.
            if self._clock() < self._sweep_at:
                return False
            self._sweep_at = self._clock() + SWEEP_SECONDS
            mine = {known.name for known in self._known.values()}
        freed = 0
        for name in self._disk.idle():
            if freed >= size:
                break
            if name not in mine:
                freed += self._disk.remove(name)
                self._stats.add(disk_cache_evictions=1)
        return freed > 0

    @property
    def used(self) -> int:
        """Bytes of the folder."""
        return self._disk.used

    def close(self) -> None:
        """Leave the folder; entries stay for the next one."""
        self._disk.close()


def _digest(value: object) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


def open_cache(
    config: PodConfig,
    manifest: Manifest,
    columns: tuple[Column, ...],
    groups: "RowGroups",
    future: Future,
    stats: "Stats",
    made_by: tuple[object, ...] = (),
) -> DecodedCache | None:
    """The cache that the configuration names; None where it names none. Raises ConfigError."""
    if not config.cache_dir or not config.cache_bytes:
        return None
    disk = DiskCache(Path(config.cache_dir), config.cache_bytes)
    return DecodedCache(disk, manifest, columns, groups, future, stats, made_by=made_by)
