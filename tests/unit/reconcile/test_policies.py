"""Each policy of reconcile, by itself: what is persisted, what is done, what people read."""

from dataclasses import replace
from typing import Any

import pytest

from lanefeed_operator.api.status import EpochProof, from_time, to_time
from lanefeed_operator.reconcile import types as t
from lanefeed_operator.reconcile.failures import Verdict, verdict
from lanefeed_operator.reconcile.stop import stop_step
from sim.jobs import MANIFEST, NOW, Shell, kids, make_job, pod, view


def test_write_ahead_status_then_plan_then_children() -> None:
    shell = Shell(make_job())
    assert shell.passes() == ()
    assert shell.status.plan_generation == 1
    assert shell.passes() == (t.WritePlan(1, 2, 1, 0),)
    shell.observe(plans=frozenset({1}))
    shell.feed()
    assert shell.passes() == (t.CreateChildren(1, 2),)


def test_the_manifest_is_built_first_and_the_stream_frozen() -> None:
    shell = Shell(make_job())
    shell.observe(manifest=None)
    assert shell.passes() == (t.BuildManifest(),)
    assert shell.status.state == "Indexing"
    shell.observe(manifest=MANIFEST)
    shell.passes()
    stream = shell.status.stream
    assert stream is not None
    assert (stream.lanes, stream.window, stream.steps_per_epoch, stream.total_steps) == (8, 8192, 125, 125)
    shell.job = make_job(batching={"globalBatchSize": 8, "uneven": "Allow", "lanes": 2})
    shell.passes()
    assert shell.status.stream == stream


def test_an_index_that_failed_ends_a_job_that_has_not_begun() -> None:
    shell = Shell(make_job())
    shell.observe(manifest=t.ManifestInfo(error="data/*.parquet matches no file: check data.uri"))
    shell.passes()
    assert shell.status.state == "Failed"
    assert "matches no file" in shell.condition("Failed")[2]


def test_too_few_samples_say_what_to_change() -> None:
    shell = Shell(make_job())
    shell.observe(manifest=replace(MANIFEST, rows=5))
    shell.passes()
    assert "lower globalBatchSize or set lastBatch" in shell.condition("Failed")[2]


def test_a_dataset_that_changed_is_refused_on_resume() -> None:
    shell = Shell(make_job()).run()
    shell.observe(children={}, manifest=replace(MANIFEST, digest="n" * 32))
    assert shell.passes() == (t.BuildManifest(),)
    assert shell.condition("DatasetReady")[:2] == ("False", "DatasetChanged")
    assert shell.status.plan_generation == 1


def test_idle_is_never_written() -> None:
    shell = Shell(make_job()).run()
    writes = shell.writes
    for _ in range(60):
        shell.now += 10
        shell.passes()
    assert shell.writes == writes
    assert shell.actions == []


def test_progress_is_written_every_10_seconds_at_most() -> None:
    shell = Shell(make_job()).run()
    writes = shell.writes
    for second in range(100):
        shell.now += 1
        shell.feed(ranks={r: view(r, 10 + second) for r in range(2)})
        shell.passes()
    assert 9 <= shell.writes - writes <= 10


def test_a_resize_asks_waits_deletes_and_begins_from_the_commit() -> None:
    shell = Shell(make_job()).run()
    shell.job = make_job(replicas=3)
    assert shell.passes() == ()
    assert shell.status.stop is not None
    assert (shell.status.stop.step, shell.status.stop.reason) == (stop_step(10, 2.0), "Resize")
    assert shell.status.state == "Resizing"
    assert shell.passes() == (t.AskStop(1, 16, "Resize"),)
    shell.feed(stop_at=16)
    assert shell.passes() == ()
    shell.feed(last_step=16, last_name="c16", last_generation=1)
    shell.passes()
    assert shell.status.stop.outcome == "Committed"
    assert shell.passes() == (t.DeleteChildren(1, "Resize"),)
    shell.observe(children={1: kids(deleting=True)})
    assert shell.passes() == (t.DeleteChildren(1, "Resize"),)
    assert shell.status.plan_generation == 1
    shell.observe(children={})
    shell.passes()
    assert (shell.status.plan_generation, shell.status.replicas, shell.status.plan.start) == (2, 3, 16)
    assert shell.status.restarts.resizes == 1
    assert shell.passes() == (t.WritePlan(2, 3, 1, 16),)


