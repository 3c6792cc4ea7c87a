"""A dataset that was not ready and is again: it is looked at again, and said once, and what was said before goes."""

from dataclasses import replace

from lanefeed_operator.reconcile import reconcile
from lanefeed_operator.reconcile import types as t
from lanefeed_operator.reconcile.dataset import RETRY_SECONDS
from sim.jobs import MANIFEST, Shell, make_job

OTHER = replace(MANIFEST, digest="n" * 32)
READY = ("True", "Indexed", "1000 samples in 4 shards, 125 steps an epoch")


def test_a_dataset_that_changed_is_looked_at_again_until_it_is_restored() -> None:
    shell = Shell(make_job()).run()
    shell.observe(children={}, manifest=OTHER)
    assert shell.passes() == (t.BuildManifest(),)
    decision = reconcile(shell.job, shell.status, shell.seen, shell.now)
    assert decision.status is shell.status, "said once"
    assert decision.actions == (t.BuildManifest(),)
    assert decision.wake_after == RETRY_SECONDS
    shell.observe(manifest=None)
    writes = shell.writes
    assert shell.passes(5) == (t.BuildManifest(),), "while it is indexed"
    assert shell.writes == writes
    assert shell.condition("DatasetReady")[1] == "DatasetChanged"
    shell.observe(manifest=MANIFEST)
    shell.passes()
    assert shell.condition("DatasetReady") == READY
    assert shell.status.reason == ""
    assert shell.status.plan_generation == 2, "the job goes on"


def test_a_dataset_that_is_indexed_again_is_ready_again() -> None:
    """What its index failed with is over, and does not hide what comes later."""
    shell = Shell(make_job()).run()
    shell.observe(manifest=t.ManifestInfo(error="the store is away", retryable=True))
    shell.passes()
    assert (shell.condition("DatasetReady")[:2], shell.status.reason) == (("False", "IndexFailed"), "IndexFailed")
    shell.observe(manifest=MANIFEST)
    shell.passes()
    assert shell.condition("DatasetReady") == READY
    assert shell.status.reason == ""
    writes = shell.writes
    assert shell.passes(5) == ()
    assert shell.writes == writes, "said once"


def test_what_was_refused_while_it_was_indexed_again_is_over_with_it() -> None:
    shell = Shell(make_job()).run()
    shell.observe(manifest=None, problem=t.Why("Forbidden", "exceeded quota: jobs=1"))
    shell.passes()
    assert shell.condition("DatasetReady")[:2] == ("False", "Forbidden")
    shell.observe(manifest=MANIFEST, problem=None)
    shell.passes()
    assert shell.condition("DatasetReady") == READY


def test_a_job_without_its_dataset_can_be_suspended() -> None:
    shell = Shell(make_job()).run()
    shell.observe(children={}, manifest=OTHER)
    shell.passes()
    shell.job = make_job(suspend=True)
    shell.passes(2)
    assert shell.status.state == "Suspended"
    assert shell.condition("DatasetReady")[1] == "DatasetChanged"
    writes = shell.writes
    shell.passes(5)
    assert shell.writes == writes
    shell.job = make_job()
    shell.passes(3)
    assert shell.status.plan_generation == 1, "it still needs its dataset to go on"
    shell.observe(manifest=MANIFEST)
    shell.passes(3)
    assert shell.status.plan_generation == 2


def test_a_job_that_was_asked_to_leave_is_suspended_although_its_dataset_changed_meanwhile() -> None:
    shell = Shell(make_job()).run()
    shell.job = make_job(suspend=True)
    shell.passes(2)
    assert shell.status.state == "Suspending"
    shell.observe(children={}, manifest=OTHER)
    shell.passes(4)
    assert (shell.status.state, shell.status.stop) == ("Suspended", None)
