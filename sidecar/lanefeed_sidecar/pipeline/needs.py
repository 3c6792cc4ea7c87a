"""What a rank needs next, as windows: pure functions of lanes and positions, called by the schedule and the assembler.

A window key is (epoch, lane, window); PAD marks the few rows that fill a lane's share in a Pad last step.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lanefeed_core.lanes import Lanes
from lanefeed_core.stream import DROP, PAD

__all__ = ["PAD_WINDOW", "Place", "WindowKey", "WindowNeed", "lane_needs", "nearest", "place"]

#: Windows per lane that are opened at most: the current one and two ahead.
_AHEAD = 3

#: Window number of a lane's padding rows.
PAD_WINDOW = -1


class WindowKey(NamedTuple):
    """One window of a lane in one of its epochs."""

    epoch: int
    lane: int
    window: int


class WindowNeed(NamedTuple):
    """A window and the total steps that read it, both inclusive."""

    key: WindowKey
    first: int
    last: int


class Place(NamedTuple):
    """Where a position of a lane's stream lies: window, row in it, and rows up to the window's end."""

    key: WindowKey
    row: int
    room: int


def used_rows(lanes: Lanes, lane: int) -> int:
    """Positions of the lane that an epoch uses: all, but for what lastBatch Drop leaves."""
    if lanes.spec.aligned and lanes.spec.last_batch == DROP:
        return lanes.full_steps * lanes.share(lane)
    return lanes.lane_rows(lane)


def place(lanes: Lanes, lane: int, epoch: int, position: int) -> Place:
    """Aligned: `position` within `epoch`. Continuous: `position` since the start of the job, `epoch` is ignored."""
    rows = lanes.lane_rows(lane)
    if not lanes.spec.aligned:
        epoch, position = divmod(position, rows)
    window, row = divmod(position, lanes.spec.window)
    end = min(rows, (window + 1) * lanes.spec.window)
    return Place(WindowKey(epoch, lane, window), row, end - position)


def lane_needs(lanes: Lanes, lane: int, total_step: int, stop: int, count: int) -> list[WindowNeed]:
    """The next `count` windows that the lane's readers need from `total_step` on, in order; `stop` 0 is no end."""
    if lanes.spec.aligned:
        return _aligned_needs(lanes, lane, total_step, stop, count)
    share = lanes.share(lane)
    found: list[WindowNeed] = []
    position = total_step * share
    while len(found) < count:
        at = place(lanes, lane, 0, position)
        begin = position - at.row
        end = begin + at.row + at.room
        first = max(total_step, begin // share)
        if stop and first >= stop:
            break
        found.append(WindowNeed(at.key, first, (end - 1) // share))
        position = end
    return found


def _aligned_needs(lanes: Lanes, lane: int, total_step: int, stop: int, count: int) -> list[WindowNeed]:
    per_epoch, share, size = lanes.steps_per_epoch, lanes.share(lane), lanes.spec.window
    used = used_rows(lanes, lane)
    found: list[WindowNeed] = []
    epoch, step = divmod(total_step, per_epoch)
    while len(found) < count:
        base = epoch * per_epoch
        if stop and base >= stop:
            break
        position = min(step * share, used)
        for window in range(position // size, -(-used // size)):
            if window * size >= used:
                break
            first = base + window * size // share
            last = base + (min(used, (window + 1) * size) - 1) // share
            if last < total_step or (stop and first >= stop):
                continue
            found.append(WindowNeed(WindowKey(epoch, lane, window), max(first, total_step), last))
            if len(found) >= count:
                return found
        if lanes.leftover and lanes.spec.last_batch == PAD:
            step_of_pads = base + lanes.full_steps
            if step_of_pads >= total_step and not (stop and step_of_pads >= stop):
                found.append(WindowNeed(WindowKey(epoch, lane, PAD_WINDOW), step_of_pads, step_of_pads))
        epoch, step = epoch + 1, 0
    return found[:count]


def nearest(
    lanes: Lanes, rank_lanes: Mapping[int, Sequence[int]], positions: Mapping[int, int], stop: int
) -> tuple[list[tuple[int, WindowNeed]], dict[int, int]]:
    """What ranks at `positions` (total steps) need soon: (steps until then, window), nearest first; and the step at
    which each of them needs other windows.
    """
    needs: dict[WindowKey, tuple[int, WindowNeed]] = {}
    changes: dict[int, int] = {}
    for rank, position in positions.items():
        crossing: list[int] = []
        for lane in rank_lanes[rank]:
            # A step reads several windows of a lane where they are smaller than its share.
            ahead = _AHEAD + lanes.share(lane) // lanes.spec.window
            found = lane_needs(lanes, lane, position, stop, ahead)
            crossing += [n.last + 1 for n in found[:1]]
            for need in found:
                distance = need.first - position
                if need.key not in needs or distance < needs[need.key][0]:
                    needs[need.key] = (distance, need)
        changes[rank] = min(crossing, default=position + 1)
    return sorted(needs.values(), key=lambda item: (item[0], item[1].key)), changes