@pytest.mark.parametrize(("change", "outcome"), [("grace", "GraceOver"), ("left", "AllLeft")])
def test_a_stop_also_ends_when_all_left_or_the_grace_is_over(change: str, outcome: str) -> None:
    shell = Shell(make_job()).run()
    shell.job = make_job(restartToken="a")
    shell.passes(2)
    if change == "grace":
        shell.now += 20.1
    else:
        shell.observe(children={1: kids(pods=(pod(0, "Failed", exit_code=75), pod(1, "Failed", exit_code=75)))})
    shell.passes()
    assert shell.status.stop is not None
    assert shell.status.stop.outcome == outcome
    assert shell.status.restarts.failures == 0


def test_the_stop_lies_ahead_of_the_fastest() -> None:
    assert stop_step(100, 0.0) == 102
    assert stop_step(100, 0.1) == 102
    assert stop_step(100, 10.5) == 132


def test_a_size_that_cannot_run_is_refused_and_the_job_goes_on() -> None:
    shell = Shell(make_job()).run()
    shell.job = make_job(replicas=9)
    assert shell.passes(2) == ()
    assert shell.status.plan_generation == 1
    assert shell.condition("SpecValid")[:2] == ("False", "SizeRefused")
    assert "the job goes on with 2 pods" in shell.condition("SpecValid")[2]


def test_suspend_and_resume() -> None:
    shell = Shell(make_job()).run()
    shell.job = make_job(suspend=True)
    shell.passes(2)
    shell.feed(last_step=16, last_name="c", last_generation=1, stop_at=16)
    shell.passes(2)
    shell.observe(children={})
    shell.passes(2)
    assert shell.status.state == "Suspended"
    assert shell.status.restarts.suspends == 1
    writes = shell.writes
    shell.passes(5)
    assert shell.writes == writes
    shell.job = make_job()
    shell.passes()
    assert (shell.status.plan_generation, shell.status.plan.start) == (2, 16)
    assert shell.condition("Suspended")[0] == "False"


def done(**more: Any) -> t.Children:
    return kids(succeeded=frozenset({0, 1}), pods=(pod(0, "Succeeded"), pod(1, "Succeeded")), **more)


def test_done_means_consumed() -> None:
    shell = Shell(make_job()).run()
    shell.observe(children={1: done()})
    proof = EpochProof(epoch=0, samples=1, digest="a", expected="a", verified=True)
    shell.feed(ranks={r: view(r, 125, ended=True) for r in range(2)}, last_step=125, proofs=(proof,), proven=1)
    shell.passes()
    assert shell.status.state == "Complete"
    assert shell.condition("Proven")[0] == "True"
    assert (shell.status.ready_replicas, shell.status.progress.steps_per_second) == (0, 0.0)
    writes = shell.writes
    shell.now += 60
    shell.feed(rate=0.0, ranks={r: view(r, 125, ended=True, attached=False) for r in range(2)})
    assert shell.passes(3) == ()
    assert shell.writes == writes, "what is over is not written again"


def test_complete_without_a_last_commit_says_that_it_is_not_proven() -> None:
    shell = Shell(make_job()).run()
    shell.observe(children={1: done()})
    shell.feed(ranks={r: view(r, 125, ended=True) for r in range(2)})
    shell.passes()
    assert shell.status.state != "Complete"
    shell.now += 3.1
    shell.passes()
    assert shell.status.state == "Complete"
    assert shell.condition("Proven")[:2] == ("Unknown", "NotCommitted")
    assert "loader.commit()" in shell.condition("Proven")[2]


