"""The order's promises, for any dataset, sizes and chain of world sizes (G1, G2, G3, G5)."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanefeed_core import expected, ledger
from lanefeed_core.cursor import Cursor
from lanefeed_core.errors import StreamError
from lanefeed_core.lanes import Lanes
from lanefeed_core.slices import World, rank_lanes
from lanefeed_core.stream import StreamSpec
from support.streams import rank_ids, steps_of, streams


@given(streams(), st.data())
def test_any_chain_of_world_sizes_gives_the_uninterrupted_order(lanes: Lanes, data: st.DataObject) -> None:
    """Concatenated global batches over any (world size, number of steps) chain equal one rank's, element by element."""
    steps = steps_of(lanes)
    alone = [rank_ids(lanes, 1, 0, e, s) for e, s in steps]
    elastic, at = [], 0
    while at < len(steps):
        world = data.draw(st.integers(1, lanes.spec.global_batch_size), label="world")
        run = data.draw(st.integers(1, 6), label="steps")
        for epoch, step in steps[at : at + run]:
            elastic.append([i for rank in range(world) for i in rank_ids(lanes, world, rank, epoch, step)])
        at += run
    assert elastic == alone
    assert alone == [lanes.batch(e, s)[0].tolist() for e, s in steps]


@given(streams(boundary="Aligned"))
def test_an_aligned_epoch_is_a_permutation_of_the_rows_less_what_policy_drops(lanes: Lanes) -> None:
    for epoch in (0, 1, 7):
        seen: Counter[int] = Counter()
        for step in range(lanes.steps_per_epoch):
            ids, mask = lanes.batch(epoch, step)
            seen.update(ids[mask].tolist())
        assert set(seen.values()) == {1}
        assert len(seen) == lanes.rows - lanes.dropped()


@given(streams(boundary="Continuous"))
def test_continuous_lanes_repeat_no_sample_before_their_lane_is_through(lanes: Lanes) -> None:
    """In every lane each run of lane_rows consecutive samples is a permutation of the lane's rows of that epoch."""
    for lane in range(lanes.spec.lanes):
        rows = lanes.lane_rows(lane)
        steps = 2 * rows // lanes.share(lane) + 2
        runs = lanes.runs(lane, 0, 0, steps)
        got = np.concatenate([lanes.lane_ids(lane, run) for run in runs])
        assert len(got) == steps * lanes.share(lane)
        assert len(set(got[:rows].tolist())) == rows
        assert sum(run.stop - run.start for run in runs if run.epoch == 0) == rows


@given(streams(), st.integers(0, 3), st.data())
def test_position_is_the_inverse_of_batch(lanes: Lanes, epoch: int, data: st.DataObject) -> None:
    sample = data.draw(st.integers(0, lanes.rows - 1))
    place = lanes.position(epoch, sample)
    if place is None:
        assert lanes.spec.last_batch == "Drop"
        return
    step, row = place
    ids, mask = lanes.batch(epoch if lanes.spec.aligned else 0, step)
    assert ids[row] == sample
    assert mask[row]


@given(streams(boundary="Aligned"))
def test_dropped_samples_are_those_without_a_position(lanes: Lanes) -> None:
    nowhere = [i for i in range(lanes.rows) if lanes.position(2, i) is None]
    assert len(nowhere) == lanes.dropped()


@given(streams(boundary="Aligned"), st.data())
def test_the_ledger_of_any_chain_is_what_the_manifest_says(lanes: Lanes, data: st.DataObject) -> None:
    world = data.draw(st.integers(1, lanes.spec.global_batch_size))
    total = ledger.Ledger()
    for step in range(lanes.steps_per_epoch):
        assert expected.prefix(lanes, Cursor(3, step)) == total
        ids, mask = lanes.batch(3, step)
        cuts = [len(ids) * r // world for r in range(world + 1)]
        for low, high in pairwise(cuts):
            part = ids[low:high][mask[low:high]]
            total.add(3, len(part), ledger.sum_ids(part))
    total.check(3, expected.epoch_entry(lanes, 3))


@given(streams(), st.data())
def test_a_rank_reads_no_lane_outside_its_list(lanes: Lanes, data: st.DataObject) -> None:
    world = data.draw(st.integers(1, lanes.spec.global_batch_size))
    rank = data.draw(st.integers(0, world - 1))
    mine = set(rank_lanes(lanes, world, rank))
    for epoch, step in steps_of(lanes, 1):
        ids = rank_ids(lanes, world, rank, epoch, step)
        if lanes.spec.aligned and not lanes.is_last_short(step):
            for sample in ids:
                place = lanes.position(epoch, sample)
                assert place is not None
                owner = [x for x in range(lanes.spec.lanes) if lanes.offset(x) <= place[1] < lanes.offset(x + 1)]
                assert owner[0] in mine


@given(st.integers(1, 40), st.integers(1, 60))
def test_uneven_worlds_are_refused_unless_allowed(size: int, world: int) -> None:
    if world > size:
        with pytest.raises(StreamError, match="a rank would get no sample"):
            World(world, allow_uneven=True).check(size)
    elif size % world:
        with pytest.raises(StreamError, match=r"set batching\.uneven to Allow, or use"):
            World(world).check(size)
        World(world, allow_uneven=True).check(size)
    else:
        World(world).check(size)


@settings(max_examples=20)
@given(st.integers(0, 2**64 - 1))
def test_position_costs_no_more_at_the_end_of_a_huge_dataset(seed: int) -> None:
    """O(1): a million shards of a million rows; nothing is replayed or materialised but one window and the line."""
    spec = StreamSpec(seed=seed, global_batch_size=512, lanes=64, window=1024, shuffle=False)
    lanes = Lanes(spec, np.full(1000, 10**9))
    step = lanes.full_steps - 1
    ids, _ = lanes.batch(5, step)
    assert lanes.position(5, int(ids[17])) == (step, 17)
