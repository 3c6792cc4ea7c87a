"""What a job comes back from: a failure that was reported, and a dataset that was not the one it is bound to."""

import pytest

from lanefeed_core.lastwords import Commit, Failure, LastWords, Rank, encode
from lanefeed_core.ledger import Ledger
from lanefeed_operator.coordinator.reports import PodReport, RankCommit, RankReport
from lanefeed_operator.kube.api import CONFIG_MAPS, JOBS, PODS
from lanefeed_operator.render import constants as c
from unit.kube.bed import NAME, NS, Bed, failed_job, running
from unit.render.objects import manifest

DATA_ERROR = ("DataError", "part-3.parquet is truncated: replace it", False)


def data_error(bed: Bed, pods: list[str]) -> None:
    """A sidecar reports what no restart mends."""
    member = bed.registry.find(bed.uid)
    assert member is not None
    assert member.coordinator is not None
    report = PodReport(
        job_uid=bed.uid,
        pod_index=0,
        pod_uid=bed.store.objects[PODS, NS, pods[0]]["metadata"]["uid"],
        plan_generation=1,
        session="s" * 32,
        sequence=2,
        ranks=(RankReport(rank=0, started=0, from_state=False, consumed=3, attached=True),),
        failures=(DATA_ERROR,),
    )
    member.coordinator.report(report, bed.now)


def epoch_of_nothing(bed: Bed, pods: list[str]) -> None:
    """All ranks commit an epoch without a single sample of it."""
    steps = bed.status["stream"]["stepsPerEpoch"]
    for rank, name in enumerate(pods):
        commits = (RankCommit(rank, 0, steps, "ckpt", Ledger()),)
        bed.report(name, 1, 2, rank=rank, consumed=steps, commits=commits)


def last_words(bed: Bed, name: str, index: int) -> None:
    """The pod ends, and its sidecar repeats what it had reported; the Job controller has not let go of it yet."""
    steps = bed.status["stream"]["stepsPerEpoch"]
    words = LastWords(
        why=DATA_ERROR[1],
        job_uid=bed.uid,
        pod_uid=bed.store.objects[PODS, NS, name]["metadata"]["uid"],
        pod_index=index,
        plan_generation=1,
        session="s" * 32,
        sequence=99,
        ranks=(Rank(index, 0, False, steps, False),),
        commits=(Commit(index, 0, steps, "ckpt", Ledger()),),
        failures=(Failure(*DATA_ERROR),),
    )
    trainer = [{"name": c.TRAINER, "state": {"terminated": {"exitCode": 143, "reason": "Error"}}}]
    sidecar = [{"name": c.SIDECAR, "state": {"terminated": {"exitCode": 2, "message": encode(words)}}}]
    bed.set_pod(name, phase="Failed", conditions=[], containerStatuses=trainer, initContainerStatuses=sidecar)


@pytest.mark.parametrize("dead", [True, False], ids=["dead pods are still there", "all pods go at once"])
@pytest.mark.parametrize(
    ("reason", "report"), [("DataError", data_error), ("LedgerMismatch", epoch_of_nothing)], ids=["data", "ledger"]
)
def test_a_token_that_is_changed_while_pods_of_a_failed_job_end_is_not_used_up(
    reason: str, report: object, dead: bool
) -> None:
    """What failed the job was reported of the plan that is over: it must not fail the job that goes on."""
    bed, pods = running()
    assert callable(report)
    report(bed, pods)
    bed.run()
    assert bed.condition("Failed")[:2] == ("True", reason)
    assert "deletionTimestamp" in bed.store.get(JOBS, NS, f"{NAME}-1")["metadata"]
    bed.patch_spec(restartToken="mended")
    bed.later(5)
    assert bed.status["state"] == "Failed", "its pods live"
    if dead:
        for index, name in enumerate(pods):
            last_words(bed, name, index)
        bed.run()
    assert bed.status["state"] == ("Starting" if dead else "Failed")
    bed.gone(*pods)
    bed.run()
    bed.later(6)
    assert bed.condition("Failed")[:2] == ("False", "Restarted")
    assert bed.status["planGeneration"] == 2
    assert bed.names(JOBS) == [f"{NAME}-2", f"{NAME}-index"]
    pods = bed.pods(2)
    bed.run()
    for name in pods:
        assert not bed.report(name, 2, consumed=1).fenced
    bed.run()
    assert bed.status["state"] == "Running"


def changed() -> Bed:
    """A job with no pods whose manifest somebody deleted, and whose files are others by now."""
    bed, pods = running()
    for kind, name in ((CONFIG_MAPS, f"{NAME}-manifest-0"), (JOBS, f"{NAME}-1"), (JOBS, f"{NAME}-index")):
        bed.store.delete(kind, NS, name, uid=bed.store.get(kind, NS, name)["metadata"]["uid"])
    bed.gone(*pods)
    bed.start_operator()
    bed.run()
    other(bed)
    bed.run()
    assert bed.condition("DatasetReady")[1] == "DatasetChanged"
    return bed


def other(bed: Bed) -> None:
    """The indexer finds other files, and ends as it does where its manifest is not wanted."""
    name = bed.index_pod()
    assert "bound to dataset" in bed.hand_over(name, manifest(shards=9))
    bed.ends(name, c.INDEXER, 2)
    status = failed_job("PodFailurePolicy", "exit code 2")
    bed.store.mutate(JOBS, NS, f"{NAME}-index", lambda o: o.update(status=status))


def test_files_that_were_restored_are_found_by_looking_again() -> None:
    bed = changed()
    bed.when(lambda: "status" not in bed.store.objects.get((JOBS, NS, f"{NAME}-index"), {"status": 1}))
    assert bed.condition("DatasetReady")[1] == "DatasetChanged", "until it is known better"
    assert bed.indexed() == ""
    bed.run()
    assert bed.condition("DatasetReady")[:2] == ("True", "Indexed")
    assert bed.status["reason"] != "DatasetChanged"
    assert f"{NAME}-2" in bed.names(JOBS)


def test_files_that_stay_changed_are_indexed_ever_more_slowly_and_said_once() -> None:
    bed = changed()
    said, made = bed.condition("DatasetReady"), 0
    bed.store.calls.clear()
    for _ in range(600):
        index = bed.store.objects.get((JOBS, NS, f"{NAME}-index"))
        if index is not None and "status" not in index:
            made += 1
            other(bed)
        bed.later(1)
        assert bed.condition("DatasetReady") == said
    assert 3 <= made <= 7, "after 10, 20, 40, ... seconds"
    assert [call for call in bed.store.writes if call[0] == "replace_status"] == []
