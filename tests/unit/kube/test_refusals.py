"""What cannot be done is said where people look, in words that name the remedy; nothing crashes, nothing spins."""

from typing import Any

import pytest

from lanefeed_operator.kube.api import (
    CONFIG_MAPS,
    EVENTS,
    JOBS,
    NODES,
    PODS,
    SERVICES,
    STJS,
    Forbidden,
    Kind,
    Object,
    Unreachable,
)
from lanefeed_operator.render import constants as c
from unit.kube.bed import NAME, NS, Bed, failed_job, running, spec
from unit.render.objects import manifest


def indexed(**changes: Any) -> Bed:
    bed = Bed(**changes)
    bed.run()
    bed.indexed()
    return bed


def test_a_spec_that_cannot_be_used_is_a_condition_and_no_crash() -> None:
    bed = Bed()
    bed.patch_spec(batching={"globalBatchSize": 33})
    assert bed.run() is None
    value, reason, message = bed.condition("SpecValid")
    assert (value, reason) == ("False", "SpecInvalid")
    assert "spec.batching.globalBatchSize" in message
    assert bed.status["reason"] == "SpecInvalid"
    writes = len(bed.store.writes)
    assert bed.later(600) is None
    assert len(bed.store.writes) == writes
    bed.patch_spec(batching={"globalBatchSize": 32})
    bed.run()
    assert bed.names(JOBS) == [f"{NAME}-index"]
    assert bed.events()[0][0] == "SpecInvalid"


def test_a_status_that_cannot_be_read_is_an_error_that_names_the_field() -> None:
    bed = Bed()
    bed.store.mutate(STJS, NS, NAME, lambda o: o.update(status={"plan": {"generation": "many"}}))
    with pytest.raises(Exception, match=r"status\.plan\.generation: .*restore it from a backup"):
        bed.run()


def test_a_template_that_the_api_server_refuses_is_told_in_its_words_before_anything_is_made() -> None:
    bed = indexed()
    said = "spec.template.spec.containers[0].image: Required value"
    bed.store.admit.append(lambda kind, o: said if kind == JOBS and o["metadata"]["name"].endswith("-1") else "")
    wake = bed.run()
    assert bed.condition("SpecValid")[:2] == ("False", "InvalidPodTemplate")
    assert said in bed.condition("SpecValid")[2]
    assert bed.names(SERVICES) == []
    assert wake is not None
    waits = []
    for _ in range(8):
        waits.append(wake)
        wake = bed.later(wake)
        assert wake is not None
    assert waits[-1] == 30.0, "ever more slowly"
    bed.store.admit.clear()
    bed.later(30)
    assert bed.names(JOBS) == [f"{NAME}-1", f"{NAME}-index"]
    assert bed.condition("SpecValid")[0] == "True"


@pytest.mark.parametrize(
    ("kind", "name"),
    [(CONFIG_MAPS, f"{NAME}-1-plan"), (JOBS, f"{NAME}-1"), (SERVICES, NAME), (JOBS, f"{NAME}-index")],
)
def test_an_object_of_somebody_else_is_in_the_way_and_never_adopted(kind: Kind, name: str) -> None:
    bed = Bed()
    theirs = bed.store.create(kind, NS, {"metadata": {"name": name}, "spec": {"mine": True}})
    bed.run()
    if not name.endswith("index"):
        bed.indexed()
        bed.run()
    reasons = {x["reason"] for x in bed.status["conditions"]}
    assert "NameConflict" in reasons
    text = next(x["message"] for x in bed.status["conditions"] if x["reason"] == "NameConflict")
    assert f"{kind.kind} {NS}/{name} exists and does not belong to this job" in text
    assert bed.store.get(kind, NS, name) == theirs
    bed.store.delete(kind, NS, name, uid=theirs["metadata"]["uid"])
    bed.later(60)
    assert "NameConflict" not in {x["reason"] for x in bed.status["conditions"]}


def test_a_right_that_lacks_is_said() -> None:
    bed = Bed()

    def before(verb: str, kind: Kind, _ns: str, _name: str) -> None:
        if (verb, kind) == ("create", JOBS):
            raise Forbidden("jobs.batch is forbidden: exceeded quota: pods=0")

    bed.store.before = before
    bed.run()
    assert bed.condition("DatasetReady")[:2] == ("False", "Forbidden")
    assert "exceeded quota" in bed.condition("DatasetReady")[2]
    assert bed.status["reason"] == "Forbidden"


