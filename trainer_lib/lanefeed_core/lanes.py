"""Where every sample goes: the pure map between (epoch, step, row of the global batch) and sample id.

Everything that orders samples is here: the permuted line of rows of an epoch, the lanes cut from it, the windows in
which a lane is shuffled, and the global batch made of the lanes' shares. Nothing depends on world size; `slices` cuts
ranks out of the global batch. Both directions cost one window, wherever in the epoch they are asked.

Integer arithmetic as in design section 3: with C(l) = floor(l G / L), lane l gives c = C(l+1) - C(l) samples to each
step and owns rows [floor(N C(l) / G), floor(N C(l+1) / G)) of the epoch's line.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lanefeed_core import permute
from lanefeed_core.errors import StreamError
from lanefeed_core.stream import DROP, PAD, StreamSpec

__all__ = ["EpochLine", "Lanes", "LineRun", "Run", "ShardRun"]

Ids = NDArray[np.int64]


class ShardRun(NamedTuple):
    """Consecutive rows of one shard, and where they begin in what was asked for."""

    shard: int
    start: int
    stop: int
    at: int


class Run(NamedTuple):
    """Consecutive positions [start, stop) of one lane's stream in one epoch."""

    epoch: int
    start: int
    stop: int


class LineRun(NamedTuple):
    """Consecutive rows [start, stop) of an epoch's line."""

    start: int
    stop: int


@dataclass(frozen=True)
class EpochLine:
    """One epoch's line: the shards in this epoch's order, their rows laid end to end."""

    order: Ids
    #: First line row of each shard in `order` and, last, N: int64 [shards + 1].
    starts: Ids
    #: First sample id of each shard in `order`: int64 [shards].
    ids: Ids
    #: Place of each shard in `order`, by its index in the manifest: int64 [shards].
    places: Ids

    def shard_line(self, shard: int) -> int:
        """First line row of a shard."""
        return int(self.starts[self.places[shard]])

    def to_ids(self, rows: Ids) -> Ids:
        """Line rows (any shape) -> sample ids."""
        at = np.searchsorted(self.starts, rows, side="right") - 1
        result: Ids = rows - self.starts[at] + self.ids[at]
        return result

    def shard_runs(self, start: int, stop: int) -> Iterator[ShardRun]:
        """The pieces of shards that make up line rows [start, stop), in line order."""
        at = int(np.searchsorted(self.starts, start, side="right")) - 1
        row = start
        while row < stop:
            end = min(stop, int(self.starts[at + 1]))
            base = int(self.starts[at])
            yield ShardRun(int(self.order[at]), row - base, end - base, row - start)
            row, at = end, at + 1


