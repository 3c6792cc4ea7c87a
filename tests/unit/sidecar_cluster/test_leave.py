"""The preStop hook: SIGTERM is held up while ranks leave with a checkpoint, and no longer than there is reason for."""

import threading
import urllib.error
import urllib.request
from dataclasses import dataclass, field

import pytest

from lanefeed_sidecar.feed.leave import ASK_SECONDS, Leave
from lanefeed_sidecar.metrics.health import Health
from lanefeed_sidecar.metrics.http import MAX_LEAVING, MetricsServer


@dataclass
class Life:
    alive: bool = True
    ended: bool = False


@dataclass
class World:
    """Ranks, and a clock that goes on while somebody sleeps; `events` happen at their times."""

    now: float = 1000.0
    stop_heard: float | None = None
    barred: Exception | None = None
    alone: bool = False
    ranks: dict[int, Life] = field(default_factory=lambda: {0: Life(), 1: Life()})
    events: list[tuple[float, str]] = field(default_factory=list)

    def lives(self) -> dict[int, Life]:
        return self.ranks

    def stop_wanted(self) -> None:
        """A job of one pod agrees with itself."""
        self.stop_heard = self.now if self.alone else self.stop_heard

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for at, what in self.events:
            if self.now >= at:
                self.happen(what, at)

    def happen(self, what: str, at: float) -> None:
        if what == "stop":
            self.stop_heard = at
        elif what == "bar":
            self.barred = RuntimeError()
        else:
            self.ranks[int(what)].alive = False

    def waits(self, seconds: float = 60.0) -> tuple[str, float]:
        began = self.now
        why = Leave(self, lambda: self.now, self.sleep).wait(seconds)
        return why, self.now - began


def test_nobody_trains_nobody_waits() -> None:
    assert World(ranks={}).waits() == ("no rank trains", 0.0)
    assert World(ranks={0: Life(ended=True), 1: Life(alive=False)}).waits() == ("no rank trains", 0.0)


def test_it_waits_until_all_have_left_at_the_agreed_step() -> None:
    why, took = World(events=[(1001.0, "stop"), (1010.0, "0"), (1030.0, "1")]).waits()
    assert why == "no rank trains"
    assert took == pytest.approx(30, abs=0.3)


def test_a_job_of_one_pod_needs_nobody_to_ask() -> None:
    why, took = World(alone=True, ranks={0: Life()}, events=[(1020.0, "0")]).waits()
    assert (why, round(took)) == ("no rank trains", 20)


def test_where_no_stop_is_asked_for_it_is_over_soon() -> None:
    why, took = World().waits()
    assert why == "no stop was asked for within 6 s"
    assert took == pytest.approx(ASK_SECONDS, abs=0.3)


def test_ranks_that_do_not_leave_are_given_their_time_from_the_stop_on() -> None:
    why, took = World(events=[(1002.0, "stop")]).waits(20)
    assert why == "ranks [0, 1] did not leave within 20 s of the stop"
    assert took == pytest.approx(22, abs=0.3)
    assert World(stop_heard=900.0).waits(60) == ("ranks [0, 1] did not leave within 60 s of the stop", 0.0)


def test_a_pod_that_was_replaced_is_not_waited_for() -> None:
    assert World(events=[(1001.0, "bar")]).waits()[0] == "nobody may train here any more"


def test_over_http_and_never_in_the_way_of_probes() -> None:
    server = MetricsServer("127.0.0.1", 0, Health())
    hold, seen = threading.Event(), []

    def leave(seconds: float) -> str:
        seen.append(seconds)
        hold.wait(60)
        return "no rank trains"

    def get(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{server.address}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""

    assert get("/leave?seconds=3&job=")[0] == 403, "nobody may before the job is known"
    server.leave_key = "u-1"
    try:
        assert get("/leave?seconds=3&job=u-1") == (200, "nothing runs yet\n")
        server.leave = leave
        answers: list[tuple[int, str]] = []
        threads = [
            threading.Thread(target=lambda: answers.append(get("/leave?seconds=50&job=u-1")))
            for _ in range(MAX_LEAVING)
        ]
        for thread in threads:
            thread.start()
        deadline = threading.Event()
        for _ in range(1200):
            if len(seen) == MAX_LEAVING:
                break
            deadline.wait(0.05)
        assert get("/leave?seconds=50&job=u-1")[0] == 503
        assert get("/healthz") == (200, "ok\n")
        # Whoever does not know the job takes no place, and is never waited for.
        assert [get(f"/leave?seconds=1{more}")[0] for more in ("", "&job=u-2", "&job=", "&job=%ff")] == [403] * 4
        hold.set()
        for thread in threads:
            thread.join(60)
        assert answers == [(200, "no rank trains\n")] * MAX_LEAVING
        assert seen == [50.0] * MAX_LEAVING
        assert {get(f"/leave?{more}job=u-1")[0] for more in ("seconds=-1&", "seconds=x&", "")} == {200}
        assert seen[-3:] == [0.0] * 3
    finally:
        hold.set()
        server.close()
