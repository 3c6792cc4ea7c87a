"""The controller's straight path: from an applied job to Complete, over an API server in memory."""

from lanefeed_operator.kube.api import CONFIG_MAPS, JOBS, SERVICES
from unit.kube.bed import NAME, Bed


def running(**changes: object) -> tuple[Bed, list[str]]:
    """A job whose plan generation 1 runs."""
    bed = Bed(**changes)
    bed.run()
    assert bed.indexed() == ""
    bed.run()
    pods = bed.pods(1)
    bed.run()
    return bed, pods


def test_from_apply_to_running() -> None:
    bed = Bed()
    bed.run()
    assert bed.names(JOBS) == [f"{NAME}-index"]
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


def test_nothing_is_written_while_nothing_changes() -> None:
    bed, _ = running()
    bed.store.calls.clear()
    for _ in range(60):
        bed.later(10.0)
    assert bed.store.calls == []
