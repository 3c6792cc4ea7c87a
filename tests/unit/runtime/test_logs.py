"""Log lines: one per decision, readable at 3 a.m., and JSON where a log store reads them."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from lanefeed_operator.runtime import logs
from lanefeed_operator.runtime.decisions import Decisions, lines


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    kept = {name: logging.getLogger(name).level for name in logs.QUIET}
    yield
    root.handlers[:], root.level = before, level
    for name, old in kept.items():
        logging.getLogger(name).setLevel(old)
    logging.captureWarnings(False)


def job(status: dict[str, Any], version: int = 1) -> dict[str, Any]:
    return {"metadata": {"namespace": "ns", "name": "a", "uid": "u", "resourceVersion": str(version)}, "status": status}


def condition(kind: str, value: str, reason: str, message: str = "m") -> dict[str, str]:
    return {"type": kind, "status": value, "reason": reason, "message": message}


BEGIN: dict[str, Any] = {"state": "Running", "plan": {"generation": 1, "replicas": 2, "ranksPerReplica": 4, "start": 0}}


def test_each_decision_is_a_line_with_its_reason() -> None:
    after = {
        "state": "Resizing",
        "plan": {
            "generation": 2,
            "replicas": 3,
            "ranksPerReplica": 4,
            "start": 40,
            "reason": "Resize",
            "fenced": ["p"],
        },
        "cursor": {"totalStep": 40, "commit": "ckpt/40"},
        "stop": {"step": 44, "reason": "Resize"},
        "restarts": {"failures": 2, "lastReason": "PodFailed"},
        "conditions": [
            condition("Degraded", "True", "PodsFailing", "pod index 1 failed"),
            condition("Running", "True", "R"),
        ],
    }
    assert [line.text for line in lines(BEGIN, after)] == [
        "program failures 0 -> 2 (PodFailed)",
        "pod p is fenced: its reports are refused from now on",
        "commit of step 40 (ckpt/40)",
        "ranks are to leave at step 44 (Resize)",
        "3 pods x 4 ranks from step 40 (Resize)",
        "Degraded=True PodsFailing: pod index 1 failed",
        "Running=True R: m",
        "Running -> Resizing",
    ]
    assert [line.word for line in lines(BEGIN, after) if line.bad] == ["Counted", "Fence", "PodsFailing"]


def test_progress_and_a_message_that_counts_on_are_no_decision() -> None:
    one = BEGIN | {"conditions": [condition("Degraded", "True", "PodsFailing", "1 of 3")]}
    two = one | {
        "progress": {"consumed": 99},
        "stallPercent": 3.0,
        "conditions": [condition("Degraded", "True", "PodsFailing", "2 of 3")],
    }
    assert lines(one, two) == []
    assert lines(BEGIN, BEGIN | {"conditions": [condition("Degraded", "False", "Well")]}) == []


def test_a_line_is_told_once_and_what_a_former_operator_decided_never(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    decisions = Decisions()
    decisions.seen(job(BEGIN))
    decisions.wrote(job(BEGIN | {"state": "Complete"}))
    decisions.wrote(job(BEGIN | {"state": "Complete", "progress": {"consumed": 5}}))
    assert [record.getMessage() for record in caplog.records] == ["job ns/a plan 1: Running -> Complete"]
    decisions.forget("u")
    assert decisions._last == {}


def written(as_json: bool) -> list[str]:
    stream = io.StringIO()
    logs.setup(as_json=as_json, level="INFO", stream=stream)
    log = logging.getLogger("lanefeed_operator.test")
    log.info("job ns/a plan 2: Running -> Resizing", extra={"job": "ns/a", "plan_generation": 2, "decision": "State"})
    log.debug("chatter")
    logging.getLogger("kopf._core.reactor.running").warning("OS signals are ignored: running not in the main thread.")
    kopf = logging.getLogger("kopf._cogs.clients.watching")
    kopf.error("Request attempt #1/65 failed; will retry: GET /x -> refused")
    kopf.error("Request attempt #2/65 failed; will retry: GET /x -> refused")
    try:
        raise ValueError("the cause")
    except ValueError:
        log.exception("it broke")
    return stream.getvalue().splitlines()


def test_text_for_people() -> None:
    first, second, third, *trace = written(as_json=False)
    assert first.endswith("INFO    job ns/a plan 2: Running -> Resizing")
    assert "WARNING Request attempt #1/65" in second
    assert third.endswith("ERROR   it broke")
    assert all(line.startswith("    ") for line in trace), "a traceback stays with its line"
    assert trace[-1].endswith("ValueError: the cause")


def test_json_for_log_stores() -> None:
    found = [json.loads(line) for line in written(as_json=True)]
    assert len(found) == 3
    assert found[0] | {"time": ""} == {
        "time": "",
        "level": "info",
        "message": "job ns/a plan 2: Running -> Resizing",
        "job": "ns/a",
        "plan_generation": 2,
        "decision": "State",
        "logger": "lanefeed_operator.test",
    }
    assert found[1]["level"] == "warning"
    assert "ValueError: the cause" in found[2]["exception"]


def test_a_line_that_comes_all_the_time_is_written_a_few_times() -> None:
    stream = io.StringIO()
    logs.setup(as_json=False, level="INFO", stream=stream)
    log = logging.getLogger("lanefeed_operator.test")

    def say(at: float, number: int, **extra: Any) -> None:
        record = log.makeRecord(log.name, logging.WARNING, "", 0, "pod %d: no answer", (number,), None, extra=extra)
        record.created = at
        log.handle(record)

    for number in range(100):
        say(1000.0 + number / 10, number)
    assert len(stream.getvalue().splitlines()) == logs.MANY
    say(1000.0 + logs.WINDOW, 100)
    assert stream.getvalue().splitlines()[-1].endswith("pod 100: no answer (95 lines like this one were left out)")
    for number in range(50):
        say(2000.0, number, job="ns/a")
    assert len(stream.getvalue().splitlines()) == logs.MANY + 51, "what is said of a job is written always"
