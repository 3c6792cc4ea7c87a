"""When the cache says that a row group is needed next, against walking through the stream."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lanefeed_core.lanes import Lanes
from lanefeed_core.manifest import Field, Manifest, Shard
from lanefeed_sidecar.cache import NEVER
from lanefeed_sidecar.pipeline.future import Uses
from lanefeed_sidecar.pipeline.needs import WindowKey, lane_needs
from lanefeed_sidecar.pipeline.pieces import RowGroupKey, RowGroups, window_pieces
from support.streams import streams

EPOCHS = 3


def _manifest(lanes: Lanes, draw: st.DataObject) -> Manifest:
    """The stream's shards, each cut into one to four row groups."""
    shards = []
    for number, rows in enumerate(lanes._rows_per_shard.tolist()):
        cuts = draw.draw(st.sets(st.integers(1, rows - 1), max_size=3)) if rows > 1 else set()
        sizes = tuple(np.diff([0, *sorted(cuts), rows]).tolist())
        shards.append(Shard(f"p{number:03}", 100, sizes, tuple(100 for _ in sizes), "f"))
    return Manifest(tuple(shards), (Field("x", "int64"),))


@given(streams(boundary="Aligned", last_batch="Partial"), st.data())
def test_next_use_is_the_first_later_window_that_holds_the_row_group(lanes: Lanes, draw: st.DataObject) -> None:
    groups = RowGroups(_manifest(lanes, draw))
    mine = sorted(draw.draw(st.sets(st.integers(0, lanes.spec.lanes - 1), min_size=1)))
    uses = Uses(lanes, groups, mine, EPOCHS)
    total = EPOCHS * lanes.steps_per_epoch
    walked: list[tuple[int, WindowKey, set[RowGroupKey]]] = []
    for lane in mine:
        needs = lane_needs(lanes, lane, 0, total, 10_000)
        walked += [(need.first, need.key, set(window_pieces(lanes, groups, need.key))) for need in needs]
    walked.sort(key=lambda item: item[:2])
    for first, key, holds in walked[:40]:
        for group in sorted(holds)[:3]:
            later = [f for f, k, h in walked if group in h and k != key and f >= first and k.epoch >= key.epoch]
            assert uses.next_use(group, [key]) == min(later, default=NEVER)