def test_an_api_server_that_is_away_is_the_queues_matter_and_nothing_is_lost() -> None:
    bed, pods = running()

    def away(*_: object) -> None:
        raise Unreachable("the API server does not answer")

    bed.store.before = away
    bed.patch_spec(suspend=True)
    for _ in range(3):
        with pytest.raises(Unreachable):
            bed.run()
    assert not bed.report(pods[0], 1, 9, consumed=9).fenced, "reports are taken meanwhile"
    bed.store.before = lambda *_: None
    bed.run()
    assert bed.status["stop"]["reason"] == "Suspend"


def test_events_that_cannot_be_told_are_in_nobodys_way() -> None:
    bed = Bed()

    def before(_verb: str, kind: Kind, _ns: str, _name: str) -> None:
        if kind == EVENTS:
            raise Forbidden("no events")

    bed.store.before = before
    bed.run()
    assert bed.status["state"] == "Indexing"


# ---- the dataset -----------------------------------------------------------------------------------------------


def test_an_indexer_that_fails_for_good_fails_the_job() -> None:
    bed = Bed()
    bed.run()
    name = bed.index_pod()
    bed.ends(name, c.INDEXER, 2, message="DataError: part-3.parquet is truncated: replace it\n")
    index = f"{NAME}-index"
    bed.store.mutate(JOBS, NS, index, lambda o: o.update(status=failed_job("PodFailurePolicy", "exit code 2")))
    bed.run()
    assert bed.status["state"] == "Failed"
    assert bed.condition("Failed")[2] == "part-3.parquet is truncated: replace it"


def test_what_an_indexer_reports_itself_is_taken_too_and_only_of_the_indexer() -> None:
    bed = Bed()
    bed.run()
    pod = bed.store.objects[PODS, NS, bed.index_pod()]
    with pytest.raises(Unreachable, match="is not known yet"):
        bed.registry.manifest_failed(bed.uid, "another-pod", "DataError", "no files match /data", False)
    bed.run()
    assert bed.status["state"] == "Indexing"
    bed.registry.manifest_failed(bed.uid, pod["metadata"]["uid"], "DataError", "no files match /data", False)
    bed.run()
    assert bed.condition("Failed") == ("True", "IndexFailed", "no files match /data")


def test_an_indexer_that_can_be_tried_again_is_ever_more_slowly() -> None:
    bed = Bed()
    bed.run()
    made = []
    for _ in range(600):
        index = bed.store.objects.get((JOBS, NS, f"{NAME}-index"))
        if index is not None and index["metadata"]["uid"] not in made:
            made.append(index["metadata"]["uid"])
            status = failed_job("BackoffLimitExceeded", "too often")
            bed.store.mutate(JOBS, NS, f"{NAME}-index", lambda o, s=status: o.update(status=s))
        bed.later(1)
    assert 5 <= len(made) <= 8, "after 10, 20, 40, ... seconds"
    assert bed.condition("DatasetReady")[:2] == ("False", "IndexFailed")
    bed.indexed()
    bed.run()
    assert bed.status["planGeneration"] == 1


def test_only_the_indexers_pod_hands_over_a_manifest_and_only_the_one_it_says() -> None:
    bed = Bed()
    bed.run()
    name = bed.index_pod()
    uid = bed.store.objects[PODS, NS, name]["metadata"]["uid"]
    assert "is not known" in bed.registry.put_manifest("nobody", uid, "d", b"x")
    with pytest.raises(Unreachable, match=r"pod another-pod of job .* is not known yet: send it again"):
        bed.registry.put_manifest(bed.uid, "another-pod", "d", b"x")
    assert "not a Lanefeed manifest" in bed.registry.put_manifest(bed.uid, uid, "d", b"x")
    assert bed.names(CONFIG_MAPS) == [f"{NAME}-trust"]
    bed.run()
    assert "not a Lanefeed manifest" in bed.condition("DatasetReady")[2] or bed.status["state"] == "Failed"


