"""A creation whose answer was lost, and the watch is late: nothing is concluded from what the view lacks."""

from typing import Any

import pytest

from lanefeed_core.ledger import Ledger
from lanefeed_operator.coordinator.reports import RankCommit
from lanefeed_operator.kube.api import JOBS, Kind, Object, Unreachable
from unit.kube.bed import KEY, NAME, Bed


@pytest.mark.parametrize("landed", [True, False])
def test_a_job_whose_creation_got_no_answer_is_looked_for(monkeypatch: pytest.MonkeyPatch, landed: bool) -> None:
    """Else the next plan would begin beside it (found by the simulation of a cluster, seed 265)."""
    bed = Bed(elastic={"stopGraceSeconds": 0})
    bed.run()
    bed.indexed()
    real, watch = bed.store.create, bed.store._subscribers

    def lossy(kind: Kind, namespace: str, body: Object, **more: Any) -> Object:
        if kind != JOBS or more.get("dry_run") or not body["metadata"]["name"].endswith("-1"):
            return real(kind, namespace, body, **more)
        if landed:
            bed.store._subscribers = []
            real(kind, namespace, body, **more)
            bed.store._subscribers = watch
        raise Unreachable("the answer did not come in time")

    monkeypatch.setattr(bed.store, "create", lossy)
    with pytest.raises(Unreachable):
        bed.run()
    assert (f"{NAME}-1" in bed.names(JOBS)) is landed
    assert not any(job.name == f"{NAME}-1" for job in bed.view.jobs_of(KEY)), "the watch has not told of it"
    bed.patch_spec(restartToken="again")
    bed.store.calls.clear()
    bed.run()
    bed.later(6)
    done = [(verb, name) for verb, plural, _, name in bed.store.writes if plural == "jobs"]
    assert done == [*([("delete", f"{NAME}-1")] if landed else []), ("create", f"{NAME}-2")]


@pytest.mark.parametrize("died", [True, False])
def test_a_creation_that_lands_after_the_next_plan_has_begun_is_fenced_and_deleted(
    monkeypatch: pytest.MonkeyPatch, died: bool
) -> None:
    """Nobody knows of a request that is still on its way: what it makes lives for a moment and counts for nothing."""
    bed = Bed(elastic={"stopGraceSeconds": 0})
    bed.run()
    bed.indexed()
    real, late = bed.store.create, list[Object]()

    def slow(kind: Kind, namespace: str, body: Object, **more: Any) -> Object:
        if kind != JOBS or more.get("dry_run") or late:
            return real(kind, namespace, body, **more)
        late.append(body)
        raise Unreachable("the answer did not come in time")

    monkeypatch.setattr(bed.store, "create", slow)
    with pytest.raises(Unreachable):
        bed.run()
    if died:
        bed.start_operator()
    bed.patch_spec(restartToken="again")
    bed.run()
    bed.later(6)
    new = bed.pods(2)
    bed.run()
    real(JOBS, late[0]["metadata"]["namespace"], late[0])
    old = bed.pods(1)
    ledger = Ledger()
    for name in old:
        reply = bed.report(name, 1, consumed=4, commits=(RankCommit(int(name.split("-")[2]), 0, 4, "old", ledger),))
        assert reply.fenced
        assert "was replaced by 2" in reply.reason
    bed.run()
    assert ("delete", "jobs", f"{NAME}-1") in [(verb, plural, name) for verb, plural, _, name in bed.store.writes]
    for name in new:
        assert not bed.report(name, 2, consumed=1).fenced
    assert bed.status["planGeneration"] == 2
    assert bed.status["cursor"]["totalStep"] == 0
