"""Which windows are open, what is decoded next, and what memory that takes. One lock guards it all.

Called by decode threads (`next_task`, `done`), by the engine (`acquire`, `release`, `advance`) and by seeks. Work is
chosen in the order of need: the window whose first reading step is nearest to its rank. The budget bounds windows
ahead, kept row groups, those being decoded and buffers that wait for reuse; the windows that ranks need right now are
opened whatever it says, at the cost of windows that are needed later, or nothing would move.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

from lanefeed_core.lanes import Lanes
from lanefeed_core.layout import Column
from lanefeed_sidecar.errors import SidecarError
from lanefeed_sidecar.formats.chunk import Chunk
from lanefeed_sidecar.pipeline.fronts import Fronts, too_large
from lanefeed_sidecar.pipeline.needs import PAD_WINDOW, WindowKey, WindowNeed, nearest
from lanefeed_sidecar.pipeline.pieces import RowGroupKey, RowGroups, window_order, window_pieces, window_rows
from lanefeed_sidecar.pipeline.share import Share
from lanefeed_sidecar.pipeline.stats import Stats
from lanefeed_sidecar.pipeline.tasks import Task
from lanefeed_sidecar.pipeline.window import BufferPool, Window

__all__ = ["Store", "Task"]

#: Row groups that decode to more than this share of the budget are streamed in pieces.
_STREAM_SHARE = 4
#: Windows of rows whose sizes nobody knew may take so much more than the budget.
_OVER_BYTES = 32 << 20
#: How often waiters look whether they were cancelled; they are woken for everything else.
_LOOK_AGAIN_SECONDS = 0.1


class Store:
    """Windows and kept row groups of one sidecar."""

    def __init__(
        self,
        lanes: Lanes,
        groups: RowGroups,
        columns: tuple[Column, ...],
        rank_lanes: dict[int, list[int]],
        *,
        stop: int,
        budget: int,
        row_bytes: float,
        reserve: int,
        stats: Stats,
    ) -> None:
        """`rank_lanes`: the lanes of each local rank; `stop`: total step at which the stream ends, 0 for never.

        `reserve`: bytes of the budget that windows leave to row groups being decoded.
        """
        lock = threading.RLock()
        #: Waited on by decode threads, by fill threads, and by decode threads that leave to others what there is.
        self.changed, self.ready, self.spare = (threading.Condition(lock) for _ in range(3))
        self.pool, self.share = BufferPool(budget // 2), Share()
        self._lanes, self._groups, self._columns = lanes, groups, columns
        self._rank_lanes, self._stop, self._budget, self._row_bytes = rank_lanes, stop, budget, row_bytes
        self._reserve, self._stats = reserve, stats
        self._arrange = partial(window_order, lanes, groups)
        #: Rows of a window's buffers: all windows share one size, so that any can take over another's.
        self._capacity = min(lanes.spec.window, max(lanes.lane_rows(lane) for lane in range(lanes.spec.lanes)))
        self._positions: dict[int, int] = {}
        self._windows: dict[WindowKey, Window] = {}
        #: Row group -> open windows that still wait for it.
        self._waiting: dict[RowGroupKey, list[Window]] = {}
        #: (steps until it is needed, need), nearest first.
        self._order: list[tuple[int, WindowNeed]] = []
        # Row groups are kept for a whole epoch where all are not much, or lanes have epochs of their own.
        self._fronts = Fronts(lanes, keeps_epochs=not lanes.spec.aligned or groups.within(budget // 2))
        self._recompute_at: dict[int, int] = {}
        self._busy: set[RowGroupKey] = set()
        self._kept: dict[RowGroupKey, Chunk] = {}
        self._in_flight = self._flows = 0
        #: Why there is nothing to decode: "budget", where a window ahead found no room, else "work".
        self._idle_on = "work"
        self._closed = False

    # ---- positions ---------------------------------------------------------------------------------------------

    def seek(self, rank: int, step: int) -> None:
        """The rank goes on at total step `step`; what nobody needs any more is dropped."""
        with self.changed:
            self._positions[rank] = step
            # Another try may succeed: the file may have been restored.
            for key in [k for k, w in self._windows.items() if w.error]:
                self._drop(key)
            self._plan()
            self._wake()

    def _wake(self) -> None:
        for condition in (self.changed, self.ready, self.spare):
            condition.notify_all()

    def position(self, rank: int) -> int | None:
        """Where the rank is; None if nothing is read for it."""
        return self._positions.get(rank)

    def advance(self, rank: int, since: int, step: int) -> None:
        """The rank was served from `since` up to `step`; a seek in between wins. Cheap unless a window was passed."""
        with self.changed:
            if self._positions.get(rank) != since:
                return
            self._positions[rank] = step
            if step >= self._recompute_at.get(rank, 0):
                self._plan()
                self._wake()

    def forget(self, rank: int) -> None:
        """The rank is gone: nothing is read ahead for it."""
        with self.changed:
            self._positions.pop(rank, None)
            self._plan()
            self._wake()

    def _plan(self) -> None:
        """Recompute what is needed, drop what is not, open what fits."""
        if self._closed:
            return
        self._order, self._recompute_at = nearest(self._lanes, self._rank_lanes, self._positions, self._stop)
        for key in self._windows.keys() - {need.key for _, need in self._order}:
            self._drop(key)
        self._open()
        self._fronts.find(self._windows)
        for group in [g for g in self._kept if not self._wanted(g)]:
            del self._kept[group]
        self.pool.trim(self._budget - self.used() + self.pool.nbytes)

    def _open(self) -> None:
        """Open windows, nearest first, as far as the budget goes; those needed now push out those needed later."""
        limit = self._budget - self._reserve
        self._idle_on = "work"
        for distance, need in self._order:
            if need.key in self._windows:
                continue
            rows = window_rows(self._lanes, need.key)
            cost = int(max(rows, self._capacity_of(need.key)) * self._row_bytes)
            if self.used() + cost > limit and not self._make_room(cost, limit, distance) and distance > 0:
                self._idle_on = "budget"
                break
            pieces = window_pieces(self._lanes, self._groups, need.key)
            window = self._windows[need.key] = Window.open(need.key, pieces, self._arrange, rows=rows, nbytes=cost)
            for group in pieces:
                self._waiting.setdefault(group, []).append(window)

    def _make_room(self, cost: int, limit: int, distance: int) -> bool:
        """For an urgent window: drop kept row groups, then windows needed later than `distance`, until `cost` fits."""
        if distance > 0:
            return False
        self._kept.clear()
        for later, need in reversed(self._order):
            if self.used() + cost <= limit:
                return True
            window = self._windows.get(need.key)
            if later > distance and window is not None and not window.readers:
                self._drop(need.key)
        return self.used() + cost <= limit

    def _capacity_of(self, key: WindowKey) -> int:
        """Rows of the window's buffers, at least; padding is small and has its own."""
        return 0 if key.window == PAD_WINDOW else self._capacity

    def _drop(self, key: WindowKey) -> None:
        window = self._windows.pop(key)
        for group in window.waiting:
            self._served(group, window)
        # One that somebody still reads or writes gives its buffers back later (`release`, `done`).
        if window.whole and not window.readers:
            window.close(self.pool)

    def _served(self, group: RowGroupKey, window: Window) -> None:
        """The window does not wait for the row group any more."""
        # By identity: windows that are equal in all they hold are still two.
        left = [w for w in self._waiting.pop(group, ()) if w is not window]
        if left:
            self._waiting[group] = left

    def _wanted(self, group: RowGroupKey) -> bool:
        """Whether an open window waits for the row group, or a lane comes to rows of it after its open windows."""
        return group in self._waiting or self._fronts.reach(group, self._groups)

    # ---- work --------------------------------------------------------------------------------------------------

    def next_task(self, *, cancelled: Callable[[], bool], patience: float = math.inf) -> Task | None:
        """The row group to decode next; waits for one. None when cancelled, or after `patience` seconds without."""
        began = time.monotonic()
        task = None
        with self.changed:
            while not (self._closed or cancelled()) and time.monotonic() - began < patience:
                if task := self.choose():
                    break
                (self.spare if self.share.left else self.changed).wait(min(_LOOK_AGAIN_SECONDS, patience))
            self._stats.wait("decode", self._idle_on, time.monotonic() - began)
        return task

    def kept(self) -> dict[RowGroupKey, Chunk]:
        """Decoded row groups that are kept in memory for later windows."""
        with self.changed:
            return dict(self._kept)

    def _candidates(self) -> Iterator[RowGroupKey]:
        """Row groups that open windows wait for and nobody decodes yet, in the order of need; some come twice."""
        for _, need in self._order:
            window = self._windows.get(need.key)
            if window is not None and not (window.whole or window.error):
                yield from (g for g in window.pieces if g in window.waiting and g not in self._busy)

    def choose(self, *, helping: bool = False) -> Task | None:
        """The row group that is needed first, of those that one may take (`share`). The lock is held."""
        group = next(self.share.open_to(self._candidates(), helping=helping), None)
        return None if group is None else self._take(group, helping)

    def _take(self, group: RowGroupKey, helping: bool) -> Task | None:
        task = self._make_task(group)
        if task is None:
            self.share.left = False
        elif not helping and not self.share.begin(group):
            self.spare.notify_all()  # one fewer reads
        return task

    def _make_task(self, group: RowGroupKey) -> Task | None:
        chunk, size = self._kept.get(group), 0
        if chunk is None:
            size = self._task_bytes(group)
            over = self._in_flight + size > self._reserve and self.used() + size > self._budget
            # One row group at a time always may: without it nothing would move.
            if over and self._in_flight:
                return None
            self._in_flight += size
        self._busy.add(group)
        windows = list(self._waiting.get(group, ()))
        for window in windows:
            window.allocate(self._columns, self.pool, self._capacity_of(window.key))
        return Task(group, windows, chunk, size)

    def done(self, task: Task, chunk: Chunk | None) -> None:
        """The task's windows hold its rows now; `chunk` is kept where later windows need it and memory allows."""
        finished = []
        with self.changed:
            for window in task.windows:
                window.waiting.discard(task.group)
                self._served(task.group, window)
                if not window.waiting and not window.whole:
                    finished.append(window)
        for window in finished:
            window.finish()
        with self.changed:
            for window in finished:
                window.whole = True
                if self._windows.get(window.key) is not window:
                    window.close(self.pool)
            self._stats.add(windows=len(finished))
            self._ended(task)
            if not self._wanted(task.group):
                self._kept.pop(task.group, None)
            elif chunk is not None and self.used() + chunk.nbytes <= self._budget - self._reserve:
                self._kept[task.group] = chunk
            self.changed.notify_all()
            if finished:
                self.ready.notify_all()

    def failed(self, task: Task, error: SidecarError) -> None:
        """The row group cannot be had: whoever needs one of its windows gets the error."""
        # Its frames hold the windows, and these hold it: what is dropped would stay until the collector comes by.
        error.with_traceback(None)
        with self.changed:
            for window in task.windows:
                window.error = error
            self._ended(task)
            self._wake()

    def _ended(self, task: Task) -> None:
        self._busy.discard(task.group)
        self.share.end(task.group)
        self._in_flight -= task.size

    def give_back(self, task: Task) -> None:
        """It is not to be had where it was looked for: others may take it."""
        with self.changed:
            self._ended(task)
            self._wake()

    def streams(self, group: RowGroupKey) -> bool:
        """Whether the row group is so large that it is decoded in pieces and never kept."""
        return self._groups.nbytes(group) > self._budget // _STREAM_SHARE

    def _task_bytes(self, group: RowGroupKey) -> int:
        # In pieces it takes little more than they do (`flows`).
        return self._budget // (2 * _STREAM_SHARE) if self.streams(group) else self._groups.nbytes(group)

    def wanted(self, group: RowGroupKey) -> bool:
        """Whether rows of it are needed now or soon."""
        with self.changed:
            return self._wanted(group)

    def hold(self, nbytes: int) -> None:
        """Readings of huge row groups that wait to be gone on with hold so much."""
        with self.changed:
            self._flows = nbytes

    def check(self, group: RowGroupKey) -> None:
        """After rows of unknown size came: what is needed later gives way. DataError: that is not enough."""
        with self.changed:
            if self.used() <= self._budget or self._closed:
                return
            self._kept.clear()
            for distance, need in reversed(self._order):
                window = self._windows.get(need.key)
                if self.used() > self._budget and distance > 0 and window is not None and not window.readers:
                    self._drop(need.key)
            self.pool.trim(self._budget - self.used() + self.pool.nbytes)
            over = self.used() - self._budget
            if over <= _OVER_BYTES:
                return
            needed = [need.key for distance, need in self._order if not distance]
            rows = sum(window_rows(self._lanes, key) for key in needed)
        raise too_large(self._groups, group, len(needed), rows, self._budget, self._row_bytes)

    # ---- reading -----------------------------------------------------------------------------------------------

    def acquire(
        self, rank: int, step: int, needed: list[WindowKey], wanted: list[WindowKey], cancelled: Callable[[], bool]
    ) -> dict[WindowKey, Window] | None:
        """Wait until all `needed` windows are whole; hold them, and those of `wanted` that are whole too, for reading.

        `wanted` includes `needed`; the caller gives all back to `release`. None if cancelled, closed, or the rank was
        moved away from `step`, so that nobody reads these windows any more.
        Raises the error of a needed window whose shard cannot be read.
        """
        began = time.monotonic()
        with self.changed:
            while not self.readable(needed):
                if self._closed or cancelled() or self._positions.get(rank) != step:
                    return None
                if any(key not in self._windows for key in needed):
                    self._plan()
                    self._wake()
                self.ready.wait(_LOOK_AGAIN_SECONDS)
            known = {key: self._windows[key] for key in wanted if key in self._windows}
            found = {key: window for key, window in known.items() if window.whole and not window.error}
            for window in found.values():
                window.readers += 1
        self._stats.wait("assemble", "decode", time.monotonic() - began)
        return found

    def readable(self, keys: list[WindowKey]) -> bool:
        """Whether all are whole. The lock is held. Raises the error of one that cannot be."""
        found = [self._windows.get(key) for key in keys]
        errors = [window.error for window in found if window is not None and window.error]
        if errors:
            # This frame is the error's from now on, and must not hold the windows (`failed`).
            del found
            raise errors[0].with_traceback(None)
        return all(window is not None and window.whole for window in found)

    def release(self, windows: dict[WindowKey, Window]) -> None:
        """Give windows back that `acquire` gave."""
        with self.changed:
            for window in windows.values():
                window.readers -= 1
                if not window.readers and self._windows.get(window.key) is not window:
                    window.close(self.pool)

    # ---- figures -----------------------------------------------------------------------------------------------

    def used(self) -> int:
        """Bytes of windows, kept and in-flight row groups. The caller holds the lock, or wants a rough figure."""
        windows = self._windows.values()
        kept = sum(c.nbytes for c in self._kept.values())
        # Buffers that wait for reuse go to the windows that have none yet.
        pooled = max(0, self.pool.nbytes - sum(w.nbytes for w in windows if not w.allocated))
        # Half of the reserve is for readings of huge row groups that wait.
        flows = max(0, self._flows - self._reserve // 2)
        return sum(w.nbytes for w in windows) + kept + self._in_flight + flows + pooled

    def figures(self) -> dict[str, int]:
        """Bytes and numbers for metrics."""
        with self.changed:
            return {
                "windows": sum(w.nbytes for w in self._windows.values()),
                "chunks": sum(c.nbytes for c in self._kept.values()),
                "in_flight": self._in_flight + self._flows,
                "pool": self.pool.nbytes,
                "open_windows": len(self._windows),
            }

    def close(self) -> None:
        """Nothing comes any more: every waiter returns, and all memory is let go."""
        with self.changed:
            self._closed = True
            self._windows.clear()
            self._waiting.clear()
            self._kept.clear()
            self._order = []
            self.pool.trim(0)
            self._wake()
