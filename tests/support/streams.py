"""Strategies and oracles over streams: random datasets and sizes, and the list that an uninterrupted rank would see."""

import numpy as np
from hypothesis import strategies as st

from lanefeed_core.errors import StreamError
from lanefeed_core.lanes import Lanes
from lanefeed_core.slices import lane_slices, rank_slice
from lanefeed_core.stream import StreamSpec


@st.composite
def streams(draw: st.DrawFn, *, boundary: str | None = None, last_batch: str | None = None) -> Lanes:
    """Lanes over 1..8 shards of 1..60 rows, with any G, L, window and policies that make a stream."""
    rows = draw(st.lists(st.integers(1, 60), min_size=1, max_size=8))
    size = draw(st.integers(1, 24))
    spec = StreamSpec(
        seed=draw(st.integers(0, 2**64 - 1)),
        global_batch_size=size,
        lanes=draw(st.integers(1, size)),
        window=draw(st.sampled_from([1, 2, 5, 16, 64])),
        shuffle=draw(st.booleans()),
        boundary=boundary or draw(st.sampled_from(["Aligned", "Aligned", "Continuous"])),
        last_batch=last_batch or draw(st.sampled_from(["Drop", "Partial", "Pad"])),
    )
    try:
        return Lanes(spec, np.array(rows))
    except StreamError:
        # Too few rows for this G: keep the data, shrink the batch to one row and one lane.
        small = StreamSpec(**{**spec.to_dict(), "global_batch_size": 1, "lanes": 1})
        return Lanes(small, np.array(rows))


def steps_of(lanes: Lanes, epochs: int = 2) -> list[tuple[int, int]]:
    """(epoch, step) of every step of `epochs` epochs; for Continuous as many steps as cover them."""
    if not lanes.spec.aligned:
        return [(0, s) for s in range(epochs * lanes.rows // lanes.spec.global_batch_size + 3)]
    return [(e, s) for e in range(epochs) for s in range(lanes.steps_per_epoch)]


def rank_ids(lanes: Lanes, world: int, rank: int, epoch: int, step: int) -> list[int]:
    """What a rank reads at a step, put together from lanes alone, as the sidecar does (padding included)."""
    out: list[int] = []
    for part in lane_slices(lanes, world, rank, step):
        ids = [i for run in lanes.runs(part.lane, epoch, step, 1) for i in lanes.lane_ids(part.lane, run).tolist()]
        if lanes.is_last_short(step) and lanes.spec.last_batch == "Pad":
            ids += lanes.pad_rows(part.lane, epoch).tolist()
        assert part.at == len(out)
        out += ids[part.start : part.stop]
    low, high = rank_slice(lanes.step_rows(step), world, rank)
    assert len(out) == high - low
    return out
