"""What somebody with rights in one namespace can write into pods and Jobs must harm no other job."""

import json
import sys
from typing import Any

import pytest

from lanefeed_operator.kube.api import DEEPEST_JSON, JOBS, PODS, STJS
from lanefeed_operator.kube.facts import MAX_INDEX, job_facts, pod_facts
from lanefeed_operator.kube.observe import index_set
from lanefeed_operator.render import constants as c
from lanefeed_operator.runtime import view as view_module
from lanefeed_operator.runtime.view import View
from unit.kube.test_observe import job, pod
from unit.kube.test_view import KEY, at

MESSAGES = {
    "a run of 10**10 ranks": (
        '{"lanefeed":1,"why":"x","job":"j","pod":"p","index":0,"plan":1,"session":"s",'
        '"sequence":1,"ranks":[[0,10000000000,0,0,0,0]]}'
    ),
    "lists in lists": '{"lanefeed":' + "[" * 3900,
    "Infinity": '{"lanefeed":1,"ranks":[[0,Infinity,0,0,0,0]]}',
}


def failed(message: str) -> dict[str, Any]:
    state = {"terminated": {"exitCode": 1, "reason": "Error", "message": message}}
    return {"phase": "Failed", "containerStatuses": [{"name": c.TRAINER, "state": state}]}


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_a_termination_message_that_a_trainer_wrote_itself_is_text(message: str) -> None:
    facts = pod_facts(pod(0, status=failed(message)))
    assert facts.state.phase == "Failed"
    assert facts.state.message == message if len(message) <= 512 else facts.state.message.endswith(message[-500:])


@pytest.mark.parametrize("text", ["9" * 5000, "9" * 15, "-1", "\u00b2", "1e3"])
def test_an_index_that_no_job_controller_wrote_is_none(text: str) -> None:
    found = pod(0)
    found["metadata"]["annotations"][c.INDEX_LABEL] = text
    found["metadata"]["labels"].pop(c.INDEX_LABEL, None)
    assert pod_facts(found).index == -1


def test_a_job_that_says_it_has_two_billion_pods_makes_no_list_of_them() -> None:
    found = job()
    found["spec"] = {"completions": 2**31 - 1}
    assert job_facts(found).completions == MAX_INDEX
    assert index_set("1,\u00b2,9-" + "9" * 5000) == {1}


def test_an_object_that_cannot_be_read_is_said_and_the_others_are_known(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a pod its identity and phase remain: that a former plan's pod lives must not be forgotten."""

    def broken(raw: dict[str, Any]) -> Any:
        if (raw.get("status") or {}).get("containerStatuses"):
            raise RecursionError("planted")
        return pod_facts(raw)

    monkeypatch.setitem(view_module._READ, PODS, broken)  # type: ignore[arg-type]
    bad = at(2, pod(0, status={"phase": "Running", "containerStatuses": [{}]}), name="bad", uid="bad")
    good = at(3, pod(1, status={"phase": "Running"}), name="good", uid="good")
    view = View()
    assert view.replace(PODS, [bad, good], view.stamp()) == (KEY,)
    assert [(found.name, found.index, found.state.phase) for found in view.pods_of(KEY)] == [
        ("bad", 0, "Running"),
        ("good", 1, "Running"),
    ]
    assert "Pod ns/bad cannot be read: RecursionError('planted')" in caplog.text
    view.replace(PODS, [bad], view.stamp())
    assert [found.name for found in view.pods_of(KEY)] == ["bad"], "what was listed is there"
    bad_job = at(4, {**job(), "spec": {"completions": "many"}})
    assert view.put(JOBS, bad_job) == ()


def test_a_spec_that_nests_as_deep_as_the_api_server_allows_is_held() -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(DEEPEST_JSON)
    try:
        deep = json.loads("[" * 9_990 + "]" * 9_990)
        view = View()
        raw = {"metadata": {"name": "j", "namespace": "ns", "uid": "u", "resourceVersion": "1"}, "spec": {"x": deep}}
        assert view.put(STJS, raw) == (KEY,)
        assert view.job(KEY) is not None
    finally:
        sys.setrecursionlimit(before)
