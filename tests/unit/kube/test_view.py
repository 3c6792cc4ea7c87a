"""The view: small, never older than what was seen or written, and it says for which jobs something has changed."""

import random
from typing import Any

from lanefeed_operator.kube.api import CONFIG_MAPS, JOBS, NODES, PODS, STJS, Kind
from lanefeed_operator.kube.facts import seconds
from lanefeed_operator.runtime.view import View
from unit.kube.test_observe import job, node, pod

KEY = ("ns", "j")


def at(version: int, obj: dict[str, Any], **meta: Any) -> dict[str, Any]:
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(version), **meta}}


def stj(version: int, uid: str = "u1", **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": "j", "namespace": "ns", "uid": uid, "resourceVersion": str(version)}, **more}


def test_it_never_goes_back() -> None:
    view = View()
    assert view.put(STJS, stj(7, spec={"replicas": 2})) == (KEY,)
    assert view.put(STJS, stj(6, spec={"replicas": 1})) == ()
    found = view.job(KEY)
    assert found is not None
    assert found["spec"] == {"replicas": 2}
    assert view.put(STJS, stj(9, "u2")) == (KEY,), "made anew under its name"
    assert view.put(STJS, stj(10, "u1")) == (), "a late event of the former one"
    assert view.remove(STJS, stj(11, "u1")) == ()
    assert view.job_uid(KEY) == "u2"
    assert view.remove(STJS, stj(12, "u2")) == (KEY,)
    assert view.put(STJS, stj(10, "u2")) == (), "what is gone does not come back by a late event"
    assert view.job(KEY) is None


def test_any_order_of_events_ends_with_the_newest() -> None:
    rng = random.Random(7)
    for _ in range(50):
        events = [
            at(n, pod(0, status={"phase": "Running"}), labels={**pod(0)["metadata"]["labels"]}) for n in range(2, 9)
        ]
        for n, event in enumerate(events):
            event["spec"] = {"nodeName": f"node{n}"}
        last = events[-1]
        rng.shuffle(events)
        view = View()
        for event in events:
            view.put(PODS, event)
        assert [p.node for p in view.pods_of(KEY)] == [last["spec"]["nodeName"]]


def test_a_repeated_or_meaningless_event_wakes_nobody() -> None:
    view = View()
    assert view.put(PODS, at(1, pod(0))) == (KEY,)
    assert view.put(PODS, at(2, pod(0))) == ()
    assert view.put(PODS, at(3, pod(0, status={"phase": "Failed"}))) == (KEY,)
    assert view.put(CONFIG_MAPS, at(4, pod(0))) == ()
    assert view.put(JOBS, at(5, job())) == (KEY,)
    assert view.put(JOBS, at(6, job())) == ()


def test_a_node_wakes_the_jobs_that_have_pods_on_it_when_it_is_lost_and_when_it_is_back() -> None:
    view = View()
    view.put(PODS, at(1, pod(0)))
    view.put(PODS, at(1, pod(1, node="other")))
    view.synced(NODES)
    assert view.put(NODES, at(1, node("True"))) == ()
    assert view.put(NODES, at(2, node("True", "2026-11-30T11:00:00Z"))) == (), "a heartbeat"
    assert view.put(NODES, at(1, node("True", name="far"))) == ()
    assert view.put(NODES, at(3, node("Unknown"))) == (KEY,)
    assert list(view.lost_nodes() or ()) == ["node1"]
    assert view.put(NODES, at(4, node("True"))) == (KEY,)
    assert view.lost_nodes() == {}


def test_another_node_that_is_heard_again_or_joins_wakes_the_jobs_of_lost_ones() -> None:
    view = View()
    view.put(PODS, at(1, pod(0)))
    view.synced(NODES)
    for name in ("node1", "far"):
        view.put(NODES, at(1, node("Unknown", name=name)))
    assert view.lost_nodes() == {}, "nobody is heard: the control plane was away"
    assert view.put(NODES, at(2, node("True", "2026-11-30T10:01:00Z", name="far"))) == (KEY,)
    (lost,) = (view.lost_nodes() or {}).values()
    assert lost.lost_since == seconds("2026-11-30T10:01:00Z")
    view.put(NODES, at(3, node("Unknown", name="far")))
    assert view.put(NODES, at(4, node("True", name="new"))) == (KEY,)
    view.remove(NODES, at(5, node("Unknown")))
    assert list(view.lost_nodes() or ()) == ["far"]


def test_nodes_that_cannot_be_seen_are_none() -> None:
    assert View().lost_nodes() is None


def test_a_listing_takes_away_what_is_gone_and_leaves_what_came_meanwhile() -> None:
    view = View()
    for index in range(3):
        view.put(PODS, at(index + 1, pod(index)))
    mark = view.stamp()
    view.put(PODS, at(9, pod(7)))
    assert not view.is_synced(PODS)
    assert view.replace(PODS, [at(1, pod(0)), at(5, pod(2))], mark) == (KEY,)
    assert sorted(p.index for p in view.pods_of(KEY)) == [0, 2, 7]
    assert view.is_synced(PODS)
    assert view.replace(PODS, [at(1, pod(0))], view.stamp(), namespace="other") == ()
    assert sorted(p.index for p in view.pods_of(KEY)) == [0, 2, 7], "of another namespace"


def test_what_a_listing_did_not_show_may_come_back_by_a_newer_event() -> None:
    """Its label was taken away and given back."""
    view = View()
    view.put(PODS, at(1, pod(0)))
    view.replace(PODS, [], view.stamp())
    assert view.put(PODS, at(1, pod(0))) == ()
    assert view.put(PODS, at(2, pod(0))) == (KEY,)


def test_an_object_whose_label_changes_belongs_to_another_job() -> None:
    view = View()
    view.put(PODS, at(1, pod(0)))
    moved = at(2, pod(0))
    moved["metadata"]["labels"] = {**moved["metadata"]["labels"], "lanefeed.dev/job": "k"}
    assert view.put(PODS, moved) == (KEY, ("ns", "k"))
    assert view.pods_of(KEY) == []
    assert len(view.pods_of(("ns", "k"))) == 1


def test_it_keeps_nothing_of_what_is_gone() -> None:
    view = View()
    for cycle in range(200):
        for kind, obj in ((STJS, stj(1, f"u{cycle}")), (JOBS, job(uid=f"j{cycle}")), (PODS, pod(0, f"p{cycle}"))):
            view.put(kind, at(cycle * 10 + 1, obj))
            view.remove(kind, at(cycle * 10 + 2, obj))
    kinds: tuple[Kind, ...] = (STJS, JOBS, PODS)
    assert [view.count(kind) for kind in kinds] == [0, 0, 0]
    assert view.keys() == []
    assert not view._filed
    assert not view._stamps
    assert not view._pods


def test_what_nobody_reads_is_not_kept() -> None:
    view = View()
    obj = stj(1)
    obj["metadata"] |= {
        "managedFields": [{"manager": "kubectl"}],
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "mine": "1"},
    }
    view.put(STJS, obj)
    found = view.job(KEY)
    assert found is not None
    assert "managedFields" not in found["metadata"]
    assert found["metadata"]["annotations"] == {"mine": "1"}
    assert "managedFields" in obj["metadata"], "what was given is not changed"
