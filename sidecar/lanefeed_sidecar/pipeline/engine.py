"""The data plane of one pod: positions of its ranks in, frames out.

The feed calls `seek` when a rank attaches and `fill` from one thread a rank. Everything else happens in decode threads.
It owns the store and the decode threads, chooses slot and frame sizes, and refuses budgets that cannot work. Ranks are
independent: each may be at another step and may seek at any time.
"""

import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lanefeed_core.cursor import Cursor
from lanefeed_core.errors import StreamError
from lanefeed_core.lanes import Lanes
from lanefeed_core.layout import SLOT_HEADER_BYTES, Column, fixed_frame_bytes
from lanefeed_core.manifest import Manifest
from lanefeed_core.podconfig import PodConfig
from lanefeed_core.slices import LaneSlice, lane_slices, rank_lanes, rank_slice
from lanefeed_sidecar import formats
from lanefeed_sidecar.cache import open_cache
from lanefeed_sidecar.errors import ConfigError
from lanefeed_sidecar.pipeline.assemble import Shape, assemble, frame_copies, frame_keys
from lanefeed_sidecar.pipeline.decode import Workers
from lanefeed_sidecar.pipeline.fetch import AheadStore, Fetch, raw_budget, remote_shards
from lanefeed_sidecar.pipeline.frames import FrameMeta
from lanefeed_sidecar.pipeline.future import Uses
from lanefeed_sidecar.pipeline.help import Help
from lanefeed_sidecar.pipeline.pieces import RowGroups
from lanefeed_sidecar.pipeline.stats import Stats
from lanefeed_sidecar.pipeline.store import Store

__all__ = ["Engine"]

#: A frame is about this large, so that signalling it (about 100 us) costs little, and holds at most so many steps.
_FRAME_BYTES = 4 << 20
_MAX_STEPS = 256
_MIN_SLOT_BYTES = 4 << 20


