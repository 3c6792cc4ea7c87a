"""The work queue: what a user of it relies on, and a machine that compares it with a naive model."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from lanefeed_operator.runtime import queue as queue_module
from lanefeed_operator.runtime.queue import CALM_SECONDS, FIRST_BACKOFF, MAX_BACKOFF, MAX_HURRY, WorkQueue


def new(seed: int = 0) -> WorkQueue[str]:
    return WorkQueue(random.Random(seed))


def test_many_asks_are_one_pass() -> None:
    queue = new()
    for at in (5.0, 3.0, 4.0, 3.0):
        queue.add("a", at)
    assert queue.next_due() == 3.0
    assert queue.take(2.9) is None
    assert queue.take(3.0) == "a"
    queue.done("a", 3.1)
    assert queue.take(100.0) is None
    assert len(queue) == 0


def test_one_worker_per_key_and_one_more_pass_for_all_that_came_meanwhile() -> None:
    queue = new()
    queue.add("a", 0.0)
    assert queue.take(0.0) == "a"
    queue.add("a", 0.1)
    queue.add("a", 0.2)
    assert queue.take(1.0) is None, "its pass is not over"
    queue.done("a", 1.0, again_in=60.0)
    assert queue.take(1.0) == "a", "what came in during the pass is looked at now, not in a minute"
    queue.done("a", 1.1)
    assert len(queue) == 0


def test_the_longest_due_comes_first() -> None:
    queue = new()
    for key, at in (("late", 2.0), ("first", 1.0), ("last", 3.0)):
        queue.add(key, at)
    assert [queue.take(9.0) for _ in range(3)] == ["first", "late", "last"]


def test_failures_back_off_and_nothing_shortens_the_wait() -> None:
    queue, now, delays = new(), 0.0, []
    queue.add("a", now)
    for _ in range(12):
        assert queue.take(now) == "a"
        delay = queue.failed("a", now)
        delays.append(delay)
        queue.add("a", now)
        assert queue.take(now + delay - 1e-6) is None, "an event must not turn a failing pass into a hot loop"
        now += delay
    for number, delay in enumerate(delays):
        longest = min(MAX_BACKOFF, FIRST_BACKOFF * 2**number)
        assert longest / 2 <= delay <= longest
    assert queue.take(now) == "a"
    queue.done("a", now, again_in=0.0)
    queue.take(now)
    assert queue.failed("a", now) <= FIRST_BACKOFF, "a success forgets the failures"


def test_the_server_may_ask_for_longer() -> None:
    queue = new()
    queue.add("a", 0.0)
    queue.take(0.0)
    assert queue.failed("a", 0.0, retry_after=45.0) == 45.0
    assert queue.next_due() == 45.0


def test_keys_that_fail_together_are_spread() -> None:
    queue = new()
    delays = set()
    for number in range(20):
        queue.add(str(number), 0.0)
        key = queue.take(0.0)
        assert key is not None
        delays.add(queue.failed(key, 0.0))
    assert len(delays) == 20


def test_a_pass_that_always_wants_another_at_once_is_calmed() -> None:
    queue, now = new(), 0.0
    queue.add("a", now)
    for _ in range(MAX_HURRY):
        assert queue.take(now) == "a"
        queue.done("a", now, again_in=0.0)
    assert queue.take(now) == "a"
    queue.done("a", now, again_in=0.0)
    assert queue.take(now) is None
    assert queue.next_due() == now + CALM_SECONDS


def test_what_metrics_ask() -> None:
    queue = new()
    assert (queue.oldest(5.0), queue.depth(5.0), queue.longest_pass(5.0)) == (0.0, 0, 0.0)
    queue.add("a", 1.0)
    queue.add("b", 2.0)
    queue.add("later", 50.0)
    assert (queue.depth(5.0), queue.oldest(5.0)) == (2, 4.0)
    assert queue.take(5.0) == "a"
    assert (queue.depth(6.0), queue.oldest(6.0), queue.longest_pass(8.0), queue.running()) == (1, 4.0, 3.0, 1)


def test_misuse_is_an_error() -> None:
    queue = new()
    with pytest.raises(RuntimeError, match="not being looked at"):
        queue.done("a", 0.0)
    queue.add("a", 0.0)
    queue.take(0.0)
    queue.done("a", 0.0, again_in=1.0)
    with pytest.raises(RuntimeError, match="not being looked at"):
        queue.failed("a", 0.0)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(0, 10)), max_size=60))
def test_a_thousand_jobs_that_come_and_go_leave_nothing(asks: list[tuple[str, float]]) -> None:
    queue = new()
    for key, at in asks:
        queue.add(key, at)
    while (key := queue.take(100.0)) is not None:
        queue.done(key, 100.0)
    assert len(queue) == 0
    assert queue.next_due() is None


class Machine(RuleBasedStateMachine):
    """The queue beside a dictionary that is searched through at every take."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = new(1)
        self.now = 0.0
        #: key -> (due, floor); a running key has its next due, or None.
        self.due: dict[str, float | None] = {}
        self.floor: dict[str, float] = {}
        self.running: set[str] = set()

    def at(self, key: str) -> float | None:
        due = self.due.get(key)
        return None if due is None else max(due, self.floor.get(key, float("-inf")))

    @rule(key=st.sampled_from("abcd"), ahead=st.floats(-3, 10))
    def add(self, key: str, ahead: float) -> None:
        at = self.now + ahead
        self.queue.add(key, at)
        old = self.due.get(key)
        self.due[key] = at if old is None else min(old, at)

    @rule(seconds=st.floats(0, 7))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def take(self) -> None:
        ready = {k: self.at(k) for k in self.due if k not in self.running and self.at(k) is not None}
        ready = {k: at for k, at in ready.items() if at is not None and at <= self.now}
        got = self.queue.take(self.now)
        if not ready:
            assert got is None
            return
        assert got is not None
        assert ready.get(got) == min(at for at in ready.values() if at is not None)
        self.running.add(got)
        self.due[got] = None

    @precondition(lambda self: self.running)
    @rule(data=st.data(), again=st.one_of(st.none(), st.floats(1, 20)))
    def done(self, data: st.DataObject, again: float | None) -> None:
        key = data.draw(st.sampled_from(sorted(self.running)))
        self.queue.done(key, self.now, again)
        self.running.remove(key)
        self.floor.pop(key, None)
        wanted = [t for t in (self.due[key], None if again is None else self.now + again) if t is not None]
        if wanted:
            self.due[key] = min(wanted)
        else:
            del self.due[key]

    @precondition(lambda self: self.running)
    @rule(data=st.data(), retry=st.one_of(st.none(), st.floats(0, 30)))
    def failed(self, data: st.DataObject, retry: float | None) -> None:
        key = data.draw(st.sampled_from(sorted(self.running)))
        delay = self.queue.failed(key, self.now, retry)
        assert delay >= (retry or 0.0)
        self.running.remove(key)
        self.due[key] = self.floor[key] = self.now + delay

    @invariant()
    def knows_the_same(self) -> None:
        assert len(self.queue) == len(self.due)
        waiting = [at for k in self.due if k not in self.running and (at := self.at(k)) is not None]
        assert self.queue.next_due() == min(waiting, default=None)
        assert self.queue.depth(self.now) == sum(1 for at in waiting if at <= self.now)
        assert self.queue.running() == len(self.running)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a_key_that_waits_for_days_and_is_looked_at_all_the_time_leaves_no_heap_of_entries() -> None:
    queue, now = new(), 0.0
    for key in ("a", "b"):
        queue.add(key, 7 * 86_400.0)
    for _ in range(500):
        now += 600.0
        queue.add("a", now)
        assert queue.take(now) == "a"
        queue.done("a", now, again_in=7 * 86_400.0 - now)
    assert len(queue._heap) <= queue_module.SPARE_ENTRIES + queue_module.MAX_ENTRIES * 2
    assert queue.next_due() == 7 * 86_400.0
    assert {queue.take(7 * 86_400.0) for _ in range(2)} == {"a", "b"}


def test_sweeping_at_every_step_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "SPARE_ENTRIES", 0)
    monkeypatch.setattr(queue_module, "MAX_ENTRIES", 1)
    run_state_machine_as_test(Machine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))
