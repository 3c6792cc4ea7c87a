"""Limits and pace: pure, with time as an argument."""

import heapq
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanefeed_operator.coordinator.limits import AtOnce, Buckets, PerSecond
from lanefeed_operator.coordinator.pace import MOST_SECONDS, Pacer
from lanefeed_operator.coordinator.rejected import Rejected


def test_calls_at_a_time_of_one_and_of_all() -> None:
    calls = AtOnce("calls", 2, 3)
    with calls.held("a"), calls.held("a"):
        with pytest.raises(Rejected, match="2 calls of a are under way"), calls.held("a"):
            pass
        with calls.held("b"), pytest.raises(Rejected, match="3 calls are under way here"), calls.held("c"):
            pass
    assert len(calls) == 0
    with calls.held(""), calls.held(""), calls.held(""):
        assert len(calls) == 3


def test_places_are_free_again_after_an_error() -> None:
    calls = AtOnce("calls", 1, 1)
    for _ in range(3):
        with pytest.raises(ValueError, match="x"), calls.held("a"):
            raise ValueError("x")
    assert len(calls) == 0


def test_calls_a_second() -> None:
    calls = PerSecond(3)
    assert [calls.wait("a", 5.25) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert calls.wait("b", 5.25) == 0.0
    assert calls.wait("a", 5.75) == 0.25
    assert calls.wait("a", 6.0) == 0.0


def test_a_bucket_leaks() -> None:
    buckets = Buckets(rate=2.0, burst=4.0)
    for _ in range(4):
        assert not buckets.full("a", 10.0)
        buckets.pour("a", 10.0)
    assert buckets.full("a", 10.0)
    assert not buckets.full("b", 10.0)
    assert buckets.full("a", 10.4)
    assert not buckets.full("a", 10.5)


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 2)), max_size=200))
def test_buckets_forget_the_idlest_and_never_let_more_through_than_they_may(steps: list[tuple[int, float]]) -> None:
    buckets, now, through = Buckets(rate=1.0, burst=3.0, callers=64), 0.0, 0
    few = Buckets(rate=1.0, burst=3.0, callers=8)
    for who, gap in steps:
        now += gap
        few.pour(str(who), now)
        if not buckets.full(str(who), now):
            buckets.pour(str(who), now)
            through += who == 0
    assert through <= 3.0 + now + 1e-6
    assert len(few._levels) <= 8


# ---- pace ------------------------------------------------------------------------------------------------------


def simulate(pods: int, seconds: float, *, own: float = 0.5) -> tuple[Pacer, float]:
    """Pods that report at the pace that they are told; the rate in the last third."""
    rng, pacer = random.Random(1), Pacer()
    due = [(rng.random() * own, n) for n in range(pods)]
    heapq.heapify(due)
    late = 0
    while due[0][0] < seconds:
        now, pod = heapq.heappop(due)
        pacer.seen(f"pod-{pod}", now)
        late += now > seconds * 2 / 3
        heapq.heappush(due, (now + max(own, pacer.next_seconds(rng.random())), pod))
    return pacer, late / (seconds / 3)


@pytest.mark.parametrize(("pods", "rate"), [(10, 20.0), (200, 400.0), (3000, 500.0), (12_000, 500.0)])
def test_the_rate_stays_below_what_is_wanted_and_few_pods_keep_their_own_pace(pods: int, rate: float) -> None:
    pacer, got = simulate(pods, 120.0)
    assert pacer.pods == pytest.approx(pods, rel=0.02)
    assert got == pytest.approx(rate, rel=0.15)


def test_64_000_pods_report_about_once_a_minute() -> None:
    pacer = Pacer()
    for n in range(64_000):
        pacer.seen(f"pod-{n}", 1.0)
    assert pacer.next_seconds(0.5) == MOST_SECONDS
    assert 0.9 * MOST_SECONDS <= pacer.next_seconds(0.0) < pacer.next_seconds(0.99) <= 1.1 * MOST_SECONDS
    assert pacer.next_seconds(0.5, soon=True) == 2.0


def test_an_event_loop_that_is_late_slows_everybody_and_recovers() -> None:
    pacer = Pacer()
    for n in range(500):
        pacer.seen(f"pod-{n}", 1.0)
    assert pacer.next_seconds(0.5) == 1.0
    for _ in range(3):
        pacer.late(0.5, 1.0)
    assert pacer.next_seconds(0.5) == 8.0
    for _ in range(40):
        pacer.late(0.01, 2.0)
    assert pacer.next_seconds(0.5) == 1.0


def test_pods_that_went_away_are_forgotten() -> None:
    pacer = Pacer()
    for n in range(5000):
        pacer.seen(f"pod-{n}", 1.0)
    for second in range(2, 80):
        pacer.seen("only", float(second))
    assert pacer.pods == 1
    assert pacer.next_seconds(0.5) == 0.0
