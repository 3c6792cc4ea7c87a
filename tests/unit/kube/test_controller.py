"""The controller: from an applied job to Complete, over an API server in memory; restarts, resizes, lost nodes."""

import json
from collections.abc import Callable

import pytest

from lanefeed_core.lastwords import Commit, LastWords, Rank, encode
from lanefeed_core.ledger import Ledger
from lanefeed_operator.api.status import from_time
from lanefeed_operator.coordinator.reports import RankCommit
from lanefeed_operator.kube.api import CONFIG_MAPS, JOBS, NODES, PODS, SERVICES, STJS, Forbidden, Kind, Unreachable
from lanefeed_operator.render import constants as c
from lanefeed_operator.runtime import owned
from unit.kube.bed import KEY, NAME, NS, Bed, failed_job, running


def test_from_apply_to_running() -> None:
    bed = Bed()
    bed.run()
    assert bed.names(JOBS) == [f"{NAME}-index"]
    assert bed.names(CONFIG_MAPS) == [f"{NAME}-trust"], "the indexer must know whom it may trust"
    assert bed.status["state"] == "Indexing"
    assert bed.indexed() == ""
    bed.run()
    assert bed.names(JOBS) == [f"{NAME}-1", f"{NAME}-index"]
    assert bed.names(SERVICES) == [NAME]
    assert bed.names(CONFIG_MAPS) == [f"{NAME}-1-plan", f"{NAME}-manifest-0", f"{NAME}-trust"]
    assert bed.status["planGeneration"] == 1
    assert bed.status["state"] == "Starting"
    assert bed.status["selector"] == f"lanefeed.dev/job={NAME},lanefeed.dev/role=pods"
    bed.pods(1)
    bed.run()
    assert bed.status["state"] == "Running", bed.status["conditions"]
    assert bed.status["readyReplicas"] == 2
    assert [reason for reason, _ in bed.events()] == ["Indexing", "Planned", "Running"]


def test_the_status_is_written_before_what_rests_on_it() -> None:
    """The plan's number is durable before a document, a Service or a Job of it exists."""
    bed = Bed()
    bed.run()
    bed.indexed()
    seen = []

    def before(verb: str, kind: object, _ns: str, name: str) -> None:
        if verb == "create" and name.startswith(f"{NAME}-1"):
            seen.append((name, bed.status.get("planGeneration")))

    bed.store.before = before
    bed.run()
    assert seen == [(f"{NAME}-1-plan", 1), (f"{NAME}-1", 1)]


def test_nothing_is_written_while_nothing_changes() -> None:
    bed, _ = running()
    bed.later(11)
    bed.store.calls.clear()
    for _ in range(60):
        bed.later(10.0)
    assert bed.store.calls == []


def test_commits_are_acknowledged_only_once_they_are_written() -> None:
    bed, pods = running()
    for name in pods:
        rank = int(bed.store.objects[PODS, NS, name]["metadata"]["labels"][c.INDEX_LABEL])
        reply = bed.report(name, 1, 2, rank=rank, consumed=4, commits=(RankCommit(rank, 0, 4, "ckpt", Ledger()),))
        assert reply.commits_taken == 0
    bed.run()
    assert bed.status["cursor"]["totalStep"] == 4
    assert bed.report(pods[0], 1, 3, consumed=4, commits=(RankCommit(0, 0, 4, "ckpt", Ledger()),)).commits_taken == 1


def test_a_new_operator_goes_on_where_the_former_one_was_killed() -> None:
    bed, pods = running()
    before = json.dumps(bed.status)
    bed.start_operator()
    bed.run()
    assert bed.store.writes == [
        ("create", "configmaps", NS, f"{NAME}-1-plan"),
        ("create", "configmaps", NS, f"{NAME}-trust"),
    ]
    assert json.dumps(bed.status) == before, "the plan goes on as it was"
    assert not bed.report(pods[0], 1, 5, consumed=5).fenced


class Crash(Exception):
    """The operator is killed."""


