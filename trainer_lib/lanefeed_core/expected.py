"""What the ledger must say: the manifest's side of the proof.

Called by the control plane and `lanefeed verify`, off the hot path. Costs a few ns a row of what is summed up.
"""

import numpy as np

from lanefeed_core.cursor import Cursor
from lanefeed_core.lanes import Lanes, Run
from lanefeed_core.ledger import Entry, Ledger, range_sum, sum_ids
from lanefeed_core.slices import LaneSlice, lane_slices, rank_slice
from lanefeed_core.stream import DROP

__all__ = ["all_rows", "epoch_entry", "part", "prefix"]

#: Positions of a lane that are looked at together.
_CHUNK = 1 << 20


def all_rows(lanes: Lanes) -> Entry:
    """All samples of the dataset once: the part of `epoch_entry` that is the same for every epoch."""
    return Entry(lanes.rows, range_sum(0, lanes.rows))


def epoch_entry(lanes: Lanes, epoch: int, every: Entry | None = None) -> Entry:
    """What a whole epoch holds: all samples (`every`, where it is known), less those that lastBatch Drop leaves out."""
    whole = every or all_rows(lanes)
    if not lanes.spec.aligned or lanes.spec.last_batch != DROP or not lanes.leftover:
        return whole
    left = Entry()
    for lane in range(lanes.spec.lanes):
        run = Run(epoch, lanes.full_steps * lanes.share(lane), lanes.lane_rows(lane))
        if run.start < run.stop:
            left += Entry(run.stop - run.start, sum_ids(lanes.lane_ids(lane, run)))
    return whole - left


def prefix(lanes: Lanes, cursor: Cursor) -> Ledger:
    """What was consumed before `cursor` if nothing was lost or repeated: its unfinished epochs' entries.

    Aligned: the cursor's own epoch; earlier ones are done. Continuous: every epoch that some lane has entered.
    """
    ledger = Ledger()
    for lane in range(lanes.spec.lanes):
        for run in lanes.runs(lane, cursor.epoch, 0, cursor.step):
            entry = _run_entry(lanes, lane, run)
            ledger.add(run.epoch, entry.count, entry.total)
    return ledger


def _run_entry(lanes: Lanes, lane: int, run: Run) -> Entry:
    """The samples of a run that starts at a window's edge.

    Whole windows are ranges of the line, so only a cut last window costs a permutation.
    """
    size = lanes.spec.window
    whole = run.stop if run.stop == lanes.lane_rows(lane) else run.stop // size * size
    first = lanes.lane_line(lane).start
    entry = Entry()
    for piece in lanes.line(run.epoch).shard_runs(first + run.start, first + whole):
        base = lanes.shard_start(piece.shard)
        entry += Entry(piece.stop - piece.start, range_sum(base + piece.start, base + piece.stop))
    if whole < run.stop:
        cut = Run(run.epoch, whole, run.stop)
        entry += Entry(cut.stop - cut.start, sum_ids(lanes.lane_ids(lane, cut)))
    return entry


def part(lanes: Lanes, world: int, rank: int, start: int, stop: int) -> Ledger:
    """What one rank of `world` consumes from total step `start` to `stop` if nothing is lost or repeated.

    Costs what permuting the windows of its lanes between these steps costs.
    """
    ledger = Ledger()
    if not lanes.spec.aligned:
        _add_steps(ledger, lanes, lane_slices(lanes, world, rank, 0), 0, start, stop)
        return ledger
    while start < stop:
        epoch, step = divmod(start, lanes.steps_per_epoch)
        last = min(lanes.steps_per_epoch, step + stop - start)
        full = min(last, lanes.full_steps)
        if step < full:
            _add_steps(ledger, lanes, lane_slices(lanes, world, rank, step), epoch, step, full)
        if last > lanes.full_steps:
            ids, mask = lanes.batch(epoch, lanes.full_steps)
            low, high = rank_slice(len(ids), world, rank)
            own = ids[low:high][mask[low:high]]
            ledger.add(epoch, len(own), sum_ids(own))
        start += last - step
    return ledger


def _add_steps(ledger: Ledger, lanes: Lanes, pieces: list[LaneSlice], epoch: int, step: int, stop: int) -> None:
    """Add the rank's rows of full steps; Continuous: `epoch` is 0 and steps count from the start of the job."""
    for piece in pieces:
        share = lanes.share(piece.lane)
        many = max(1, _CHUNK // share)
        for first in range(step, stop, many):
            at = first * share
            for run in lanes.runs(piece.lane, epoch, first, min(many, stop - first)):
                places = np.arange(at, at + run.stop - run.start) % share
                own = lanes.lane_ids(piece.lane, run)[(places >= piece.start) & (places < piece.stop)]
                ledger.add(run.epoch, len(own), sum_ids(own))
                at += run.stop - run.start
