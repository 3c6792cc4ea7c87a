"""Workers: one pass per job at a time, failures stay their own, and stopping finishes what is at hand."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from lanefeed_operator.errors import ReconcileError
from lanefeed_operator.kube.api import Conflict, Forbidden, Unreachable
from lanefeed_operator.runtime.workers import JobKey, Workers

A, B = ("ns", "a"), ("ns", "b")


def until(what: str, check: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
        time.sleep(0.005)


@contextmanager
def working(
    run: Callable[[JobKey], float | None],
    *,
    threads: int = 2,
    passed: Callable[[JobKey, str, float], None] = lambda *_: None,
) -> Iterator[Workers]:
    workers = Workers(run, threads=threads, passed=passed, seed=1)
    workers.start()
    try:
        yield workers
    finally:
        assert workers.stop(60.0)


def test_a_job_is_never_looked_at_twice_at_once_and_what_comes_in_meanwhile_is_one_more_pass() -> None:
    inside, most, passes = Counter[JobKey](), Counter[JobKey](), Counter[JobKey]()
    lock, go = threading.Lock(), threading.Event()

    def run(key: JobKey) -> None:
        with lock:
            inside[key] += 1
            most[key] = max(most[key], inside[key])
        go.wait(60)
        with lock:
            inside[key] -= 1
            passes[key] += 1

    with working(run, threads=4) as workers:
        workers.wake(A)
        until("the first pass", lambda: inside[A] == 1)
        for _ in range(100):
            workers.wake(A)
            workers.wake(B)
        until("the other job's pass", lambda: inside[B] == 1)
        go.set()
        until("the queue to empty", lambda: workers.state().jobs == 0)
    assert most == {A: 1, B: 1}
    assert passes[A] == 2


def test_a_pass_that_takes_long_holds_up_no_job_that_is_due_a_moment_later() -> None:
    go, seen = threading.Event(), list[JobKey]()

    def run(key: JobKey) -> None:
        seen.append(key)
        if key == A:
            assert go.wait(60)

    with working(run, threads=3) as workers:
        # All sleep: the first one is told of A; of B nobody, since it is due after what somebody waits for.
        time.sleep(0.1)
        workers.wake(A, 0.1)
        workers.wake(B, 0.15)
        try:
            until("the other job's pass", lambda: B in seen, 30)
        finally:
            go.set()


def test_a_pass_says_when_it_wants_to_look_again() -> None:
    at: list[float] = []

    def run(key: JobKey) -> float | None:
        at.append(time.monotonic())
        return 0.2 if len(at) < 3 else None

    with working(run) as workers:
        workers.wake(A)
        until("three passes", lambda: len(at) == 3)
        until("the queue to empty", lambda: workers.state().jobs == 0)
    assert at[1] - at[0] >= 0.2
    assert at[2] - at[1] >= 0.2


def test_a_later_wish_does_not_hide_a_sooner_one() -> None:
    seen = threading.Event()
    with working(lambda key: seen.set()) as workers:
        workers.wake(A, 60.0)
        assert not seen.wait(0.1)
        workers.wake(A, 0.0)
        assert seen.wait(60)


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (Conflict("old copy"), "conflict"),
        (Unreachable("no answer", code=503), "unreachable"),
        (Forbidden("no right"), "refused"),
        (ReconcileError("a status of tomorrow"), "error"),
        (ZeroDivisionError("ours"), "crash"),
    ],
)
def test_one_jobs_failure_is_counted_and_tried_again_and_harms_no_other(
    error: Exception, result: str, caplog: pytest.LogCaptureFixture
) -> None:
    results: list[tuple[JobKey, str]] = []
    failing = iter([error, error])

    def run(key: JobKey) -> None:
        if key == A:
            for found in failing:
                raise found

    def passed(key: JobKey, what: str, _: float) -> None:
        results.append((key, what))

    caplog.set_level(logging.DEBUG)
    with working(run, passed=passed) as workers:
        workers.wake(A)
        workers.wake(B)
        until("both to be done", lambda: {(A, "ok"), (B, "ok")} <= set(results))
    assert [what for key, what in results if key == A] == [result, result, "ok"]
    assert "job ns/a" in caplog.text
    assert "ns/b" not in caplog.text


def test_a_job_that_fails_all_night_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    count = 0

    def run(key: JobKey) -> None:
        nonlocal count
        count += 1
        if count <= 5:
            raise Unreachable("no answer", retry_after=0.01)

    caplog.set_level(logging.WARNING)
    with working(run) as workers:
        workers.wake(A)
        until("it to go through", lambda: count == 6)
    lines = [r.getMessage() for r in caplog.records]
    assert [line.split("(")[1].split()[0] for line in lines] == ["1", "2", "4"]


def test_stopping_finishes_the_pass_at_hand_and_begins_no_other() -> None:
    begun, go, ended = threading.Event(), threading.Event(), []

    def run(key: JobKey) -> None:
        begun.set()
        go.wait(60)
        ended.append(key)

    workers = Workers(run, threads=1, passed=lambda *_: None)
    workers.start()
    workers.wake(A)
    assert begun.wait(60)
    workers.wake(B)
    assert not workers.stop(0.05), "the pass is still at hand"
    go.set()
    assert workers.stop(60.0)
    assert ended == [A]


def test_the_queue_says_how_it_stands() -> None:
    go = threading.Event()
    with working(lambda key: go.wait(60) and None, threads=1) as workers:
        workers.wake(A)
        until("the pass", lambda: workers.state().longest_pass > 0)
        workers.wake(B)
        until("the other to wait", lambda: workers.state().oldest > 0)
        assert (workers.state().depth, workers.state().jobs) == (1, 2)
        go.set()
        until("the queue to empty", lambda: workers.state().jobs == 0)


def test_a_thousand_jobs_are_spread() -> None:
    keys = [("ns", str(n)) for n in range(1000)]
    workers = Workers(lambda key: None, threads=1, passed=lambda *_: None)
    workers.wake_all(keys, 100.0)
    assert workers.state().depth <= 2
    assert workers.state().jobs == 1000
