"""What watches and listings bring: who is woken, what metrics know, and what nonsense in one job does to the others."""

import logging
from typing import Any

import pytest

from lanefeed_operator.kube.api import JOBS, NODES, PODS, STJS
from lanefeed_operator.render.constants import JOB_LABEL, MANAGED_BY
from lanefeed_operator.runtime.decisions import Decisions
from lanefeed_operator.runtime.facts import JobFacts
from lanefeed_operator.runtime.feed import CHILD_SECONDS, Feed
from lanefeed_operator.runtime.view import View


def stj(name: str = "a", uid: str = "u1", version: int = 1, **status: Any) -> dict[str, Any]:
    meta = {"namespace": "ns", "name": name, "uid": uid, "resourceVersion": str(version)}
    return {"metadata": meta, "spec": {"maxRestarts": 3}, "status": status}


def child(name: str, job: str = "a", version: int = 1, **more: Any) -> dict[str, Any]:
    labels = MANAGED_BY | {JOB_LABEL: job}
    meta = {"namespace": "ns", "name": name, "uid": f"uid-{name}", "labels": labels, "resourceVersion": str(version)}
    meta["creationTimestamp"] = "2026-11-30T10:00:00Z"
    return {"metadata": meta, **more}


class Bed:
    def __init__(self) -> None:
        self.now = 1000.0
        self.woken: list[tuple[tuple[str, str], float]] = []
        self.facts, self.decisions, self.view = JobFacts(), Decisions(), View()
        self.feed = Feed(
            self.view, self.facts, self.decisions, lambda k, d: self.woken.append((k, d)), lambda: self.now
        )

    def take(self) -> list[tuple[tuple[str, str], float]]:
        found, self.woken = self.woken, []
        return found


def test_a_job_is_looked_at_at_once_and_its_children_after_a_moment() -> None:
    bed = Bed()
    bed.feed.seen(STJS, stj())
    assert bed.take() == [(("ns", "a"), 0.0)]
    bed.feed.seen(JOBS, child("a-1", spec={}, status={}))
    bed.feed.seen(PODS, child("a-1-0", spec={"nodeName": "n1"}, status={"phase": "Running"}))
    assert bed.take() == [(("ns", "a"), CHILD_SECONDS)] * 2


def test_a_repeated_event_and_a_nodes_heartbeat_wake_nobody() -> None:
    bed = Bed()
    bed.feed.seen(STJS, stj())
    bed.feed.seen(PODS, child("a-1-0", spec={"nodeName": "n1"}, status={"phase": "Running"}))
    ready = [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-30T10:00:00Z"}]
    node = {"metadata": {"name": "n1", "uid": "n", "resourceVersion": "5"}, "status": {"conditions": ready}}
    bed.feed.seen(NODES, node)
    bed.take()
    bed.feed.seen(STJS, stj())
    bed.feed.seen(NODES, {**node, "metadata": {**node["metadata"], "resourceVersion": "6"}})
    assert bed.take() == []
    lost = [{"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-11-30T11:00:00Z"}]
    bed.feed.seen(NODES, {"metadata": {**node["metadata"], "resourceVersion": "7"}, "status": {"conditions": lost}})
    assert bed.take() == [(("ns", "a"), CHILD_SECONDS)]


def test_a_listing_finds_what_went_while_no_watch_was_looking() -> None:
    bed = Bed()
    for name, uid in (("a", "u1"), ("b", "u2")):
        bed.feed.seen(STJS, stj(name, uid))
    bed.take()
    bed.feed.listed(STJS, [stj("b", "u2")], bed.view.stamp())
    assert bed.take() == [(("ns", "a"), 0.0)]
    assert bed.view.keys() == [("ns", "b")]
    assert [job.name for job in bed.facts.all(0.0)] == ["b"]


def test_what_came_while_the_listing_ran_is_not_taken_for_gone() -> None:
    bed = Bed()
    since = bed.view.stamp()
    bed.feed.seen(STJS, stj("new", "u9", 50))
    bed.feed.listed(STJS, [], since)
    assert bed.view.keys() == [("ns", "new")]


def test_a_job_that_went_takes_its_gauges_with_it() -> None:
    bed = Bed()
    bed.feed.seen(STJS, stj(state="Running", planGeneration=2))
    assert len(bed.facts.all(0.0)) == 1
    bed.feed.gone(STJS, stj(version=2))
    assert bed.facts.all(0.0) == []
    assert bed.decisions._last == {}


@pytest.mark.parametrize(
    "status",
    [
        {"plan": {"time": "time"}},
        {"plan": {"failures": {"0": "many"}}},
        {"restarts": {"failures": "three"}},
        {"conditions": [{"type": "Ready"}]},
        {"cursor": ["no", "cursor"]},
        {"plan": "none"},
    ],
    ids=str,
)
def test_nonsense_in_one_jobs_status_harms_no_other(status: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """A status is written by us alone, until somebody edits it (seen: it ended the operator at every start)."""
    caplog.set_level(logging.WARNING)
    bed = Bed()
    good = stj("good", "u2", state="Running", planGeneration=1)
    bed.feed.listed(STJS, [stj("bad", "u1", **status), good], bed.view.stamp())
    bed.feed.seen(STJS, stj("bad", "u1", 2, **status))
    assert set(bed.view.keys()) == {("ns", "bad"), ("ns", "good")}
    assert [job.state for job in bed.facts.all(0.0) if job.name == "good"] == ["Running"]
    assert all("ns/bad" in record.getMessage() for record in caplog.records)
