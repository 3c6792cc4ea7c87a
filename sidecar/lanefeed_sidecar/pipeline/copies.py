"""Which rows of which windows make a frame: plain copies of blocks, since windows are in stream order.

Pure; called by the engine, which waits for the windows that are named, and by `assemble` and `gather`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lanefeed_core.lanes import Lanes
from lanefeed_core.slices import LaneSlice
from lanefeed_core.stream import PAD
from lanefeed_sidecar.pipeline.needs import PAD_WINDOW, WindowKey, place

__all__ = ["Copy", "Shape", "copy_rows", "frame_copies", "frame_keys"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Which steps a frame holds: `steps` from (epoch, step), `rows` rank rows each; total step of the first."""

    epoch: int
    step: int
    steps: int
    rows: int
    total: int

    def cut(self, steps: int) -> "Shape":
        """The same with fewer steps."""
        return replace(self, steps=steps)


class Copy(NamedTuple):
    """Window rows to frame rows: steps [step, step + steps), rank rows [at, at + rows).

    Step k of it begins at window row first + k * stride.
    """

    key: WindowKey
    first: int
    stride: int
    step: int
    steps: int
    at: int
    rows: int


def frame_copies(lanes: Lanes, slices: list[LaneSlice], shape: Shape) -> list[Copy]:
    """The copies that make a frame, each from one window."""
    copies: list[Copy] = []
    for part in slices:
        copies += _lane_copies(lanes, part, shape)
    return copies


def frame_keys(copies: list[Copy]) -> list[WindowKey]:
    """The windows that the copies read."""
    return list(dict.fromkeys(copy.key for copy in copies))


def _lane_copies(lanes: Lanes, part: LaneSlice, shape: Shape) -> Iterator[Copy]:
    share = lanes.share(part.lane)
    if lanes.is_last_short(shape.step):
        yield from _short_copies(lanes, part, shape)
        return
    k, rows = 0, part.stop - part.start
    while k < shape.steps:
        at = place(lanes, part.lane, shape.epoch, (shape.step + k) * share)
        whole = min(at.room // share, shape.steps - k)
        if whole:
            yield Copy(at.key, at.row + part.start, share, k, whole, part.at, rows)
            k += whole
        else:
            yield from _row_copies(lanes, part, shape, k, (shape.step + k) * share, part.start, part.stop)
            k += 1


def _row_copies(
    lanes: Lanes, part: LaneSlice, shape: Shape, k: int, base: int, start: int, stop: int
) -> Iterator[Copy]:
    """One step's share rows [start, stop), which lie in several windows."""
    row = start
    while row < stop:
        at = place(lanes, part.lane, shape.epoch, base + row)
        rows = min(at.room, stop - row)
        yield Copy(at.key, at.row, 0, k, 1, part.at + row - part.start, rows)
        row += rows


def _short_copies(lanes: Lanes, part: LaneSlice, shape: Shape) -> Iterator[Copy]:
    """An epoch's last step: what the lane has left, then its padding."""
    base = lanes.full_steps * lanes.share(part.lane)
    left = lanes.lane_rows(part.lane) - base
    real = min(part.stop, left)
    if part.start < real:
        yield from _row_copies(lanes, part, shape, 0, base, part.start, real)
    if lanes.spec.last_batch == PAD and part.stop > left:
        first = max(part.start, left)
        key = WindowKey(shape.epoch, part.lane, PAD_WINDOW)
        yield Copy(key, first - left, 0, 0, 1, part.at + first - part.start, part.stop - first)


def copy_rows(out: NDArray[np.generic], source: NDArray[np.generic], copy: Copy) -> None:
    """out [K, R, ...] <- rows of a window, `source` [rows, ...]."""
    target = out[copy.step : copy.step + copy.steps, copy.at : copy.at + copy.rows]
    if copy.steps == 1:
        target[0] = source[copy.first : copy.first + copy.rows]
        return
    # A view with one row of steps: [steps, rows, ...] with the lane's share as the stride between steps.
    # The constructor is ten times quicker than as_strided, and checks the bounds of the buffer.
    shape = (copy.steps, copy.rows, *source.shape[1:])
    strides = (copy.stride * source.strides[0], *source.strides)
    target[...] = np.ndarray(shape, source.dtype, source, copy.first * source.strides[0], strides)
