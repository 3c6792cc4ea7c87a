"""Which pods are given up with their nodes: those that nobody hears of, and none whose sidecar reports."""

from dataclasses import replace

from lanefeed_operator.reconcile import reconcile
from lanefeed_operator.reconcile import types as t
from sim.jobs import NOW, Shell, kids, make_job, pod, view


def begun(*, at: float, **more: object) -> Shell:
    """A job of two pods; the node of the second is marked at NOW, its sidecar was heard of at `at`."""
    shell = Shell(make_job()).run()
    shell.observe(children={1: kids(pods=(pod(0), pod(1, lost_since=NOW, name="j-1-1-x")))})
    shell.feed(ranks={0: view(0, at=at), 1: view(1, at=at)}, moved=at, **more)
    return shell


def fenced(shell: Shell, seconds: float) -> list[str]:
    """Who is to be fenced that many seconds after the node was marked."""
    shell.now = NOW + seconds
    shell.passes(2)
    return list(shell.status.plan.fenced)


def test_a_pod_that_reports_is_not_lost_with_its_node() -> None:
    """nodeLostSeconds is 30. A node can be marked for a minute after an outage of the API server."""
    shell = begun(at=NOW)
    for seconds in range(10, 200, 10):
        shell.feed(ranks={r: view(r, at=NOW + seconds - 1) for r in range(2)}, moved=NOW + seconds - 2)
        assert fenced(shell, seconds) == []
        assert shell.status.reason == "", "it trains: nothing stands in the way"
    assert shell.status.restarts.lost == 0


def test_it_is_lost_once_its_reports_have_stopped_for_as_long() -> None:
    shell = begun(at=NOW + 60)
    assert fenced(shell, 75) == []
    assert fenced(shell, 85) == []
    assert shell.status.reason == "NodeLost"
    assert "the node of pod j-1-1-x has not been heard of since" in shell.condition("Degraded")[2]
    assert fenced(shell, 90.5) == ["u1"]
    assert shell.actions[-1] == t.Fence(1, 1, "u1", "its node is lost for 30 s")


def test_a_pod_that_reports_while_nothing_moves_is_lost() -> None:
    """Its peers cannot reach it, say: no kubelet would ever restart it (seeds 65 and 161 of the simulation)."""
    shell = begun(at=NOW + 5)
    for seconds in range(10, 36, 5):
        shell.feed(ranks={r: view(r, at=NOW + seconds - 1) for r in range(2)}, moved=NOW + 5)
        assert fenced(shell, seconds - 0.5) == []
    assert fenced(shell, 35) == ["u1"]


def test_reports_of_the_pod_before_it_keep_nothing() -> None:
    shell = begun(at=NOW)
    shell.feed(ranks={0: view(0, at=NOW + 39), 1: view(1, at=NOW + 39, pod_uid="former")}, moved=NOW + 39)
    assert fenced(shell, 40) == ["u1"]


def test_reports_of_a_pod_that_is_deleted_keep_nothing() -> None:
    """The node controller has decided, and the pod's index waits for its end."""
    shell = begun(at=NOW + 39)
    pods = (pod(0), replace(pod(1, lost_since=NOW), leaves_by=NOW + 20))
    shell.observe(children={1: kids(pods=pods)})
    assert fenced(shell, 40) == ["u1"]


def test_a_new_control_plane_waits_for_the_first_reports() -> None:
    """It knows the node's mark before it was heard from a single pod."""
    shell = begun(at=NOW)
    shell.feed(ranks={}, found=NOW + 100)
    assert fenced(shell, 101) == []
    assert fenced(shell, 114) == []
    shell.feed(ranks={1: view(1, at=NOW + 114)}, found=NOW + 100, moved=NOW + 114)
    assert fenced(shell, 120) == []
    shell.feed(ranks={}, found=NOW + 100)
    assert fenced(shell, 121) == ["u1"]