@pytest.mark.parametrize("what", ["not ended", "another pod ended"])
def test_exit_0_before_the_end_is_an_interruption(what: str) -> None:
    shell = Shell(make_job()).run()
    shell.observe(children={1: done()})
    late = view(1, 50) if what == "not ended" else view(1, 125, ended=True, pod_uid="former")
    shell.feed(ranks={0: view(0, 125, ended=True), 1: late}, last_step=48, last_generation=1)
    shell.passes()
    assert shell.status.state != "Complete"
    shell.now += 15.1
    shell.passes(2)
    assert shell.actions == [t.DeleteChildren(1, "Interrupted")]
    shell.observe(children={})
    shell.passes()
    assert (shell.status.plan_generation, shell.status.plan.start) == (2, 48)
    assert shell.status.restarts.interrupted == 1


def test_on_exit_takes_the_jobs_word() -> None:
    shell = Shell(make_job(completion="OnExit")).run()
    shell.observe(children={1: done()})
    shell.now += 4
    shell.passes()
    shell.now += 4
    shell.passes()
    assert shell.status.state == "Complete"


def test_a_trainer_that_exits_0_at_once_does_not_loop_for_ever() -> None:
    shell = Shell(make_job(maxRestarts=2)).run()
    for number in range(1, 20):
        if shell.status.terminal:
            break
        shell.observe(children={number: replace(done(), generation=number)}, plans=frozenset({number}))
        shell.feed(ranks={}, plan_generation=number)
        shell.passes()
        shell.now += 16
        shell.passes(2)
        shell.observe(children={})
        shell.passes(2)
    assert shell.status.plan_generation == 3
    assert shell.condition("Failed")[1] == "ExitedEarly"
    assert "loader.finish()" in shell.condition("Failed")[2]


def test_the_budget_is_per_index_and_names_the_last_exit() -> None:
    shell = Shell(make_job()).run()
    last = pod(1, "Failed", exit_code=3, message="boom")
    shell.observe(children={1: kids(failures={1: 3}, pods=(pod(0), last))})
    shell.passes()
    assert shell.status.state == "Running"
    assert "pod index 1 failed 3 times of 3" in shell.condition("Degraded")[2]
    shell.observe(children={1: kids(failures={1: 4}, failed=frozenset({1}), pods=(pod(0), last))})
    shell.passes()
    assert shell.condition("Failed")[1] == "TooManyRestarts"
    assert "exit code 3: boom" in shell.condition("Failed")[2]
    assert shell.passes() == (t.DeleteChildren(1, "Finished"),)
    assert shell.status.restarts.failures == 4


def test_counters_count_once_whatever_is_seen_again() -> None:
    shell = Shell(make_job(maxRestarts=10)).run()
    for failures in ({0: 1}, {0: 1}, {0: 1, 1: 2}, {}, {1: 2}):
        shell.observe(children={1: kids(failures=failures, disruptions=1)})
        shell.passes(2)
    assert (shell.status.restarts.failures, shell.status.restarts.disruptions) == (3, 1)


def test_verdicts() -> None:
    assert verdict(0, 0, 3).verdict is Verdict.DONE
    assert verdict(75, 0, 3) == verdict(1, 0, 3, disrupted=True)
    assert not verdict(75, 9, 3).counts
    assert verdict(75, 0, 3, stopping=True).verdict is Verdict.LEFT
    assert verdict(-9, 2, 3).counts
    assert verdict(1, 3, 3).verdict is Verdict.FAIL
    assert verdict(1, 0, 0).verdict is Verdict.FAIL
    assert [verdict(1, n, 99).delay for n in (0, 1, 2, 3, 50)] == [0.0, 1.0, 2.0, 4.0, 60.0]


def test_failures_that_no_restart_mends() -> None:
    shell = Shell(make_job()).run()
    shell.feed(failures=(t.FeedFailure("ArenaError", "full", False, 0), t.FeedFailure("DataError", "x", True, 0)))
    shell.passes()
    assert shell.status.state == "Running"
    shell.feed(failures=(t.FeedFailure("DataError", "a.parquet is truncated", False, 1),))
    shell.passes()
    assert "pod 1: a.parquet is truncated" in shell.condition("Failed")[2]


def test_a_ledger_that_differs_is_terminal() -> None:
    shell = Shell(make_job()).run()
    shell.feed(mismatch=t.FeedFailure("LedgerMismatch", "epoch 0: 3 samples were never used"))
    shell.passes()
    assert shell.condition("Failed")[1:] == ("LedgerMismatch", "epoch 0: 3 samples were never used")