class Lanes:
    """The order of one source's samples. Immutable; safe to use from several threads.

    Args:
        spec: the stream's identity.
        shard_rows: rows of each shard in manifest order, int64 [shards], all > 0.

    Raises StreamError where the data cannot make one step (N < G and lastBatch Drop), or a lane would be empty in a
    Continuous stream.
    """

    def __init__(self, spec: StreamSpec, shard_rows: Ids) -> None:
        """Check that the data can make at least one step."""
        self.spec = spec
        self._rows_per_shard = np.asarray(shard_rows, dtype=np.int64)
        self._id_starts = np.zeros(len(self._rows_per_shard) + 1, dtype=np.int64)
        np.cumsum(self._rows_per_shard, out=self._id_starts[1:])
        #: Number of samples (N).
        self.rows = int(self._id_starts[-1])
        #: Steps in which every lane gives its full share: floor(N / G).
        self.full_steps = self.rows // spec.global_batch_size
        #: Samples of an epoch's last, smaller step: N mod G.
        self.leftover = self.rows % spec.global_batch_size
        self._lane_starts = np.array([self._line_start(lane) for lane in range(spec.lanes + 1)], dtype=np.int64)
        starts = self._lane_starts.tolist()
        # Looked up for every lane of every frame, so made once.
        self._lines = [LineRun(start, stop) for start, stop in pairwise(starts)]
        self._shares = [self.offset(lane + 1) - self.offset(lane) for lane in range(spec.lanes)]
        self._check()
        self.line = lru_cache(maxsize=4)(self._line)

    def _line_start(self, lane: int) -> int:
        return self.rows * self.offset(lane) // self.spec.global_batch_size

    def _check(self) -> None:
        size = self.spec.global_batch_size
        if self.rows < 1:
            raise StreamError("the dataset has no samples: check data.uri and the files it names")
        if self.spec.aligned and self.steps_per_epoch < 1:
            raise StreamError(
                f"the dataset has {self.rows} samples, fewer than batching.globalBatchSize {size}: with lastBatch "
                "Drop no step is left; lower globalBatchSize or set lastBatch to Partial or Pad"
            )
        if not self.spec.aligned and bool((np.diff(self._lane_starts) < 1).any()):
            raise StreamError(
                f"{self.rows} samples are too few for {self.spec.lanes} lanes in a Continuous stream: lower "
                "batching.lanes or batching.globalBatchSize"
            )

    # ---- lanes -------------------------------------------------------------------------------------------------

    def offset(self, lane: int) -> int:
        """First row of the lane in a full global batch: C(l) = floor(l G / L)."""
        return lane * self.spec.global_batch_size // self.spec.lanes

    def share(self, lane: int) -> int:
        """Samples that the lane gives to each full step: c(l)."""
        return self._shares[lane]

    def lane_line(self, lane: int) -> LineRun:
        """The rows of every epoch's line that belong to the lane."""
        return self._lines[lane]

    def lane_rows(self, lane: int) -> int:
        """Rows of the lane in an epoch."""
        start, stop = self.lane_line(lane)
        return stop - start

    def window_line(self, lane: int, window: int) -> LineRun:
        """The rows of the epoch's line that are shuffled together as the lane's `window`."""
        start, stop = self.lane_line(lane)
        first = start + window * self.spec.window
        return LineRun(first, min(stop, first + self.spec.window))

    def window_order(self, epoch: int, lane: int, window: int) -> Ids:
        """Order in which the window's rows come: stream position i of the window is its row `order[i]`."""
        start, stop = self.window_line(lane, window)
        if not self.spec.shuffle:
            return np.arange(stop - start, dtype=np.int64)
        return permute.permutation(
            stop - start, seed=self.spec.seed, domain=permute.WINDOW, epoch=epoch, lane=lane, window=window
        )

    def shard_of(self, sample: int) -> int:
        """Index of the shard that holds a sample."""
        return int(np.searchsorted(self._id_starts, sample, side="right")) - 1

    def shard_start(self, shard: int) -> int:
        """Sample id of a shard's first row."""
        return int(self._id_starts[shard])

    def _line(self, epoch: int) -> EpochLine:
        shards = len(self._rows_per_shard)
        if self.spec.shuffle:
            order = permute.permutation(shards, seed=self.spec.seed, domain=permute.SHARDS, epoch=epoch)
        else:
            order = np.arange(shards, dtype=np.int64)
        starts = np.zeros(shards + 1, dtype=np.int64)
        np.cumsum(self._rows_per_shard[order], out=starts[1:])
        places = np.empty(shards, dtype=np.int64)
        places[order] = np.arange(shards, dtype=np.int64)
        return EpochLine(order, starts, self._id_starts[:-1][order], places)

    # ---- steps -------------------------------------------------------------------------------------------------

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an Aligned epoch, on every rank; for Continuous, the full steps that N samples make."""
        if self.spec.aligned and self.spec.last_batch != DROP:
            return self.full_steps + (self.leftover > 0)
        return self.full_steps

    def is_last_short(self, step: int) -> bool:
        """Whether the step is an epoch's last one with fewer than G samples left."""
        return self.spec.aligned and step >= self.full_steps

    def step_rows(self, step: int) -> int:
        """Rows of the global batch at a step of an epoch: G, or N mod G in a Partial last one."""
        return (
            self.leftover if self.is_last_short(step) and self.spec.last_batch != PAD else self.spec.global_batch_size
        )

    def step_samples(self, step: int) -> int:
        """Samples of the step that count: as `step_rows`, less padding."""
        return self.leftover if self.is_last_short(step) else self.spec.global_batch_size

    def dropped(self) -> int:
        """Samples that each Aligned epoch leaves out (lastBatch Drop)."""
        return self.leftover if self.spec.aligned and self.spec.last_batch == DROP else 0

    def left_offset(self, lane: int) -> int:
        """First row of the lane in a Partial last batch: floor(r C(l) / G), r = N mod G."""
        return self.leftover * self.offset(lane) // self.spec.global_batch_size

    def runs(self, lane: int, epoch: int, step: int, steps: int) -> list[Run]:
        """The lane's positions for `steps` steps from (epoch, step), padding left out, in order.

        Aligned: within the epoch. Continuous: `epoch` is 0, `step` counts from the start of the job, and the runs name
        the lane's own epochs.
        """
        share, rows = self.share(lane), self.lane_rows(lane)
        start, stop = step * share, (step + steps) * share
        if self.spec.aligned:
            return [Run(epoch, start, min(stop, rows))] if start < min(stop, rows) else []
        found = []
        while start < stop:
            lap, first = divmod(start, rows)
            last = min(rows, first + stop - start)
            found.append(Run(lap, first, last))
            start += last - first
        return found

    def lane_ids(self, lane: int, run: Run) -> Ids:
        """Sample ids at the lane's positions in `run`, int64 [stop - start]; touches only the windows in between."""
        parts = []
        size = self.spec.window
        for window in range(run.start // size, -(-run.stop // size)):
            low, high = max(run.start, window * size), min(run.stop, (window + 1) * size)
            first = self.window_line(lane, window).start
            order = self.window_order(run.epoch, lane, window)
            parts.append(first + order[low - window * size : high - window * size])
        rows = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
        return self.line(run.epoch).to_ids(rows)

    def pad_rows(self, lane: int, epoch: int) -> Ids:
        """Sample ids that fill the lane's share of a Pad last step: its last samples again, backwards.

        A lane with no rows (N < G) borrows the line's rows at its place, so that each pad is a real sample.
        """
        rows, share = self.lane_rows(lane), self.share(lane)
        left = rows - self.full_steps * share
        if rows:
            again = rows - 1 - np.arange(share - left, dtype=np.int64) % rows
            low = int(again.min()) if len(again) else 0
            ids = self.lane_ids(lane, Run(epoch, low, rows))
            picked: Ids = ids[again - low]
            return picked
        place = self.rows * (self.offset(lane) + np.arange(share, dtype=np.int64)) // self.spec.global_batch_size
        return self.line(epoch).to_ids(place)

    # ---- the global batch --------------------------------------------------------------------------------------

    def batch(self, epoch: int, step: int) -> tuple[Ids, NDArray[np.bool_]]:
        """Sample ids of a global batch in order, and the mask that is False for padding; both [step_rows(step)].

        The reference that tests and `verify` use; the sidecar assembles the same order from windows.
        Raises StreamError outside the epoch.
        """
        if self.spec.aligned and not 0 <= step < self.steps_per_epoch:
            raise StreamError(f"step {step} is not in an epoch of {self.steps_per_epoch} steps")
        pads = self.is_last_short(step) and self.spec.last_batch == PAD
        ids, mask = [], []
        for lane in range(self.spec.lanes):
            real = [self.lane_ids(lane, run) for run in self.runs(lane, epoch, step, 1)]
            ids += real
            mask.append(np.ones(sum(map(len, real)), dtype=np.bool_))
            if pads:
                ids.append(self.pad_rows(lane, epoch))
                mask.append(np.zeros(len(ids[-1]), dtype=np.bool_))
        return np.concatenate(ids or [np.zeros(0, dtype=np.int64)]), np.concatenate(mask)

    def position(self, epoch: int, sample: int) -> tuple[int, int] | None:
        """Where a sample comes in an epoch: (step, row of the global batch), or None if the epoch drops it.

        The inverse of `batch`; costs one window. In a Continuous stream `epoch` is the lanes' own and the step counts
        from the start of the job. Raises StreamError for a sample that the dataset does not have.
        """
        if not 0 <= sample < self.rows:
            raise StreamError(f"sample {sample} is not in a dataset of {self.rows} samples")
        shard = self.shard_of(sample)
        row = self.line(epoch).shard_line(shard) + sample - self.shard_start(shard)
        lane = int(np.searchsorted(self._lane_starts, row, side="right")) - 1
        window, in_window = divmod(row - int(self._lane_starts[lane]), self.spec.window)
        order = self.window_order(epoch, lane, window)
        at = window * self.spec.window + int(np.nonzero(order == in_window)[0][0])
        if not self.spec.aligned:
            at += epoch * self.lane_rows(lane)
        step, within = divmod(at, self.share(lane))
        if not self.is_last_short(step):
            return step, self.offset(lane) + within
        if self.spec.last_batch == DROP:
            return None
        base = self.offset(lane) if self.spec.last_batch == PAD else self.left_offset(lane)
        return self.full_steps, base + at - self.full_steps * self.share(lane)
