"""Decode threads: take the row group that is needed next, read it, scatter it into its windows.

A thread keeps a few readers open, since opening a shard costs a footer; a reader belongs to its thread. Errors of
reading are retried a few times with jittered pauses, then belong to the windows that need the row group.
"""

import contextlib
import logging
import math
import os
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Sequence

from lanefeed_core.lanes import Lanes
from lanefeed_core.layout import Column
from lanefeed_core.manifest import Manifest
from lanefeed_sidecar.cache import Allowance, DecodedCache
from lanefeed_sidecar.errors import DataError, SidecarError
from lanefeed_sidecar.formats import Chunk, OpenShard, ShardReader
from lanefeed_sidecar.formats.flow import BUFFER_BYTES, PIECE_BYTES
from lanefeed_sidecar.pipeline.flows import Flow, Flows, ranges
from lanefeed_sidecar.pipeline.needs import WindowKey
from lanefeed_sidecar.pipeline.pieces import RowGroupKey, RowGroups
from lanefeed_sidecar.pipeline.share import Share
from lanefeed_sidecar.pipeline.stats import Stats
from lanefeed_sidecar.pipeline.store import Store, Task

__all__ = ["Workers"]

log = logging.getLogger(__name__)

#: Readers that one thread keeps open.
_OPEN_READERS = 32
#: Decoding gives way to the trainer and to whatever is between it and a ready frame: read-ahead comes in bursts, which
#: would hold up the training step where cores are few. A trainer that waits leaves the cores to us anyway.
_NICE = 10
#: Without work for so long a thread is idle, and writes to the cache what memory holds.
_IDLE_SECONDS = 0.05
_TRIES = 3
#: A page may always decompress to so much; more only where the budget is large.
_LEAST_PAGE_BYTES = 32 << 20
_PAUSE_SECONDS = 0.1


#: A thread's open shards, each with the turn of its fate at which it was opened.
Readers = OrderedDict[int, tuple[ShardReader, int]]


