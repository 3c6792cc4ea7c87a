"""What somebody with rights in one namespace can write into pods and Jobs must harm no other job."""

import json
import sys
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from lanefeed_operator.errors import JobError
from lanefeed_operator.kube.api import DEEPEST_JSON, JOBS, PODS, STJS
from lanefeed_operator.kube.facts import MAX_INDEX, job_facts, pod_facts
from lanefeed_operator.kube.observe import index_set
from lanefeed_operator.render import constants as c
from lanefeed_operator.render.errors import RenderError
from lanefeed_operator.render.template import user_pod
from lanefeed_operator.runtime import admit
from lanefeed_operator.runtime import view as view_module
from lanefeed_operator.runtime.view import View
from unit.kube.bed import Bed, spec
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


@pytest.fixture
def deep_json() -> Iterator[None]:
    """As in the operator's process."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(DEEPEST_JSON)
    yield
    sys.setrecursionlimit(before)


def nested(levels: int, keys: int) -> dict[str, Any]:
    """{"x": {"x": ..., "k0": 0}, "k0": 0}"""
    found: dict[str, Any] = {}
    for _ in range(levels):
        found = {"x": found} | {f"k{number}": number for number in range(keys - 1)}
    return found


def document(**changes: Any) -> dict[str, Any]:
    """A ShardedTrainingJob with something large where fields are kept as they are."""
    body = spec(**changes)
    body["template"]["spec"]["affinity"] = {"nodeAffinity": nested(5_000, 6)}
    return {"metadata": {"name": "j", "namespace": "ns", "uid": "u", "generation": 1}, "spec": body}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sidecar": {"cache": {"volume": "nosuch"}}}, "nosuch"),
        ({"batching": {"globalBatchSize": 0}}, "globalBatchSize"),
        ({"data": {"uri": nested(5_000, 6)}}, "data.uri"),
    ],
)
def test_a_large_spec_with_a_fault_costs_no_more_than_one_without(
    changes: dict[str, Any], said: str, deep_json: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was made text, read twice as YAML and indexed by path: gigabytes and minutes for what one request holds."""

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("YAML of what is parsed already")

    monkeypatch.setattr(yaml, "compose", never)
    monkeypatch.setattr(yaml, "safe_load", never)
    raw = document(**changes)
    tracemalloc.start()
    try:
        with pytest.raises(JobError) as refused:
            admit.read_job(raw)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    text = "; ".join(map(str, refused.value.problems))
    assert said in text
    assert len(text) < 8_192, "a condition's message has room for 32 KiB"


def test_a_spec_that_nests_too_deep_to_be_rendered_is_its_authors_to_mend(deep_json: None) -> None:
    job_ = admit.read_job(document())
    with pytest.raises(RenderError, match="nests too deep"):
        user_pod(job_)


def test_a_fault_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bed = Bed(sidecar={"cache": {"volume": "nosuch"}})
    reads: list[int] = []
    real = admit.read_job
    monkeypatch.setattr(admit, "read_job", lambda raw: reads.append(1) or real(raw))
    for _ in range(5):
        bed.later(10)
    assert bed.condition("SpecValid")[:2] == ("False", "SpecInvalid")
    assert len(reads) == 1
    bed.later(600)
    assert len(reads) == 2, "a newer CRD may have changed what is served"
    bed.patch_spec(sidecar={})
    bed.later(1)
    assert bed.condition("SpecValid")[0] == "True"
    assert len(reads) == 3


def test_a_spec_that_nests_as_deep_as_the_api_server_allows_is_held(deep_json: None) -> None:
    deep = json.loads("[" * 9_990 + "]" * 9_990)
    view = View()
    raw = {"metadata": {"name": "j", "namespace": "ns", "uid": "u", "resourceVersion": "1"}, "spec": {"x": deep}}
    assert view.put(STJS, raw) == (KEY,)
    assert view.job(KEY) is not None
