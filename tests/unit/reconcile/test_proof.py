"""The proof of epochs in Continuous streams, where lanes end their epochs apart, and the job ends inside of them."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lanefeed_core.book import JobCommit
from lanefeed_core.lanes import Lanes
from lanefeed_core.ledger import Ledger, sum_ids
from lanefeed_operator.coordinator.proof import Prover
from support.streams import streams


def consumed(lanes: Lanes, start: int, until: int) -> Ledger:
    """What is consumed in total steps [start, until), counted id by id."""
    found = Ledger()
    for total in range(start, until):
        epoch, step = divmod(total, lanes.steps_per_epoch) if lanes.spec.aligned else (0, total)
        for lane in range(lanes.spec.lanes):
            for run in lanes.runs(lane, epoch, step, 1):
                ids = lanes.lane_ids(lane, run)
                found.add(run.epoch, len(ids), sum_ids(np.ascontiguousarray(ids)))
    return found


@settings(max_examples=60, deadline=None)
@given(streams(), st.lists(st.integers(1, 40), min_size=1, max_size=6), st.data())
def test_any_chain_is_proven_and_a_lost_sample_is_not(lanes: Lanes, gaps: list[int], data: st.DataObject) -> None:
    if lanes.spec.aligned and lanes.steps_per_epoch < 1:
        return
    total = sum(gaps)
    prover, kept, step = Prover(lanes, total), JobCommit(0, "", 0, Ledger()), 0
    lost = data.draw(st.one_of(st.none(), st.integers(0, total - 1)), label="step whose first sample is lost")
    wrong = False
    for gap in gaps:
        ledger = kept.ledger + consumed(lanes, step, step + gap)
        if lost is not None and step <= lost < step + gap:
            part = consumed(lanes, lost, lost + 1)
            epoch = part.epochs[0]
            ledger.add(epoch, -1, 12345)
        checked = prover.check(step, JobCommit(step + gap, "", 1, ledger))
        wrong = wrong or bool(checked.mismatch)
        kept, step = checked.commit, step + gap
    assert wrong == (lost is not None)
    assert len(kept.ledger.epochs) <= 2 + len({e for e in kept.ledger.epochs if e >= prover.finished(step)})