def journey(crash_at: int) -> tuple[bool, tuple[list[str], int]]:
    """From nothing to a plan, killed when its `crash_at`-th call has been done; whether it was, and what is there."""
    bed, calls = Bed(), 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == crash_at:
            raise Crash

    def survive(step: Callable[[], object]) -> None:
        bed.store.after = count
        try:
            step()
        except Crash:
            bed.start_operator()
            bed.store.after = lambda *_: None
            bed.run()
            step()
        bed.store.after = lambda *_: None

    survive(bed.run)
    name = bed.index_pod()
    survive(lambda: bed.hand_over(name))
    bed.index_over(name)
    survive(bed.run)
    children = [*bed.names(JOBS), *bed.names(CONFIG_MAPS), *bed.names(SERVICES)]
    return calls >= crash_at > 0, (children, bed.status["planGeneration"])


def test_a_crash_between_any_two_calls_does_no_harm() -> None:
    """For every k: the k-th call is done and not heard of; a new operator ends in the same place."""
    _, whole = journey(0)
    at, crashed = 0, True
    while crashed:
        at += 1
        crashed, found = journey(at)
        assert found == whole, at
    assert at > 10, "there are that many calls in between"


def test_resize_stops_the_old_plan_before_the_new_one_begins() -> None:
    bed, pods = running(elastic={"stopGraceSeconds": 20}, replicas=2)
    bed.patch_spec(replicas=4)
    bed.run()
    reply = bed.report(pods[0], 1, 9, consumed=3)
    assert reply.stop_at is not None
    bed.later(21)
    assert "deletionTimestamp" in bed.store.get(JOBS, NS, f"{NAME}-1")["metadata"]
    for _ in range(10):
        bed.later(5)
    assert bed.names(JOBS) == [f"{NAME}-1", f"{NAME}-index"], "its pods live"
    deletes = [call for call in bed.store.writes if call[0] == "delete"]
    assert len(deletes) == 1, "asked for once"
    bed.gone(*pods)
    bed.run()
    assert bed.names(JOBS) == [f"{NAME}-2", f"{NAME}-index"]
    assert bed.config(2).plan.replicas == 4
    assert bed.status["restarts"]["resizes"] == 1


def test_documents_of_plans_that_are_long_over_are_deleted() -> None:
    bed, pods = running(elastic={"stopGraceSeconds": 0})
    for token in "abcd":
        bed.patch_spec(restartToken=token)
        bed.run()
        bed.gone(*pods)
        bed.run()
        pods = bed.pods(bed.status["planGeneration"])
    assert [name for name in bed.names(CONFIG_MAPS) if name.endswith("-plan")] == [
        f"{NAME}-{n}-plan" for n in (3, 4, 5)
    ]


