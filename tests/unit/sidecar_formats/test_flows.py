"""Readings of huge row groups: gone on with where a window ended, each lane at its own place, within a budget."""

from collections.abc import Iterator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lanefeed_sidecar.formats import Chunk
from lanefeed_sidecar.formats.chunk import FixedChunk
from lanefeed_sidecar.pipeline.flows import Flow, Flows, ranges
from lanefeed_sidecar.pipeline.pieces import Piece, RowGroupKey

GROUP, ROWS = RowGroupKey(0, 0), 1000


def chunks(size: int, rows: int = ROWS) -> Iterator[Chunk]:
    for at in range(0, rows, size):
        yield Chunk(min(size, rows - at), [FixedChunk(np.arange(at, min(rows, at + size)))])


def read(flow: Flow, low: int, high: int) -> list[int]:
    found: list[int] = []
    for first, chunk in flow.until(low, high):
        values = chunk.columns[0].values.tolist()
        assert values[0] == first
        found += [v for v in values if low <= v < high]
    return found


@given(st.integers(1, 70), st.integers(1, 90), st.integers(1, 5))
def test_lanes_that_go_on_read_every_row_once_and_pass_over_the_rows_before_them(
    size: int, window: int, lanes: int
) -> None:
    """Windows of all lanes in turn; a reading for each lane, whatever the sizes of chunks and windows."""
    flows, opened, passed = Flows(1000, lambda _: None), 0, 0
    part = ROWS // lanes
    for at in range(0, part, window):
        for lane in range(lanes):
            low, high = lane * part + at, lane * part + min(part, at + window)
            flow = flows.take(GROUP, low)
            if flow is None:
                opened += 1
                flow = Flow(chunks(size), nbytes=10)
            before = flow.read
            assert read(flow, low, high) == list(range(low, high))
            passed += flow.read - before
            flows.leave(GROUP, flow)
    assert opened <= lanes
    assert passed <= ROWS * (1 + lanes) / 2 + lanes * (size + window)


def test_readers_that_are_ahead_of_each_other_in_turn_pass_over_the_rows_once_each() -> None:
    """Two ranks of a lane: what one has read is gone when the other comes to it, or still there, in turn."""
    flows, passed, burst = Flows(1000, lambda _: None), 0, 50
    for at in range(0, ROWS, burst):
        for _ in range(2):
            # The second one reads the first's rows for itself in every other burst only.
            for low in range(at, at + burst, 10):
                flow = flows.take(GROUP, low) or Flow(chunks(10), nbytes=10)
                before = flow.read
                assert read(flow, low, low + 10) == list(range(low, low + 10))
                passed += flow.read - before
                flows.leave(GROUP, flow)
            if at // burst % 2:
                break
    assert passed <= 2 * ROWS


def test_the_budget_closes_what_was_left_longest_ago_and_says_what_is_held() -> None:
    held: list[int] = []
    flows = Flows(25, held.append)
    for start in (0, 300, 600):
        flow = Flow(chunks(10), nbytes=10)
        read(flow, start, start + 15)
        flows.leave(GROUP, flow)
    assert max(held) <= 30
    assert held[-1] == 20
    assert flows.take(GROUP, 299) is None
    assert flows.take(RowGroupKey(0, 1), 315) is None
    assert flows.take(GROUP, 315) is not None
    assert flows.room(10) == 2
    assert flows.room(1000) == 1
    flows.keep(lambda _: False)
    assert held[-1] == 0


def test_ranges_that_lie_near_are_one_and_too_many_are_one() -> None:
    def piece(low: int, high: int) -> Piece:
        return Piece(slice(low, high), 0)

    pieces = [piece(500, 600), piece(0, 10), piece(12, 20), Piece(np.array([905, 902]), 0)]
    assert ranges(pieces, 5, 3) == [(0, 20), (500, 600), (902, 906)]
    assert ranges(pieces, 5, 2) == [(0, 906)]
    assert ranges([], 5, 1) == []