# ---- of a job that is over -------------------------------------------------------------------------------------


def failed(**spec: object) -> Shell:
    """Its program failed too often at NOW, just when the node of the other pod was lost: that one never ends."""
    shell = Shell(make_job(maxRestarts=0, **spec)).run()
    shell.feed(last_step=8, last_name="c", last_generation=1)
    stuck(shell, pod(1, lost_since=NOW))
    shell.passes(2)
    assert shell.condition("Failed")[1] == "TooManyRestarts"
    assert shell.actions == [t.DeleteChildren(1, "Finished")]
    stuck(shell, replace(pod(1, lost_since=NOW), leaves_by=NOW + 20), deleting=True)
    return shell


def stuck(shell: Shell, *pods: t.Pod, **more: object) -> None:
    dead = pod(0, "Failed", exit_code=3)
    shell.observe(children={1: kids(failures={0: 1}, failed=frozenset({0}), pods=(dead, *pods), **more)})


FREED = t.Fence(1, 1, "u1", "its node is lost for 30 s")


def test_a_failed_job_frees_its_pods_on_lost_nodes_and_goes_on() -> None:
    shell = failed()
    shell.job = make_job(maxRestarts=0, restartToken="again")
    assert fenced(shell, 29) == []
    assert FREED not in shell.actions, "its node may come back"
    shell.now = NOW + 30
    assert FREED not in shell.passes(), "written down first"
    assert shell.status.plan.fenced == ["u1"]
    assert shell.passes() == (t.DeleteChildren(1, "Finished"), FREED)
    writes = shell.writes
    assert shell.passes(3)[-1] == FREED, "until it is seen to be gone"
    assert (shell.writes, shell.status.restarts.lost) == (writes, 1)
    stuck(shell, pod(1, "Failed", disrupted=True), deleting=True)
    shell.passes(2)
    assert (shell.status.plan_generation, shell.status.plan.start, shell.status.terminal) == (2, 8, False)


def test_its_time_to_live_begins_nothing_before_and_ends_it_then() -> None:
    shell = failed(ttlSecondsAfterFinished=60)
    shell.now = NOW + 100
    shell.passes(2)
    assert shell.actions[-1] == FREED
    shell.observe(children={})
    assert shell.passes() == (t.DeleteJob(),)


def test_it_is_looked_at_again_when_the_node_has_been_lost_for_long_enough() -> None:
    shell = failed()
    for seconds, wake in ((10, 5.0), (28, 2.0), (30, 0.0), (30, 5.0)):
        decision = reconcile(shell.job, shell.status, shell.seen, NOW + seconds)
        assert decision.wake_after == wake
        shell.status = decision.status
    assert FREED in decision.actions


def test_pods_that_end_by_themselves_or_may_not_be_given_up_are_waited_for() -> None:
    shell = failed()
    stuck(shell, replace(pod(1), leaves_by=NOW + 20), deleting=True)
    assert fenced(shell, 500) == []
    shell = failed(elastic={"nodeLostSeconds": 0})
    assert fenced(shell, 500) == []
    assert set(shell.actions) == {t.DeleteChildren(1, "Finished")}


def test_a_lost_pod_of_a_plan_that_is_over_is_freed_too() -> None:
    """Nothing starts beside it: it would keep the job waiting for ever."""
    shell = Shell(make_job()).run()
    shell.job = make_job(restartToken="again")
    shell.observe(children={7: kids(7, pods=(pod(0, "Failed", exit_code=3), pod(1, lost_since=NOW)))})
    assert fenced(shell, 10) == []
    assert shell.actions[-1] == t.DeleteChildren(7, "OldPlan")
    assert fenced(shell, 31) == ["u1"]
    assert t.Fence(7, 1, "u1", "its node is lost for 30 s") in shell.actions
    shell.observe(children={})
    shell.passes(3)
    assert (shell.status.plan_generation, shell.status.plan.fenced) == (2, [])