def test_a_quota_that_leaves_no_room_for_the_manifest_is_said() -> None:
    bed = Bed()
    bed.run()
    name = bed.index_pod()

    def before(verb: str, kind: Kind, _ns: str, _name: str) -> None:
        if (verb, kind) == ("create", CONFIG_MAPS):
            raise Forbidden("exceeded quota: configmaps=0")

    bed.store.before = before
    with pytest.raises(Forbidden):
        bed.hand_over(name)
    bed.run()
    assert bed.condition("DatasetReady")[1] == "IndexFailed"
    assert "cannot be stored: exceeded quota" in bed.condition("DatasetReady")[2]
    bed.store.before = lambda *_: None
    assert bed.hand_over(name) == ""
    bed.run()
    assert bed.status["planGeneration"] == 1


def test_a_manifest_is_stored_once_and_another_one_is_refused() -> None:
    bed = indexed()
    bed.run()
    name = f"{NAME}-1-plan"
    assert bed.config(1).plan.replicas == 2
    pod = next(n for (k, _, n) in bed.store.objects if k == PODS)
    assert bed.hand_over(pod) == "", "sent again: it is stored"
    assert "was indexed as" in bed.hand_over(pod, manifest(shards=9))
    assert (CONFIG_MAPS, NS, name) in bed.store.objects


def test_a_manifest_that_somebody_deleted_is_built_again_and_must_be_the_same() -> None:
    bed, pods = running()
    stored = bed.store.get(CONFIG_MAPS, NS, f"{NAME}-manifest-0")
    bed.store.delete(CONFIG_MAPS, NS, stored["metadata"]["name"], uid=stored["metadata"]["uid"])
    bed.start_operator()
    for _ in range(3):
        bed.later(11)
    assert bed.status["state"] == "Running", "what runs goes on"
    name = bed.index_pod()
    assert "bound to dataset" in bed.hand_over(name, manifest(shards=9))
    bed.run()
    assert bed.condition("DatasetReady")[1] == "DatasetChanged"
    assert bed.hand_over(name) == ""
    bed.run()
    assert not bed.report(pods[0], 1, 9, consumed=9).fenced
    assert (CONFIG_MAPS, NS, f"{NAME}-manifest-0") in bed.store.objects


# ---- the CA ----------------------------------------------------------------------------------------------------


def test_a_new_ca_reaches_the_pods_that_run() -> None:
    bed, _ = running()
    bed.woken.clear()
    bed.registry.trust("CA2")
    assert bed.woken == [(NS, NAME)]
    bed.run()
    assert bed.store.get(CONFIG_MAPS, NS, f"{NAME}-trust")["data"] == {c.TRUST_FILE: "CA2"}
    writes = len(bed.store.writes)
    bed.run()
    assert len(bed.store.writes) == writes


def test_a_job_that_another_controller_runs_is_left_alone() -> None:
    bed = Bed(managedBy="kueue.x-k8s.io/multikueue")
    assert bed.run() is None
    assert bed.store.calls == [("create", "shardedtrainingjobs", NS, NAME)]


def test_two_jobs_of_one_name_in_two_namespaces_do_not_meet() -> None:
    bed, _ = running()
    bed.store.create(STJS, "other", {"metadata": {"name": NAME}, "spec": spec()})
    while (wake := bed.controller.run_pass(("other", NAME))) == 0.0:
        pass
    assert wake is not None
    other: Object = bed.store.get(STJS, "other", NAME)
    assert other["status"]["state"] == "Indexing"
    assert bed.status["state"] == "Running"


def test_a_pod_that_may_not_be_freed_is_no_hot_loop() -> None:
    bed, _ = running(elastic={"nodeLostSeconds": 30})
    since = bed.store.timestamp()
    lost = {"conditions": [{"type": "Ready", "status": "Unknown", "lastTransitionTime": since}]}
    for number in (1, 2):
        bed.store.create(NODES, "", {"metadata": {"name": f"node{number}"}})
    bed.store.mutate(NODES, "", "node2", lambda o: o.update(status=lost))

    def before(verb: str, kind: Kind, _namespace: str, _name: str) -> None:
        if verb == "patch" and kind == PODS:
            raise Forbidden("pods/status is forbidden")

    bed.store.before = before
    bed.later(31)
    bed.woken.clear()
    waits = [bed.later(1) or 0.0 for _ in range(6)]
    assert bed.woken == [], "a fence that stands is no news: each would be a pass at once, and the next fence"
    assert waits[-1] > 1, waits