class Workers:
    """The decode threads of one sidecar."""

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        lanes: Lanes,
        groups: RowGroups,
        columns: tuple[Column, ...],
        *,
        threads: int,
        budget: int,
        open_shard: OpenShard,
        stats: Stats,
        cache: DecodedCache | None = None,
        sleep: Callable[[float], None] = time.sleep,
        rng: Callable[[], float] = random.random,
    ) -> None:
        """Nothing runs before `start`."""
        self._store, self._manifest, self._lanes, self._groups = store, manifest, lanes, groups
        self._columns, self._budget, self._open_shard, self._stats = columns, budget, open_shard, stats
        self._cache = cache
        self._ragged = any(column.ragged for column in columns)
        self._flows = Flows(budget // 8, store.hold)
        #: Row groups that were decoded in the epoch that is being read, to count those that are decoded again.
        self._seen: set[RowGroupKey] = set()
        self._seen_epoch = 0
        #: Row groups that could not be read yet. Their shards may be restored by files of their names at any time.
        self._failed: set[RowGroupKey] = set()
        #: Shard -> counts such turns of its fate: what was opened before the last one may be another file.
        self._turns: dict[int, int] = {}
        self._sleep, self._rng = sleep, rng
        self._stopped = threading.Event()
        if cache is not None:
            store.share = Share(self._reads, max(1, threads - 1))
        self._threads = [threading.Thread(target=self._run, name=f"decode-{i}", daemon=True) for i in range(threads)]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Have them stop after their current row group."""
        self._stopped.set()
        self._store.close()

    def close(self) -> None:
        """Stop them; waits at most 5 s."""
        self.stop()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(5)

    def _reads(self, group: RowGroupKey) -> bool:
        """Whether the row group need not be decoded, as far as is known."""
        return self._cache is not None and self._cache.knows(group) and not self._store.streams(group)

    def help(self, task: Task) -> bool:
        """Fill the task's windows out of the cache, in the caller's thread; False: it was given back, not found."""
        self._do(task, None)
        return not task.given_back

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        readers: Readers = OrderedDict()
        allowance = Allowance()
        try:
            while not self._stopped.is_set():
                began = time.monotonic()
                task = self._store.next_task(cancelled=self._stopped.is_set, patience=self._patience())
                taken = time.monotonic()
                allowance.idled(taken - began)
                if task is None:
                    self._write_kept(allowance)
                    continue
                chunk = self._do(task, readers)
                allowance.worked(time.monotonic() - taken)
                if chunk is not None and allowance.open:
                    self._write(task.group, _keys(task), chunk, allowance)
                # While this thread waits it holds no memory that nobody counts.
                del task, chunk
        finally:
            for reader, _ in readers.values():
                reader.close()
            if self._stopped.is_set():
                self._flows.close()

    def _patience(self) -> float:
        """How long to wait for work before looking for something to write."""
        return _IDLE_SECONDS if self._cache is not None else math.inf

    def _write_kept(self, allowance: Allowance) -> None:
        """Nothing to decode: write a row group that is kept in memory, so that the next run finds it."""
        for group, chunk in self._store.kept().items():
            if allowance.open and self._write(group, [], chunk, allowance):
                return

    def _write(self, group: RowGroupKey, served: Sequence[WindowKey], chunk: Chunk, allowance: Allowance) -> bool:
        """Keep what was decoded for its next use; whether that took time."""
        began = time.monotonic()
        need = self._cache.wants(group, served) if self._cache and not chunk.lazy else None
        if self._cache is None or need is None:
            return False
        self._cache.put(group, chunk, need)
        taken = time.monotonic() - began
        allowance.spent(taken)
        self._stats.spend(cache_write=taken)
        return True

    def _do(self, task: Task, readers: Readers | None) -> Chunk | None:
        """Fill the task's windows; the chunk if it was decoded just now and whole. Without readers nothing is."""
        for attempt in range(1, _TRIES + 1):
            try:
                filled = self._fill(task, readers)
                if filled is None:
                    task.given_back = True
                    self._store.give_back(task)
                    return None
                chunk, decoded = filled
                self._trust(task.group)
                self._store.done(task, chunk)
                return chunk if decoded else None
            except SidecarError as error:
                self._distrust(task.group, readers)
                if attempt == _TRIES or not isinstance(error.__cause__, OSError):
                    self._fail(task, error)
                    return None
                self._stats.add(retries=1)
                self._sleep(_PAUSE_SECONDS * 2**attempt * (0.5 + self._rng()))
            except Exception as error:  # a bug, or a file that breaks the decoder: it must not end the thread silently
                log.exception("row group %s of %s", task.group.group, self._manifest.shards[task.group.shard].path)
                path = self._manifest.shards[task.group.shard].path
                self._fail(task, DataError(f"shard {path}, row group {task.group.group} cannot be decoded: {error!r}"))
                return None
        return None

    def _fail(self, task: Task, error: SidecarError) -> None:
        if self._stopped.is_set():
            # Reads of a store are cut: nobody waits for them any more.
            return
        self._stats.error(error.kind)
        log.error("%s", error)
        self._store.failed(task, error)

    def _fill(self, task: Task, readers: Readers | None) -> tuple[Chunk | None, bool] | None:
        """Get and scatter the row group: (the chunk, if it came whole; whether it was decoded). None: it would have to
        be, and there are no readers for that.
        """
        if task.chunk is not None:
            self._stats.add(cache_hits=1)
            self._scatter(task, task.chunk, 0)
            return None, False
        if self._cache is not None and not self._store.streams(task.group):
            began = time.perf_counter()
            # For one window alone it is read to its place; nothing is left then that could be kept.
            alone = task.windows[0] if len(task.windows) == 1 else None
            into = alone.into(task.group, self._groups.rows(task.group)) if alone is not None else {}
            kept = self._cache.get(task.group, _keys(task), into)
            if kept is not None:
                self._stats.spend(cache_read=time.perf_counter() - began)
                self._scatter(task, kept, 0, there=into)
                return None if into else kept, False
        if readers is None:
            return None
        reader = self._reader(task.group.shard, readers)
        self._weigh(task.group, reader)
        size = self._groups.nbytes(task.group)
        if self._store.streams(task.group):
            self._stream(task, reader, size)
            return None, True
        clocks = _clocks()
        chunk = reader.read(task.group.group)
        if chunk.lazy and self._cache is not None and self._cache.wants(task.group, _keys(task)) is not None:
            # The cache keeps what is delivered: all of it is made now, and nothing of it twice.
            chunk = chunk.whole()
        self._decoded(clocks)
        self._count(task, chunk.rows, size)
        self._expect(task.group, chunk.rows)
        self._scatter(task, chunk, 0)
        return chunk, True

    def _weigh(self, group: RowGroupKey, reader: ShardReader) -> None:
        """Before anything of it is decoded; once."""
        if not self._groups.weighed(group):
            weight = reader.weigh(group.group, max(_LEAST_PAGE_BYTES, self._budget // 4))
            if weight.nbytes or weight.pages:
                self._groups.weigh(group, weight.nbytes, weight.pages)

    def _stream(self, task: Task, reader: ShardReader, size: int) -> None:
        """A huge row group comes in pieces; readings are left where the windows end (`flows`)."""
        group = task.group
        rows, piece = self._groups.rows(group), max(1, min(PIECE_BYTES, self._budget // 64))
        batch = max(1, min(rows, int(rows * piece / max(1, size))))
        held = piece + self._groups.pages(group) + BUFFER_BYTES * len(self._columns)
        pieces = [window.pieces[group] for window in task.windows]
        for low, high in ranges(pieces, batch, self._flows.room(held)):
            flow = self._flows.take(group, low)
            if flow is None:
                flow = Flow(reader.stream(group.group, batch), held)
                self._count(task, 0, 0)
            try:
                self._follow(task, flow, low, high)
            except BaseException:
                flow.close()
                raise
            if flow.at < rows:
                self._flows.leave(group, flow)
            else:
                flow.close()
        self._flows.keep(self._store.wanted)

    def _follow(self, task: Task, flow: Flow, low: int, high: int) -> None:
        """Scatter rows [low, high) of the row group."""
        before, began = flow.read, _clocks()
        for first, chunk in flow.until(low, high):
            self._decoded(began)
            self._scatter(task, chunk, first)
            began = _clocks()
        self._decoded(began)
        rows = self._groups.rows(task.group)
        share = (flow.read - before) / max(1, rows)
        self._stats.add(rows=flow.read - before, bytes_decoded=int(self._groups.nbytes(task.group) * share))
        if flow.read < high:
            self._expect(task.group, flow.read)

    def _decoded(self, began: tuple[float, float]) -> None:
        """What is wall time and no CPU time of this thread was waiting: for storage, or for a core."""
        wall, cpu = _clocks()
        self._stats.spend(decode=wall - began[0], decode_cpu=cpu - began[1])

    def _count(self, task: Task, rows: int, size: int) -> None:
        group, epoch = task.group, max((window.key.epoch for window in task.windows), default=self._seen_epoch)
        if epoch != self._seen_epoch:
            self._seen_epoch, self._seen = epoch, set()
        again = group in self._seen
        self._seen.add(group)
        shard = self._manifest.shards[group.shard]
        share = self._groups.rows(group) / max(1, shard.rows)
        self._stats.add(
            row_groups=1, rows=rows, bytes_read=int(shard.size * share), bytes_decoded=size, decoded_again=int(again)
        )

    def _expect(self, group: RowGroupKey, rows: int) -> None:
        wanted = self._groups.rows(group)
        if rows != wanted:
            path = self._manifest.shards[group.shard].path
            raise DataError(f"shard {path}, row group {group.group} holds {rows} rows and the manifest says {wanted}")

    def _scatter(self, task: Task, chunk: Chunk, first_row: int, there: Container[int] = ()) -> None:
        """Rows that are made only now (images) are what takes the time: those of the nearest window alone.

        The others go on waiting for the row group, which costs next to nothing to come back to.
        """
        if chunk.lazy and first_row == 0 and chunk.rows == self._groups.rows(task.group):
            del task.windows[1:]
        began = _clocks()
        first_id = self._lanes.shard_start(task.group.shard) + self._groups.start(task.group)
        for window in task.windows:
            window.scatter(task.group, chunk, first_row, first_id, there=there)
        if self._ragged:
            self._store.check(task.group)
        if chunk.lazy:
            self._decoded(began)
        else:
            self._stats.spend(scatter=time.perf_counter() - began[0])

    def _distrust(self, group: RowGroupKey, readers: Readers | None) -> None:
        """Reading it failed: until it works its shard is opened anew for each row group, by whichever thread."""
        self._failed.add(group)
        self._turns[group.shard] = self._turns.get(group.shard, 0) + 1
        broken = readers.pop(group.shard, None) if readers else None
        if broken:
            broken[0].close()
        self._flows.keep(lambda other: other.shard != group.shard)

    def _trust(self, group: RowGroupKey) -> None:
        if group in self._failed:
            self._failed.discard(group)
            self._turns[group.shard] += 1

    def _reader(self, shard: int, readers: Readers) -> ShardReader:
        reader, turns = readers.pop(shard, (None, 0))
        now = self._turns.get(shard, 0)
        if reader is not None and (turns != now or (now and any(g.shard == shard for g in tuple(self._failed)))):
            reader.close()
            reader = None
        if reader is None:
            while len(readers) >= _OPEN_READERS:
                readers.popitem(last=False)[1][0].close()
            began = time.perf_counter()
            reader = self._open_shard(self._manifest, shard, self._columns)
            self._stats.spend(read=time.perf_counter() - began)
        readers[shard] = reader, now
        return reader


def _keys(task: Task) -> list[WindowKey]:
    return [window.key for window in task.windows]


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.thread_time()
