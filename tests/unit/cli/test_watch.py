"""`status -w` and `top -w` while the API server is away for a moment."""

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from lanefeed_operator.api.load import load_job
from lanefeed_operator.api.spec import Job
from lanefeed_operator.api.status import Condition, Status
from lanefeed_operator.cli import watch as watching
from lanefeed_operator.cli.main import app
from lanefeed_operator.cli.top import _Pods
from lanefeed_operator.kube.api import Forbidden, Unreachable

AWAY = Unreachable("GET /x: the API server does not answer")
METRICS = "# TYPE lanefeed_samples counter\nlanefeed_samples_total {}\n"


def job(state: str) -> Job:
    container = {"name": "trainer", "image": "x", "command": ["train"]}
    spec = {
        "replicas": 2,
        "data": {"uri": "/data/*.parquet"},
        "batching": {"globalBatchSize": 8},
        "template": {"spec": {"containers": [container]}},
    }
    document = {
        "apiVersion": "lanefeed.dev/v1alpha1",
        "kind": "ShardedTrainingJob",
        "metadata": {"name": "llm"},
        "spec": spec,
    }
    status = Status(state=state, conditions=[Condition(type=state, status="True")])
    return load_job(json.dumps(document)).model_copy(update={"status": status})


class Place:
    """A cluster's job that answers what it is told, in turn."""

    name = "llm"

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def _next(self) -> Any:
        found = self.answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    job = metrics = _next

    def facts(self) -> list[tuple[str, str]]:
        return []


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching.time, "sleep", lambda _: None)


def status(monkeypatch: pytest.MonkeyPatch, place: Place) -> Any:
    monkeypatch.setattr("lanefeed_operator.cli.status.choose", lambda *_: place)
    return CliRunner().invoke(app, ["status", "llm", "-w"])


def test_an_outage_in_between_does_not_end_status(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(job("Running"), AWAY, job("Complete"))
    done = status(monkeypatch, place)
    assert done.exit_code == 0, done.output
    assert "Complete" in done.output
    assert place.answers == []


def test_an_outage_at_first_and_any_other_error_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert status(monkeypatch, Place(AWAY, job("Complete"))).exception is AWAY
    refused = Forbidden("no right to read jobs")
    assert status(monkeypatch, Place(job("Running"), refused)).exception is refused


def test_the_outage_is_a_line_below_the_last_picture() -> None:
    file = io.StringIO()
    written: list[str] = []
    answers: list[Callable[[], tuple[str, bool]]] = [lambda: ("first", False), fail, lambda: ("last", True)]

    def draw() -> tuple[str, bool]:
        written.append(file.getvalue())
        return answers.pop(0)()

    watching.watch(Console(file=file, force_terminal=True, width=80), draw, 0.0)
    first, outage = written[1], written[2].removeprefix(written[1])
    last = file.getvalue().removeprefix(written[2])
    assert "trying again" not in first
    assert "first" in outage
    assert "the API server does not answer; trying again" in outage
    assert "trying again" not in last
    assert "last" in last


def fail() -> tuple[str, bool]:
    raise AWAY


def test_top_goes_on_too_and_compares_with_the_last_reading_that_came(monkeypatch: pytest.MonkeyPatch) -> None:
    end = Forbidden("enough")
    place = Place(*({0: METRICS.format(n)} for n in (1, 2)), AWAY, {0: METRICS.format(9)}, end)
    monkeypatch.setattr("lanefeed_operator.cli.top.choose", lambda *_: place)
    done = CliRunner().invoke(app, ["top", "llm", "-w"])
    assert done.exception is end
    assert place.answers == []


def test_a_reading_that_failed_is_not_half_taken() -> None:
    pods = _Pods(Place({0: METRICS.format(1)}, {0: METRICS.format(2)}, AWAY))  # type: ignore[arg-type]
    pods.read()
    pods.read()
    before, now = pods._before, pods._now
    with pytest.raises(Unreachable):
        pods.read()
    assert (pods._before, pods._now) == (before, now)