def node(bed: Bed, name: str, ready: str) -> None:
    """A node, new or as it is from now on."""
    status = {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": bed.store.timestamp()}]}
    if (NODES, "", name) not in bed.store.objects:
        bed.store.create(NODES, "", {"metadata": {"name": name}})
    bed.store.mutate(NODES, "", name, lambda o: o.update(status=status))


def test_an_outage_of_the_api_server_loses_no_pod() -> None:
    """Every node looks lost after it, for longer than nodeLostSeconds, and the kubelets report one after another."""
    bed, pods = running(elastic={"nodeLostSeconds": 30})
    for name in ("node1", "node2"):
        node(bed, name, "Unknown")
    bed.later(60)
    node(bed, "node1", "True")
    bed.later(29)
    assert bed.status["restarts"]["lost"] == 0
    node(bed, "node2", "True")
    bed.later(60)
    assert bed.status["restarts"]["lost"] == 0
    assert [bed.store.objects[PODS, NS, pod]["status"]["phase"] for pod in pods] == ["Running", "Running"]


def test_a_lost_node_is_fenced_first_and_then_its_pod_is_freed() -> None:
    bed, pods = running(elastic={"nodeLostSeconds": 30})
    node(bed, "node1", "True")
    node(bed, "node2", "Unknown")
    bed.later(29)
    assert bed.status["restarts"]["lost"] == 0
    order = []
    bed.store.before = lambda verb, kind, _ns, _name: order.append((verb, kind.plural, bed.status["plan"]["fenced"]))
    uid = bed.store.objects[PODS, NS, pods[1]]["metadata"]["uid"]
    bed.later(2)
    acts = [(verb, plural) for verb, plural, fenced in order if plural == "pods" and fenced == [uid]]
    assert acts == [("get", "pods"), ("patch", "pods"), ("delete", "pods")], order
    freed = bed.store.objects[PODS, NS, pods[1]]
    assert freed["status"]["phase"] == "Failed"
    found = {x["type"]: x for x in freed["status"]["conditions"]}
    assert set(found) == {"Ready", "DisruptionTarget"}
    assert from_time(found["DisruptionTarget"]["lastTransitionTime"]) == int(bed.now), "the controller's clock"
    assert bed.report(pods[1], 1, 9, consumed=9).fenced
    assert bed.status["restarts"]["lost"] == 1
    assert bed.status["restarts"]["failures"] == 0


def test_a_conflict_is_read_again_and_never_forced() -> None:
    bed, pods = running()
    watch = bed.store._subscribers
    bed.store._subscribers = []
    bed.patch_spec(suspend=True)
    bed.store._subscribers = watch
    for name in pods:
        bed.report(name, 1, 2, consumed=9)
    bed.store.calls.clear()
    bed.later(11)
    verbs = [verb for verb, plural, _, _ in bed.store.calls if plural == "shardedtrainingjobs"]
    assert verbs[:3] == ["replace_status", "get", "replace_status"], verbs
    assert bed.status["stop"]["reason"] == "Suspend", "decided by what somebody else wrote meanwhile"


def test_a_stale_list_does_not_bring_an_old_plan_back() -> None:
    """A new operator whose first list came from an old cache asks live before it makes anything."""
    bed, pods = running(elastic={"stopGraceSeconds": 0})
    old = bed.store.get(STJS, NS, NAME)
    bed.patch_spec(restartToken="again")
    bed.run()
    bed.gone(*pods)
    bed.run()
    assert bed.status["planGeneration"] == 2
    bed.start_operator()
    bed.view._stjs.clear()
    bed.view.put(STJS, old)
    assert bed.view.job(KEY)["status"]["planGeneration"] == 1
    bed.run()
    assert ("get", STJS.plural, NS, NAME) in bed.store.calls
    assert [call for call in bed.store.writes if call[0] == "delete"] == []
    assert bed.names(JOBS) == [f"{NAME}-2", f"{NAME}-index"]
    assert bed.status["planGeneration"] == 2


def test_the_last_words_of_a_dead_pod_are_taken_by_an_operator_that_was_away() -> None:
    bed, pods = running()
    for index, name in enumerate(pods):
        uid = bed.store.objects[PODS, NS, name]["metadata"]["uid"]
        words = LastWords(
            why="told to end",
            job_uid=bed.uid,
            pod_uid=uid,
            pod_index=index,
            plan_generation=1,
            session="s" * 32,
            sequence=99,
            ranks=(Rank(index, 0, False, 7, False),),
            commits=(Commit(index, 0, 7, "last", Ledger()),),
        )
        bed.ends(name, code=75)
        last = [{"name": c.SIDECAR, "state": {"terminated": {"exitCode": 0, "message": encode(words)}}}]
        bed.set_pod(name, initContainerStatuses=last)
    bed.start_operator()
    bed.pods(1)
    bed.run()
    assert bed.status["cursor"]["commit"] == "last"
    assert bed.status["cursor"]["totalStep"] == 7


def test_ttl_deletes_the_job_with_all_that_belongs_to_it() -> None:
    bed, pods = running(ttlSecondsAfterFinished=60, completion="OnExit")
    for name in pods:
        bed.ends(name)
    bed.set_job(1, completedIndexes="0-1")
    bed.when(lambda: bed.status.get("state") == "Complete")
    bed.later(59)
    assert bed.names(STJS) == [NAME]
    bed.later(2)
    assert bed.names(STJS) == []
    assert bed.names(JOBS) == bed.names(CONFIG_MAPS) == []
    bed.run()
    assert bed.registry.members() == []


def test_a_job_made_anew_under_its_name_has_nothing_of_the_former_one() -> None:
    bed, pods = running()
    former = bed.uid
    bed.store.auto_gc = False
    bed.store.delete(STJS, NS, NAME, uid=former)
    spec = bed.stj["spec"]
    bed.stj = bed.store.create(STJS, NS, {"metadata": {"name": NAME}, "spec": spec})
    with pytest.raises(Exception, match="still being deleted"):
        bed.run()
    assert bed.registry.find(former) is None, "its reports are refused"
    assert bed.status.get("planGeneration", 0) == 0
    bed.store.auto_gc = True
    bed.store.collect()
    bed.run()
    assert bed.indexed() == ""
    bed.run()
    assert bed.names(JOBS) == [f"{NAME}-index"]
    assert bed.condition("Running")[1] == "FormerPods"
    assert pods[0] in bed.condition("Running")[2]
    bed.gone(*pods)
    bed.run()
    assert bed.names(JOBS) == [f"{NAME}-1", f"{NAME}-index"]
    owners = {o["metadata"]["ownerReferences"][0]["uid"] for (k, _, _), o in bed.store.objects.items() if k == JOBS}
    assert owners == {bed.uid}


def test_a_pod_of_a_former_job_on_a_lost_node_does_not_hold_the_name_for_ever() -> None:
    bed, pods = running()
    bed.store.delete(STJS, NS, NAME, uid=bed.uid)
    bed.gone(pods[0])
    node(bed, "node1", "True")
    node(bed, "node2", "Unknown")
    spec = bed.stj["spec"] | {"elastic": {"nodeLostSeconds": 30}}
    bed.stj = bed.store.create(STJS, NS, {"metadata": {"name": NAME}, "spec": spec})
    bed.run()
    bed.indexed()
    bed.run()
    assert bed.condition("Running")[1] == "FormerPods"
    bed.later(31)
    assert bed.store.objects[PODS, NS, pods[1]]["status"]["phase"] == "Failed"
    assert f"{NAME}-1" in bed.names(JOBS)


@pytest.mark.parametrize("noisy", [True, False])
def test_a_namespace_that_is_being_deleted_does_not_wait_for_our_jobs(noisy: bool) -> None:
    """Failed pods are held by the Job controller's finalizer until they are replaced, which can never be."""
    bed, pods = running()

    def before(verb: str, _kind: Kind, _ns: str, _name: str) -> None:
        if verb in ("create", "dry-run"):
            raise Forbidden(f"unable to create new content in namespace {NS} because it is being terminated")

    bed.store.before = before
    for name in pods:
        bed.store.delete(PODS, NS, name, uid=bed.store.objects[PODS, NS, name]["metadata"]["uid"], grace=1)
        bed.set_pod(name, phase="Failed", conditions=[])
    if not noisy:
        bed.controller._actions.act = lambda *_: False
        bed.store.before = lambda *_: None
        bed.later(5)
        bed.store.before = before
    for _ in range(8):
        bed.later(10)
    assert bed.names(JOBS) == []


def test_a_pod_that_takes_its_time_is_no_end_of_its_namespace() -> None:
    bed, pods = running()
    bed.store.delete(PODS, NS, pods[0], uid=bed.store.objects[PODS, NS, pods[0]]["metadata"]["uid"])
    bed.set_pod(pods[0], phase="Failed", conditions=[])
    for _ in range(30):
        bed.later(10)
    assert f"{NAME}-1" in bed.names(JOBS)
    probes = [call for call in bed.store.calls if call[0] == "dry-run" and call[3] == "lanefeed-probe"]
    assert 1 <= len(probes) <= 6, "once a minute"


def test_a_queue_is_not_fought() -> None:
    bed, pods = running()
    bed.store.mutate(JOBS, NS, f"{NAME}-1", lambda o: o["spec"].update(suspend=True))
    bed.gone(*pods)
    bed.later(5)
    assert bed.status["state"] == "Queued"
    for _ in range(5):
        bed.later(60)
    assert bed.store.get(JOBS, NS, f"{NAME}-1")["spec"]["suspend"] is True
    bed.store.mutate(JOBS, NS, f"{NAME}-1", lambda o: o["spec"].update(suspend=False))
    bed.pods(1)
    bed.run()
    assert bed.status["state"] == "Running"
    assert bed.status["planGeneration"] == 1


def test_a_child_that_gave_up_fails_the_job_in_its_words() -> None:
    bed, _ = running()
    bed.set_job(1, **failed_job("DeadlineExceeded", "Job was active longer than specified deadline"))
    bed.run()
    assert bed.status["state"] == "Failed"
    assert "Job was active longer than specified deadline" in bed.condition("Failed")[2]


def test_the_journey_notices_an_operator_that_does_not_know_its_own_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tooth of the crash test: what a killed operator made is taken for a former job's."""
    _, whole = journey(0)
    real = owned.is_ours
    # The CA's map is looked at twice by one operator too.
    monkeypatch.setattr(owned, "is_ours", lambda o, uid: o["metadata"]["name"].endswith("-trust") and real(o, uid))
    assert journey(0)[1] == whole
    missed = 0
    for at in range(1, 20):
        try:
            missed += journey(at)[1] != whole
        except Unreachable:
            missed += 1
    assert missed
