"""What a person reads: events in words, plain lines, the live picture."""

import io

import pytest
from rich.console import Console

from lanefeed_operator.api.load import load_job
from lanefeed_operator.api.status import (
    Condition,
    CursorStatus,
    EpochProof,
    LedgerStatus,
    PlanStatus,
    Status,
    StopStatus,
)
from lanefeed_operator.local.slots import parse_slots
from lanefeed_operator.local.view import LiveDisplay, PlainDisplay, Scene, changes, duration
from lanefeed_operator.reconcile.types import Children, FeedView, Pod, RankView
from unit.local.test_store import STREAM, YAML

RUNNING = Status(state="Running", plan_generation=1, stream=STREAM, plan=PlanStatus(generation=1, replicas=2))


def scene() -> Scene:
    def rank(number: int, wait: float) -> RankView:
        return RankView(number, number, f"u{number}", "s", 0, False, 40, True, False, wait, 10.0)

    pods = tuple(Pod(i, f"u{i}", "Running", ready=True) for i in range(2))
    feed = FeedView(plan_generation=1, ranks={0: rank(0, 0.0), 1: rank(1, 10.0)}, last_step=35, rate=20.0)
    return Scene(load_job(YAML), RUNNING, feed, {1: Children(1, 2, pods=pods)})


def test_changes_are_told_in_words() -> None:
    stop = StopStatus(step=50, reason="Resize", time="", done=False)
    told = changes(Status(), RUNNING)
    assert told[1] == "plan generation 1: 2 pods x 1 rank from step 0 ()"
    assert "4,211 samples, 151 steps an epoch" in told[0]
    assert told[2] == "job is Running"
    assert changes(RUNNING, RUNNING.model_copy(update={"stop": stop})) == [
        "Resize: all ranks are asked to write a checkpoint and leave at step 50"
    ]
    proof = EpochProof(epoch=0, samples=4211, digest="ab", expected="ab", verified=True)
    ledger = LedgerStatus(verified=1, epochs=[proof])
    assert changes(RUNNING, RUNNING.model_copy(update={"ledger": ledger})) == [
        "epoch 0 proven: 4,211 samples, digest ab"
    ]
    assert changes(RUNNING, RUNNING.model_copy(update={"cursor": CursorStatus(total_step=9)})) == []


def test_a_condition_that_turns_bad_is_told_once() -> None:
    bad = Condition(type="Degraded", status="True", reason="PodsFailing", message="pod index 1 failed 1 times of 3")
    worse = RUNNING.model_copy(update={"conditions": [bad]})
    assert changes(RUNNING, worse) == ["PodsFailing: pod index 1 failed 1 times of 3"]
    assert changes(worse, worse) == []


def test_plain_lines_say_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay()
    display.show(scene())
    display.show(scene())
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith(
        "step 40/302 (13 %), 20.0 steps/s, 13s left, waiting for data 50.0 % at most, last commit at step 35"
    )


def test_the_live_picture_has_state_bar_and_ranks() -> None:
    out = io.StringIO()
    display = LiveDisplay(Console(file=out, force_terminal=True, width=120))
    display.event("pod 1 is replaced: its supervisor was killed")
    display.show(scene())
    display.close()
    text = out.getvalue()
    for part in (
        "tiny",
        "Running",
        "2/2 pods ready",
        "40/302",
        "20.0 steps/s",
        "13s left",
        "50.0",
        "is replaced",
        "trains",
    ):
        assert part in text, part


def test_durations_and_slots() -> None:
    assert [duration(s) for s in (5, 185, 7440)] == ["5s", "3m05s", "2h04m"]
    assert parse_slots('# HELP x\nlanefeed_slots_free{job="a",rank="3"} 5.0\nlanefeed_slots_free{rank="4"} 0.0\n') == {
        3: 5,
        4: 0,
    }
    assert parse_slots("lanefeed_slots_free 7\n") == {-1: 7}
    assert parse_slots("other 7\n") == {}