class Engine:
    """Decodes, shuffles and batches for the ranks of one pod. One filling thread per rank; seeks from any thread."""

    def __init__(
        self, config: PodConfig, manifest: Manifest, *, stats: Stats, open_shard: formats.OpenShard = formats.open_shard
    ) -> None:
        """Check sizes and budgets. Raises ConfigError; nothing is read before `start`."""
        self.ranks = config.plan.ranks(config.pod_index)
        made = formats.delivery(manifest, config)
        self.columns: tuple[Column, ...] = made.columns
        try:
            self.lanes = Lanes(config.spec, manifest.shard_rows)
            config.plan.check(config.spec.global_batch_size)
        except StreamError as error:
            raise ConfigError(str(error)) from None
        self._world = config.plan.world
        self._stats = stats
        #: Total steps at which the stream ends; 0: never.
        self.total_steps = _total_steps(config, self.lanes)
        self._rank_lanes = {rank: rank_lanes(self.lanes, self._world, rank) for rank in self.ranks}
        self._row_bytes = self._window_row_bytes(manifest)
        threads = config.decode_threads or max(1, min(4, len(os.sched_getaffinity(0))))
        # What is made of a row only when it is put in its place takes nothing before; for a cache all of it is made.
        held = self.columns if config.cache_dir and config.cache_bytes else made.stored
        groups = RowGroups(manifest, int(sum(c.row_bytes for c in held if not c.ragged)))
        shards = remote_shards(manifest, made.stored, stats)
        budget = config.read_ahead_bytes - (raw_budget(config.read_ahead_bytes) if shards else 0)
        reserve = min(budget // 4, threads * groups.largest())
        self._check_budget(config, reserve + config.read_ahead_bytes - budget)
        #: Bytes of a slot: config.slot_bytes, or chosen from the row sizes.
        self.slot_bytes = config.slot_bytes or self._choose_slot_bytes(manifest)
        self._ragged_bytes = manifest.row_bytes if any(c.ragged for c in self.columns) else 0.0
        self._store = (AheadStore if shards else Store)(
            self.lanes,
            groups,
            self.columns,
            self._rank_lanes,
            stop=self.total_steps,
            budget=budget,
            row_bytes=self._row_bytes,
            reserve=reserve,
            stats=stats,
        )
        mine = sorted({lane for found in self._rank_lanes.values() for lane in found})
        epochs = config.epochs if self.lanes.spec.aligned else 0
        uses = Uses(self.lanes, groups, mine, epochs)
        self._cache = open_cache(config, manifest, self.columns, groups, uses, stats, made_by=made.made_by)
        self._fetch = None
        if shards and isinstance(self._store, AheadStore):
            cached = self._cache.has if self._cache is not None else None
            raw = raw_budget(config.read_ahead_bytes)
            self._fetch = Fetch(self._store, shards, budget=raw, cached=cached)
            open_shard = shards.open if open_shard is formats.open_shard else open_shard
        open_shard = made.opening(open_shard)
        self._workers = Workers(
            self._store,
            manifest,
            self.lanes,
            groups,
            self.columns,
            threads=threads,
            budget=budget,
            open_shard=open_shard,
            stats=stats,
            cache=self._cache,
        )
        self._help = Help(self._store, self._workers, stats) if self._cache is not None else None
        self._ramp = dict.fromkeys(self.ranks, 1)
        self._steps_by_rows: dict[int, int] = {}
        self._full_slices: dict[int, list[LaneSlice]] = {}

    def _window_row_bytes(self, manifest: Manifest) -> float:
        """Bytes of a row in a window: fixed columns exactly, ragged ones by the files' metadata."""
        fixed = 8 + sum(c.row_bytes + c.nullable for c in self.columns if not c.ragged)
        ragged = [c for c in self.columns if c.ragged]
        return fixed + (16 * len(ragged) + manifest.row_bytes if ragged else 0)

    def _check_budget(self, config: PodConfig, reserve: int) -> None:
        lanes = sorted({lane for found in self._rank_lanes.values() for lane in found})
        window = self.lanes.spec.window
        # A step of a lane whose share is larger than a window reads several of them.
        wanted = {lane: max(2 * window, self.lanes.share(lane) + window) for lane in lanes}
        rows = sum(min(wanted[lane], self.lanes.lane_rows(lane)) for lane in lanes)
        needed = int(rows * self._row_bytes) + reserve
        if needed > config.read_ahead_bytes:
            raise ConfigError(
                f"sidecar.readAheadBytes is {config.read_ahead_bytes} and two open windows for each of this pod's "
                f"{len(lanes)} lanes, and the row groups being decoded, take {needed} bytes ({window} rows of about "
                f"{self._row_bytes:.0f} bytes): raise sidecar.readAheadBytes, or for a new job lower shuffle.window or "
                "batching.lanes"
            )

    def rank_rows(self, rank: int) -> int:
        """Rows of a rank's full batch."""
        low, high = rank_slice(self.lanes.spec.global_batch_size, self._world, rank)
        return high - low

    def _choose_slot_bytes(self, manifest: Manifest) -> int:
        rows = max(self.rank_rows(rank) for rank in self.ranks)
        batch = fixed_frame_bytes(list(self.columns), rows, 1, mask=True)
        if any(c.ragged for c in self.columns):
            batch += int(4 * rows * manifest.row_bytes)
        return max(_MIN_SLOT_BYTES, -(-batch // 4096) * 4096)

    def start(self) -> None:
        """Start decoding for the ranks that have a position."""
        self._workers.start()
        if self._fetch is not None:
            self._fetch.start()

    def close(self) -> None:
        """Stop all threads after the row groups in hand; may be called again."""
        self._workers.stop()
        if self._fetch is not None:
            self._fetch.close()
        self._workers.close()
        if self._cache is not None:
            self._cache.close()
            self._cache = None

    def seek(self, rank: int, step: int) -> None:
        """The rank's stream goes on at this total step, forwards or backwards."""
        self._ramp[rank] = 1
        self._store.seek(rank, step)

    def forget(self, rank: int) -> None:
        """Nothing is read ahead for the rank until it seeks again."""
        self._store.forget(rank)

    def fill(self, rank: int, step: int, slot: NDArray[np.uint8], *, cancelled: Callable[[], bool]) -> FrameMeta | None:
        """Fill the slot with the frame that begins at total step `step`; waits for the windows.

        Returns None at the end of the stream, when cancelled or closed, or when the rank was moved meanwhile (`seek`,
        `forget`). Raises DataError, BatchTooLarge.
        """
        if self.total_steps and step >= self.total_steps:
            return None
        if self._store.position(rank) != step:
            self.seek(rank, step)
        shape = self._shape(rank, step)
        copies = frame_copies(self.lanes, self._slices_at(rank, shape.step), shape)
        first = frame_keys([c for c in copies if c.step == 0])
        if self._help is not None:
            self._help.until(rank, step, first, cancelled)
        windows = self._store.acquire(rank, step, first, frame_keys(copies), cancelled)
        if windows is None:
            return None
        try:
            # What can be copied now goes out now: a later window that is still being decoded delays no batch before it.
            shape = shape.cut(min((c.step for c in copies if c.key not in windows), default=shape.steps))
            meta = assemble(self.lanes, self.columns, shape, copies, windows, slot, self._stats)
        finally:
            self._store.release(windows)
        self._ramp[rank] = min(_MAX_STEPS, self._ramp[rank] * 2)
        self._store.advance(rank, step, step + meta.steps)
        self._stats.add(frames=1, batches=meta.steps, samples=meta.steps * meta.samples)
        return meta

    def _shape(self, rank: int, step: int) -> Shape:
        lanes = self.lanes
        at = Cursor.from_total(step, lanes.steps_per_epoch or 1, aligned=lanes.spec.aligned)
        low, high = rank_slice(lanes.step_rows(at.step), self._world, rank)
        if lanes.is_last_short(at.step):
            return Shape(at.epoch, at.step, 1, high - low, step)
        limit = min(self._frame_steps(high - low), self._ramp[rank])
        if lanes.spec.aligned:
            limit = min(limit, lanes.full_steps - at.step)
        if self.total_steps:
            limit = min(limit, self.total_steps - step)
        return Shape(at.epoch, at.step, max(1, limit), high - low, step)

    def _slices_at(self, rank: int, step: int) -> list[LaneSlice]:
        """The rank's lane slices: the same in every step but a short last one."""
        if self.lanes.is_last_short(step):
            return lane_slices(self.lanes, self._world, rank, step)
        if rank not in self._full_slices:
            self._full_slices[rank] = lane_slices(self.lanes, self._world, rank, step)
        return self._full_slices[rank]

    def _frame_steps(self, rows: int) -> int:
        if rows not in self._steps_by_rows:
            one = fixed_frame_bytes(list(self.columns), rows, 1) + int(rows * self._ragged_bytes)
            spare = self.slot_bytes - SLOT_HEADER_BYTES
            self._steps_by_rows[rows] = max(1, min(_MAX_STEPS, _FRAME_BYTES // one, spare // one))
        return self._steps_by_rows[rows]

    def memory(self) -> dict[str, int]:
        """Bytes by use, and the number of open windows."""
        cached = {"disk_cache": self._cache.used} if self._cache is not None else {}
        fetched = {"fetched": self._fetch.held()} if self._fetch is not None else {}
        return {**self._store.figures(), **cached, **fetched}


def _total_steps(config: PodConfig, lanes: Lanes) -> int:
    """Total step at which the stream ends; 0: never."""
    by_epochs = config.epochs * lanes.steps_per_epoch if config.spec.aligned else 0
    limits = [n for n in (by_epochs, config.max_steps) if n]
    return min(limits) if limits else 0
