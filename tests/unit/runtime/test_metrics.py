"""What Prometheus sees of the operator, and that a job takes its series with it."""

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lanefeed_operator.api.status import to_time
from lanefeed_operator.kube.api import Conflict, Unreachable
from lanefeed_operator.runtime.facts import KNOWN_STATES, JobFacts
from lanefeed_operator.runtime.metrics import Metrics
from lanefeed_operator.runtime.workers import QueueState

ROOT = Path(__file__).resolve().parents[3]
NOW = 1_800_000_000.0


def stj(name: str = "a", uid: str = "u1", version: int = 1, **status: Any) -> dict[str, Any]:
    meta = {"namespace": "ns", "name": name, "uid": uid, "resourceVersion": str(version)}
    return {"metadata": meta, "spec": {"maxRestarts": 3}, "status": status}


def scraped(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = metrics.page()[2].decode()
    families = text_string_to_metric_families(text)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return scraped(metrics).get((f"lanefeed_operator_{name}", tuple(sorted(labels.items()))))


def test_what_happens_is_counted() -> None:
    m = Metrics(lambda: NOW)
    m.passed("ok", 0.02)
    m.passed("conflict", 0.2)
    m.request("get", 200, 0.1)
    m.request("get", 0, 5.0)
    m.wrote_status(None)
    m.wrote_status(Conflict("old"))
    m.wrote_status(Unreachable("away"))
    m.queue = lambda: QueueState(depth=3, oldest=1.5, longest_pass=0.0, jobs=9)
    m.watches = lambda: {"pods": 7.0}
    m.reports = lambda: {"ok": 5, "fenced": 2}
    m.leader = lambda: True
    assert value(m, "reconcile_total", result="ok") == 1
    assert value(m, "reconcile_seconds_count") == 2
    assert value(m, "reconcile_seconds_bucket", le="0.1") == 1
    assert value(m, "api_requests_total", verb="get", code="0") == 1
    assert [value(m, "status_writes_total", result=r) for r in ("ok", "conflict", "error")] == [1, 1, 1]
    assert (value(m, "queue_depth"), value(m, "queue_oldest_seconds"), value(m, "leader")) == (3, 1.5, 1)
    assert value(m, "watch_age_seconds", resource="pods") == 7
    assert (value(m, "reports_total", result="fenced"), value(m, "reports_total", result="stale")) == (2, 0)
    assert any(name == "lanefeed_operator_build_info" for name, _ in scraped(m))


def test_what_a_pass_waits_for_the_api_server_is_not_its_own() -> None:
    m = Metrics(lambda: NOW)
    m.request("get", 200, 0.4)
    m.request("patch", 200, 0.5)
    # Another thread's requests are another pass's.
    other = threading.Thread(target=m.request, args=("get", 200, 30.0))
    other.start()
    other.join()
    m.passed("ok", 1.0)
    m.passed("ok", 1.0)
    assert value(m, "decision_seconds_sum") == pytest.approx(0.1 + 1.0)
    assert value(m, "reconcile_seconds_sum") == pytest.approx(2.0)


def test_a_running_job_and_what_becomes_of_its_series() -> None:
    now = [NOW]
    m = Metrics(lambda: now[0])
    running = {
        "state": "Running",
        "planGeneration": 4,
        "plan": {"time": to_time(NOW - 50), "failures": {"0": 1, "3": 2}},
    }
    m.facts.note(stj(**running), NOW)
    assert value(m, "jobs", state="Running") == 1
    assert value(m, "jobs", state="Failed") == 0
    assert value(m, "plan_generation", namespace="ns", stj="a") == 4
    assert value(m, "restart_budget_left", namespace="ns", stj="a") == 1
    assert value(m, "commit_age_seconds", namespace="ns", stj="a") == pytest.approx(50, abs=0.01)
    m.facts.note(stj(version=2, **running, cursor={"totalStep": 7}), NOW + 60)
    now[0] = NOW + 75
    assert value(m, "commit_age_seconds", namespace="ns", stj="a") == pytest.approx(15, abs=0.01)
    m.facts.note(stj(version=3, **(running | {"state": "Suspended"})), NOW + 80)
    assert value(m, "commit_age_seconds", namespace="ns", stj="a") is None
    assert value(m, "restart_budget_left", namespace="ns", stj="a") == 1
    m.facts.note(stj(version=4, **(running | {"state": "Complete"})), NOW + 90)
    assert value(m, "restart_budget_left", namespace="ns", stj="a") is None
    m.facts.forget("u1")
    assert not [name for name, labels in scraped(m) if ("stj", "a") in labels]
    assert value(m, "jobs", state="Complete") == 0


def test_restarts_are_counted_from_our_time_on_and_never_twice() -> None:
    facts = JobFacts()
    facts.note(stj(version=5, restarts={"failures": 7}), NOW)
    assert facts.restarts()["failures"] == 0, "what a former operator counted is not counted again"
    facts.note(stj(version=6, restarts={"failures": 9, "disruptions": 1}), NOW)
    facts.note(stj(version=6, restarts={"failures": 9, "disruptions": 1}), NOW)
    facts.note(stj(version=5, restarts={"failures": 7}), NOW)
    assert (facts.restarts()["failures"], facts.restarts()["disruptions"]) == (2, 1)


def test_an_old_event_does_not_turn_a_job_back() -> None:
    facts = JobFacts()
    facts.note(stj(version=9, state="Complete"), NOW)
    facts.note(stj(version=8, state="Running"), NOW)
    assert [job.state for job in facts.all(NOW)] == ["Complete"]


def test_a_thousand_jobs_that_come_and_go_leave_nothing() -> None:
    facts = JobFacts()
    for number in range(1000):
        facts.note(stj(f"j{number}", f"u{number}"), NOW)
    facts.keep({"u5"}, "")
    assert [job.name for job in facts.all(NOW)] == ["j5"]
    facts.keep(set(), "another")
    assert len(facts.all(NOW)) == 1
    facts.forget("u5")
    assert (facts.all(NOW), facts._jobs) == ([], {})


def test_the_states_are_those_that_reconcile_knows() -> None:
    text = (ROOT / "operator/lanefeed_operator/reconcile/states.py").read_text()
    said = re.findall(r'"""([A-Z][a-z]+(?:, [A-Z][a-z]+)+ or [A-Z][a-z]+)\."""', text)[0]
    assert set(re.findall(r"[A-Z][a-z]+", said)) == set(KNOWN_STATES)


def test_what_alerts_and_dashboard_name_exists() -> None:
    m = Metrics(lambda: NOW)
    m.facts.note(stj(state="Running", planGeneration=1), NOW)
    m.watches = lambda: {"pods": 1.0}
    m.request("get", 200, 0.1)
    known = {name for name, _ in scraped(m)}
    folder = ROOT / "charts/lanefeed/files"
    text = "".join(file.read_text() for file in (*folder.glob("*.yaml"), *folder.glob("*.json")))
    asked = set(re.findall(r"lanefeed_operator_[a-z_]+[a-z]", text))
    assert asked
    assert asked <= known, f"nobody makes {sorted(asked - known)}"
