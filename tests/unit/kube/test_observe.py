"""What reconcile sees of raw objects; those of golden/cluster.json were read from a real cluster (Kubernetes 1.34)."""

import json
from pathlib import Path
from typing import Any

import pytest

from lanefeed_operator.kube.facts import job_facts, node_facts, pod_facts, seconds
from lanefeed_operator.kube.observe import World, children, index_set, indexer_info, indexer_trouble, living
from lanefeed_operator.reconcile.types import Children, Pod, Trouble, Why
from lanefeed_operator.render import constants as c

GOLDEN = json.loads((Path(__file__).parent / "golden" / "cluster.json").read_text())
NOW = 1_790_000_000.0
STJ, JOB = "stj-uid", "job-uid"


def job(name: str = "j-2", uid: str = JOB, *, status: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    meta = {
        "name": name,
        "namespace": "ns",
        "uid": uid,
        "labels": {c.JOB_LABEL: "j", c.PLAN_LABEL: "2", c.ROLE_LABEL: "pods"},
        "annotations": {c.UID_ANNOTATION: STJ},
        "ownerReferences": [{"uid": STJ, "name": "j", "controller": True}],
    }
    spec = {"completions": 4, "parallelism": 4} | more.pop("spec", {})
    return {"metadata": meta | more, "spec": spec, "status": status or {}}


def pod(index: int, uid: str = "", *, owner: str = JOB, status: dict[str, Any] | None = None, **more: Any) -> Any:
    annotations = {c.UID_ANNOTATION: STJ, c.INDEX_LABEL: str(index)} | more.pop("annotations", {})
    meta = {
        "name": f"j-2-{index}-{uid or 'x'}",
        "namespace": "ns",
        "uid": uid or f"pod-{index}",
        "labels": {c.JOB_LABEL: "j", c.PLAN_LABEL: "2", c.ROLE_LABEL: "pods"},
        "annotations": annotations,
        "ownerReferences": [{"uid": owner, "name": "j-2", "controller": True}],
        "creationTimestamp": "2026-11-30T10:00:00Z",
    }
    node = more.pop("node", "node1")
    status = status or {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": meta | more, "spec": {"nodeName": node}, "status": status}


def ended(code: int, **more: Any) -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
    containers = [{"name": "trainer", "state": state}]
    return {"phase": "Failed" if code else "Succeeded", "containerStatuses": containers} | more


def world(jobs: list[Any], pods: list[Any], nodes: list[Any] | None = None, now: float = NOW) -> World:
    found = None if nodes is None else {n["metadata"]["name"]: node_facts(n) for n in nodes}
    return World("j", STJ, [job_facts(o) for o in jobs], [pod_facts(o) for o in pods], found, now)


def only(seen: dict[int, Children]) -> Children:
    assert list(seen) == [2]
    return seen[2]


# ---- golden ----------------------------------------------------------------------------------------------------


def golden(name: str) -> Any:
    return pod_facts(GOLDEN["pods"][name]).state


def test_pods_that_cannot_run_say_why() -> None:
    (image,) = golden("bad-image").troubles
    assert (image.reason, image.container) == ("ImagePullBackOff", "trainer")
    assert 'failed to resolve reference "kube.test/none:1"' in image.message
    assert golden("bad-secret-env").troubles == (
        Trouble("CreateContainerConfigError", "trainer", 'secret "none" not found'),
    )
    assert golden("bad-secret-vol").troubles == (Trouble("ContainerCreating", "trainer"),)
    (huge,) = golden("bad-huge").troubles
    assert huge.reason == "Unschedulable"
    assert "Insufficient cpu" in huge.message
    assert seconds(golden("bad-huge").unplaced_since) is not None
    loop = golden("bad-sidecar").troubles[0]
    assert loop == Trouble("CrashLoopBackOff", c.SIDECAR, "ConfigError: wrong", restarts=3, exit_code=2)


def test_pods_that_ended_say_how() -> None:
    exit3, oom, command = golden("bad-exit"), golden("bad-oom"), golden("bad-command")
    assert (exit3.phase, exit3.exit_code, exit3.reason, exit3.message) == ("Failed", 3, "", "no such model")
    assert (oom.exit_code, oom.reason) == (137, "OOMKilled")
    assert (command.exit_code, command.reason) == (128, "StartError")
    assert "/none: no such file or directory" in command.message


def test_a_finished_plan() -> None:
    done = job_facts(GOLDEN["jobs"]["one-1"])
    stj = done.owner_uid
    pods = [pod_facts(o) for name, o in GOLDEN["pods"].items() if name.startswith("one")]
    seen = children(World("one", stj, [done, job_facts(GOLDEN["jobs"]["one-index"])], pods, {}, NOW))
    assert list(seen) == [1]
    assert (seen[1].replicas, seen[1].succeeded, seen[1].complete) == (2, frozenset({0, 1}), True)
    assert [(p.index, p.phase, p.exit_code) for p in seen[1].pods] == [(0, "Succeeded", 0), (1, "Succeeded", 0)]
    assert seen[1].alive == ()
    words = {pod.index: pod.state.words for pod in pods if pod.role == "pods"}
    assert json.loads(words[0])["ranks"] == [[0, 0, 0, 0, 500, 1]]


# ---- what is ours ----------------------------------------------------------------------------------------------


def test_only_what_carries_our_uid_in_annotation_and_owner_counts() -> None:
    stranger = [{"uid": "other", "name": "j", "controller": True}]
    for wrong in (
        job(annotations={c.UID_ANNOTATION: "former-uid"}),
        job(ownerReferences=stranger),
        job(ownerReferences=[{"uid": STJ, "name": "j"}]),
        job(name="j-3"),
    ):
        assert children(world([wrong], [pod(0)])).get(2, Children(2, 0)).replicas in (0, 1)
    theirs = pod(1, owner="another-job", annotations={c.UID_ANNOTATION: "former-uid"})
    assert [p.index for p in only(children(world([job()], [pod(0), theirs]))).pods] == [0]


def test_pods_outlive_their_job_as_children_that_are_deleted() -> None:
    """kubectl delete job --cascade=orphan: nothing else may start while they train."""
    seen = only(children(world([], [pod(0), pod(3)])))
    assert seen.deleting
    assert [p.index for p in seen.alive] == [0, 3]
    assert children(world([], [pod(0, status=ended(0)), pod(3, status=ended(1))])) == {}


# ---- counting --------------------------------------------------------------------------------------------------


def test_failures_are_the_job_controllers_and_each_counts_once() -> None:
    before = {"batch.kubernetes.io/job-index-failure-count": "2"}
    seen = only(children(world([job()], [pod(0, annotations=before), pod(1, status=ended(1))])))
    assert seen.failures == {0: 2, 1: 1}
    replaced = pod(1, "new", annotations={"batch.kubernetes.io/job-index-failure-count": "1"})
    seen = only(children(world([job()], [pod(1, "old", status=ended(1)), replaced])))
    assert seen.failures == {1: 1}, "the pod that failed and the one that knows of it are one failure"


def test_what_is_not_the_programs_fault_is_no_failure() -> None:
    target = [{"type": "DisruptionTarget", "status": "True"}]
    gone = pod(0, status=ended(137, conditions=target))
    left = pod(1, status=ended(75))
    again = pod(2, annotations={"batch.kubernetes.io/job-index-ignored-failure-count": "3"})
    seen = only(children(world([job()], [gone, left, again])))
    assert seen.failures == {}
    assert seen.disruptions == 5
    assert [p.disrupted for p in seen.pods] == [True, False, False]


def test_the_end_of_a_pod_whose_job_is_deleted_is_no_failure() -> None:
    deleted = job(deletionTimestamp="2026-11-30T10:00:00Z")
    seen = only(children(world([deleted], [pod(0, status=ended(1))])))
    assert (seen.failures, seen.disruptions, seen.deleting) == ({}, 0, True)


@pytest.mark.parametrize(
    ("text", "found"),
    [("", set()), ("1", {1}), ("1,3-5", {1, 3, 4, 5}), ("0-2,9", {0, 1, 2, 9}), ("x,2-,-3,4", {4})],
)
def test_sets_of_indexes(text: str, found: set[int]) -> None:
    assert index_set(text) == found


def test_a_hostile_set_does_not_fill_the_memory() -> None:
    assert len(index_set("0-999999999999")) <= 100_001


def test_a_job_that_gave_up_says_so() -> None:
    over = [{"type": "FailureTarget", "status": "True", "reason": "MaxFailedIndexesExceeded", "message": "too many"}]
    seen = only(children(world([job(status={"conditions": over, "failedIndexes": "1"})], [])))
    assert seen.failed == {1}
    assert seen.gave_up == Why("MaxFailedIndexesExceeded", "too many")


# ---- queues, nodes, times --------------------------------------------------------------------------------------


def test_a_queue_holds_it_back_or_admits_less() -> None:
    assert only(children(world([job(spec={"suspend": True})], []))).queued
    seen = only(children(world([job(spec={"completions": 4, "parallelism": 3})], [])))
    assert (seen.queued, seen.admitted) == (False, 3)
    assert only(children(world([job()], []))).admitted is None


def test_a_queue_that_changes_completions_too_does_not_change_the_plans_size() -> None:
    """Kueue with job-completions-equal-parallelism: three of four pods are no whole plan, and no ended one."""
    less = job(spec={"completions": 3, "parallelism": 3}, status={"completedIndexes": "0-2"})
    seen = only(children(World("j", STJ, [job_facts(less)], [], {}, NOW, {2: 4})))
    assert (seen.replicas, seen.admitted, seen.complete) == (4, 3, False)


def node(status: str, since: str = "2026-11-30T10:00:00Z", name: str = "node1") -> dict[str, Any]:
    ready = {"type": "Ready", "status": status, "lastTransitionTime": since}
    return {"metadata": {"name": name, "uid": f"uid of {name}"}, "status": {"conditions": [ready]}}


def first(seen: dict[int, Children]) -> Pod:
    return only(seen).pods[0]


@pytest.mark.parametrize(("status", "lost"), [("True", False), ("Unknown", True), ("False", True)])
def test_a_node_that_is_not_heard_of_loses_its_pods(status: str, lost: bool) -> None:
    seen = first(children(world([job()], [pod(0)], [node(status)])))
    assert seen.lost_since == (seconds("2026-11-30T10:00:00Z") if lost else None)
    dead = first(children(world([job()], [pod(0, status=ended(1))], [node(status)])))
    assert dead.lost_since is None


def test_where_nodes_cannot_be_seen_a_pod_that_should_be_gone_is_lost() -> None:
    late = "2026-11-30T10:00:00Z"
    going = pod(0, deletionTimestamp=late)
    at = seconds(late)
    assert at is not None
    assert first(children(world([job()], [going], None, at + 1))).lost_since == at
    assert first(children(world([job()], [going], None, at - 1))).lost_since is None
    assert first(children(world([job()], [going], [node("True")], at + 1))).lost_since is None
    assert first(children(world([job()], [going], [], at - 1))).leaves_by == at


def test_a_pod_that_leaves_is_not_ready() -> None:
    assert not first(children(world([job()], [pod(0, deletionTimestamp="2026-11-30T10:00:00Z")]))).ready
    assert first(children(world([job()], [pod(0)]))).ready


def test_no_place_since_the_first_pod_that_has_none() -> None:
    def unplaced(index: int, since: str) -> Any:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": since}
        return pod(index, node="", status={"phase": "Pending", "conditions": [condition]})

    pods = [pod(0), unplaced(1, "2026-11-30T10:00:05Z"), unplaced(2, "2026-11-30T10:00:03Z")]
    assert only(children(world([job()], pods))).unplaced_since == seconds("2026-11-30T10:00:03Z")


def test_the_newest_living_pod_holds_an_index() -> None:
    zombie = pod(0, "old", creationTimestamp="2026-11-30T09:00:00Z")
    pods = [pod_facts(o) for o in (pod(0, "new"), zombie, pod(1, status=ended(1)))]
    assert {index: pod.uid for index, pod in living(pods).items()} == {0: "new"}


def test_the_last_dead_pod_of_each_index_is_told_beside_the_living() -> None:
    dead = [pod(0, f"d{n}", status=ended(n), creationTimestamp=f"2026-11-30T09:0{n}:00Z") for n in (1, 2, 3)]
    seen = only(children(world([job()], [*dead, pod(0, "alive")])))
    assert [(p.uid, p.alive) for p in seen.pods] == [("d3", False), ("alive", True)]


# ---- the indexer -----------------------------------------------------------------------------------------------


def indexer(status: dict[str, Any]) -> dict[str, Any]:
    found = job("j-index", status=status)
    found["metadata"]["labels"] = {c.JOB_LABEL: "j", c.ROLE_LABEL: "indexer"}
    return found


def indexer_pod(status: dict[str, Any], **more: Any) -> dict[str, Any]:
    found = pod(0, status=status, **more)
    found["metadata"]["annotations"] = {}
    found["metadata"]["labels"] = {c.JOB_LABEL: "j", c.ROLE_LABEL: "indexer"}
    return found


def failed(reason: str) -> dict[str, Any]:
    return {"conditions": [{"type": "Failed", "status": "True", "reason": reason, "message": "m"}]}


def test_an_indexer_that_failed_is_told_in_its_own_words() -> None:
    said = "reading footers: 3 of 8\nDataError: part-3.parquet is truncated: replace it\n"
    state = {"terminated": {"exitCode": 2, "reason": "Error", "message": said}}
    dead = indexer_pod({"phase": "Failed", "containerStatuses": [{"name": c.INDEXER, "state": state}]})
    w = world([indexer(failed("PodFailurePolicy"))], [dead])
    info = indexer_info(w, w.our_jobs("indexer")[0])
    assert info is not None
    assert (info.error, info.retryable) == ("part-3.parquet is truncated: replace it", False)
    w = world([indexer(failed("BackoffLimitExceeded"))], [])
    info = indexer_info(w, w.our_jobs("indexer")[0])
    assert info is not None
    assert info.retryable
    assert "kubectl logs job/j-index" in info.error
    assert indexer_info(w, job_facts(indexer({}))) is None


def test_an_indexer_that_ends_well_and_hands_over_nothing_is_said() -> None:
    w = world([indexer({"conditions": [{"type": "Complete", "status": "True"}]})], [])
    info = indexer_info(w, w.our_jobs("indexer")[0])
    assert info is not None
    assert info.retryable
    assert "no manifest of it has arrived" in info.error


def test_an_indexer_that_cannot_run_says_why() -> None:
    waiting = [{"name": c.INDEXER, "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}]
    w = world([indexer({})], [indexer_pod({"phase": "Pending", "containerStatuses": waiting})])
    why = indexer_trouble(w, w.our_jobs("indexer")[0])
    assert why is not None
    assert why.reason == "ImagePullBackOff"
    assert "container lanefeed-indexer: ImagePullBackOff: no such image; check the image's name" in why.message
    held = indexer({})
    held["spec"]["suspend"] = True
    why = indexer_trouble(world([], []), job_facts(held))
    assert why is not None
    assert why.reason == "Queued"
    made = seconds("2026-11-30T10:00:00Z")
    assert made is not None
    creating = [{"name": c.INDEXER, "state": {"waiting": {"reason": "ContainerCreating"}}}]
    for age, reason in ((10, None), (21, "ContainerCreating")):
        pods = [indexer_pod({"phase": "Pending", "containerStatuses": creating})]
        w = world([indexer({})], pods, now=made + age)
        why = indexer_trouble(w, w.our_jobs("indexer")[0])
        assert (why.reason if why else None) == reason
