"""Which windows are open, what is decoded next, and what memory that takes. One lock guards it all.

Called by decode threads (`next_task`, `done`), by the assembler (`wait_whole`, `release`) and by seeks. Work is chosen in
the order of need: the window whose first reading step is nearest to its rank. The budget bounds windows ahead and kept
row groups; the windows that ranks need right now are opened whatever it says, or nothing would move.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from lanefeed_core.lanes import Lanes
from lanefeed_core.layout import Column
from lanefeed_sidecar.errors import SidecarError
from lanefeed_sidecar.formats.chunk import Chunk
from lanefeed_sidecar.pipeline.needs import WindowKey, WindowNeed, lane_needs
from lanefeed_sidecar.pipeline.pieces import RowGroupKey, RowGroups, window_pieces, window_rows
from lanefeed_sidecar.pipeline.stats import Stats
from lanefeed_sidecar.pipeline.window import BufferPool, Window

__all__ = ["Store", "Task"]

#: Windows per lane that are opened at most: the current one and two ahead.
_AHEAD = 3


@dataclass(slots=True)
class Task:
    """Decode a row group (or take the kept `chunk`) and scatter it into `windows`."""

    group: RowGroupKey
    windows: list[Window]
    chunk: Chunk | None
    keep: bool


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
        stats: Stats,
    ) -> None:
        """`rank_lanes`: the lanes of each local rank; `stop`: total step at which the stream ends, 0 for never."""
        self.changed = threading.Condition()
        self.pool = BufferPool(budget // 4)
        self._lanes, self._groups, self._columns = lanes, groups, columns
        self._rank_lanes, self._stop, self._budget, self._row_bytes = rank_lanes, stop, budget, row_bytes
        self._stats = stats
        self._positions: dict[int, int] = {}
        self._windows: dict[WindowKey, Window] = {}
        self._order: list[WindowNeed] = []
        self._recompute_at: dict[int, int] = {}
        self._busy: set[RowGroupKey] = set()
        self._kept: dict[RowGroupKey, Chunk] = {}
        self._in_flight = 0

    # ---- positions ---------------------------------------------------------------------------------------------

    def seek(self, rank: int, step: int) -> None:
        """The rank goes on at total step `step`; what nobody needs any more is dropped."""
        with self.changed:
            self._positions[rank] = step
            self._plan()
            self.changed.notify_all()

    def advance(self, rank: int, step: int) -> None:
        """The rank has been served up to `step`. Cheap unless a window was passed."""
        with self.changed:
            self._positions[rank] = step
            if step >= self._recompute_at.get(rank, 0):
                self._plan()
                self.changed.notify_all()

    def forget(self, rank: int) -> None:
        """The rank is gone: nothing is read ahead for it."""
        with self.changed:
            self._positions.pop(rank, None)
            self._plan()
            self.changed.notify_all()

    def _plan(self) -> None:
        """Recompute what is needed, drop what is not, open what fits."""
        needs: dict[WindowKey, tuple[int, WindowNeed]] = {}
        for rank, position in self._positions.items():
            crossing: list[int] = []
            for lane in self._rank_lanes[rank]:
                # A step reads several windows of a lane where they are smaller than its share.
                ahead = _AHEAD + self._lanes.share(lane) // self._lanes.spec.window
                found = lane_needs(self._lanes, lane, position, self._stop, ahead)
                crossing += [n.last + 1 for n in found[:1]]
                for need in found:
                    distance = need.first - position
                    if need.key not in needs or distance < needs[need.key][0]:
                        needs[need.key] = (distance, need)
            self._recompute_at[rank] = min(crossing, default=position + 1)
        self._order = [need for _, need in sorted(needs.values(), key=lambda item: (item[0], item[1].key))]
        urgent = {key for key, (distance, _) in needs.items() if distance <= 0}
        for key in [k for k in self._windows if k not in needs]:
            self._drop(key)
        self._drop_chunks(set(needs))
        self._open(urgent)

    def _open(self, urgent: set[WindowKey]) -> None:
        used = self.used()
        for need in self._order:
            if need.key in self._windows:
                continue
            rows = window_rows(self._lanes, need.key)
            cost = int(rows * self._row_bytes)
            if used + cost > self._budget and need.key not in urgent:
                break
            window = Window.open(
                need.key, rows, window_pieces(self._lanes, self._groups, need.key), self._columns, self.pool
            )
            window.first = need.first
            self._windows[need.key] = window
            used += max(cost, window.nbytes)

    def _drop(self, key: WindowKey) -> None:
        window = self._windows.pop(key)
        # A window that somebody reads or writes is left to the garbage collector instead of the pool.
        if window.whole and not window.readers:
            window.close(self.pool)

    def _drop_chunks(self, needed: set[WindowKey]) -> None:
        wanted = {g for k, w in self._windows.items() if k in needed for g in w.waiting}
        lanes = {lane for rank in self._positions for lane in self._rank_lanes[rank]}
        for group in [g for g in self._kept if g not in wanted]:
            if not self._later(group, lanes):
                del self._kept[group]

    def _later(self, group: RowGroupKey, lanes: set[int]) -> bool:
        """Whether a lane that is read here comes to rows of the group after its open windows, in this epoch."""
        start = self._groups.start(group)
        for key in {WindowKey(k.epoch, k.lane, 0) for k in self._windows if k.lane in lanes}:
            at = self._lanes.line(key.epoch).shard_line(group.shard) + start
            lane = self._lanes.lane_line(key.lane)
            newest = max(k.window for k in self._windows if k.lane == key.lane and k.epoch == key.epoch)
            begin = lane.start + (newest + 1) * self._lanes.spec.window
            if at < lane.stop and at + self._groups.rows(group) > begin:
                return True
        return False

    # ---- work --------------------------------------------------------------------------------------------------

    def next_task(self, *, cancelled: Callable[[], bool]) -> Task | None:
        """The row group to decode next; waits for one. None when cancelled."""
        began = time.monotonic()
        with self.changed:
            while not cancelled():
                task = self._choose()
                if task:
                    self._stats.wait("decode", "work", time.monotonic() - began)
                    return task
                self.changed.wait(0.5)
        return None

    def _choose(self) -> Task | None:
        for need in self._order:
            window = self._windows.get(need.key)
            if window is None or window.whole or window.error:
                continue
            for group in window.pieces:
                if group in window.waiting and group not in self._busy:
                    return self._make_task(group)
        return None

    def _make_task(self, group: RowGroupKey) -> Task:
        self._busy.add(group)
        windows = [w for w in self._windows.values() if group in w.waiting]
        chunk = self._kept.get(group)
        size = self._groups.nbytes(group)
        keep = chunk is None and size <= self._budget // 4 and self._later(group, self._local_lanes())
        if chunk is None:
            self._in_flight += size
        return Task(group, windows, chunk, keep)

    def _local_lanes(self) -> set[int]:
        return {lane for rank in self._positions for lane in self._rank_lanes[rank]}

    def done(self, task: Task, chunk: Chunk | None) -> None:
        """The task's windows hold its rows now; `chunk` is kept where later windows need it and memory allows."""
        finished = []
        with self.changed:
            for window in task.windows:
                window.waiting.discard(task.group)
                if not window.waiting and not window.whole:
                    finished.append(window)
        for window in finished:
            window.finish()
        with self.changed:
            for window in finished:
                window.whole = True
            self._ended(task)
            if chunk is not None and task.keep and self.used() + chunk.nbytes <= self._budget:
                self._kept[task.group] = chunk
            elif task.chunk is not None and not self._later(task.group, self._local_lanes()):
                self._kept.pop(task.group, None)
            self.changed.notify_all()

    def failed(self, task: Task, error: SidecarError) -> None:
        """The row group cannot be had: whoever needs one of its windows gets the error."""
        with self.changed:
            for window in task.windows:
                window.error = error
            self._ended(task)
            self.changed.notify_all()

    def _ended(self, task: Task) -> None:
        self._busy.discard(task.group)
        if task.chunk is None:
            self._in_flight -= self._groups.nbytes(task.group)

    # ---- reading -----------------------------------------------------------------------------------------------

    def acquire(self, keys: list[WindowKey], *, cancelled: Callable[[], bool]) -> dict[WindowKey, Window] | None:
        """Wait for the windows; they are whole and held until `release`. None if cancelled.

        Raises the error of a window whose shard cannot be read.
        """
        began = time.monotonic()
        with self.changed:
            while True:
                found = {key: self._windows[key] for key in keys if key in self._windows}
                for window in found.values():
                    if window.error:
                        raise window.error
                if len(found) == len(keys) and all(w.whole for w in found.values()):
                    for window in found.values():
                        window.readers += 1
                    self._stats.wait("assemble", "decode", time.monotonic() - began)
                    return found
                if cancelled():
                    return None
                if len(found) < len(keys):
                    self._plan()
                    self.changed.notify_all()
                self.changed.wait(0.2)

    def whole(self, key: WindowKey) -> bool:
        """Whether a window can be read now."""
        with self.changed:
            window = self._windows.get(key)
            return window is not None and window.whole and window.error is None

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
        return sum(w.nbytes for w in self._windows.values()) + sum(c.nbytes for c in self._kept.values()) + self._in_flight

    def figures(self) -> dict[str, int]:
        """Bytes and numbers for metrics."""
        with self.changed:
            return {
                "windows": sum(w.nbytes for w in self._windows.values()),
                "chunks": sum(c.nbytes for c in self._kept.values()),
                "in_flight": self._in_flight,
                "pool": self.pool.nbytes,
                "open_windows": len(self._windows),
            }

    def wake(self) -> None:
        """Let every waiter look again."""
        with self.changed:
            self.changed.notify_all()