def test_lost_nodes_are_fenced_after_they_were_written_down() -> None:
    shell = Shell(make_job()).run()
    shell.observe(children={1: kids(pods=(pod(0), pod(1, lost_since=NOW)))})
    assert shell.passes() == ()
    shell.now += 31
    assert shell.passes() == ()
    assert shell.status.plan.fenced == ["u1"]
    assert shell.passes()[0] == t.Fence(1, 1, "u1", "its node is lost for 30 s")
    assert shell.status.restarts.lost == 1
    shell.observe(children={1: kids(pods=(pod(0), pod(1, uid="new")))})
    shell.passes()
    assert shell.status.plan.fenced == []


def test_no_place_shrinks_and_stays_small() -> None:
    elastic = {"shrinkAfterSeconds": 60, "minReplicas": 1, "stopGraceSeconds": 0}
    shell = Shell(make_job(replicas=4, elastic=elastic)).run()
    some = (pod(0), pod(1), pod(2), pod(3, "Pending"))
    shell.observe(children={1: kids(replicas=4, pods=some, unplaced_since=shell.now)})
    shell.passes()
    assert shell.status.stop is None
    shell.now += 61
    shell.passes(2)
    shell.observe(children={})
    shell.passes()
    assert (shell.status.plan_generation, shell.status.replicas) == (2, 3)
    shell.observe(children={2: kids(2, 3)}, plans=frozenset({2}))
    shell.feed(ranks={})
    shell.passes(3)
    assert shell.status.plan_generation == 2
    assert shell.status.stop is None


def test_ranks_that_began_apart_are_named_and_begin_again() -> None:
    shell = Shell(make_job(maxRestarts=0)).run()
    shell.feed(disagree={1: 40})
    shell.passes()
    assert shell.condition("Degraded")[1] == "RanksDisagree"
    assert "rank 1 at step 40" in shell.condition("Degraded")[2]
    shell.now += 31
    shell.passes()
    assert shell.condition("Failed")[1] == "RanksDisagree"


def test_children_that_were_deleted_by_somebody_give_a_new_plan() -> None:
    shell = Shell(make_job()).run()
    shell.observe(children={})
    shell.passes()
    assert (shell.status.plan_generation, shell.status.plan.reason) == (2, "ChildrenLost")


def test_children_of_another_plan_are_deleted_and_nothing_starts_beside_them() -> None:
    shell = Shell(make_job())
    shell.observe(children={5: kids(5)})
    assert shell.passes() == (t.DeleteChildren(5, "OldPlan"),)
    shell.observe(children={}, plans=frozenset({5}))
    shell.passes()
    assert shell.status.plan_generation == 6


def test_deadline_and_time_to_live() -> None:
    shell = Shell(make_job(activeDeadlineSeconds=100, ttlSecondsAfterFinished=50)).run()
    shell.now += 101
    shell.passes()
    assert shell.condition("Failed")[1] == "DeadlineExceeded"
    assert shell.passes() == (t.DeleteChildren(1, "Finished"),)
    shell.observe(children={})
    assert shell.passes() == ()
    shell.now += 51
    assert shell.passes() == (t.DeleteJob(),)


def test_a_stranded_pod_does_not_wait_for_ever() -> None:
    """Its peers exited 0; it died before it could, and its replacement waits for them."""
    shell = Shell(make_job()).run()
    some = kids(succeeded=frozenset({0}), pods=(pod(0, "Succeeded"), pod(1, uid="again")))
    shell.observe(children={1: some})
    ended = {r: view(r, 125, ended=True) for r in range(2)}
    shell.feed(ranks=ended, moved=shell.now, last_step=125, last_generation=1)
    shell.passes()
    assert shell.status.state != "Complete"
    shell.now += 61
    shell.passes()
    assert shell.status.state == "Complete"


def test_times() -> None:
    assert from_time(to_time(NOW + 0.25)) == NOW + 0.25
    assert from_time("") == 0
