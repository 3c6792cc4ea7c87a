"""A pod that failed is said, and is no longer said once all pods have been well for a while; without flapping."""

from lanefeed_operator.reconcile import reconcile
from lanefeed_operator.reconcile.troubles import WELL_SECONDS
from sim.jobs import NOW, Shell, kids, make_job, pod

DEAD = pod(1, "Failed", uid="dead", name="j-1-1-x", exit_code=3)


def failed(shell: Shell, *pods_of_one: object, times: int = 1) -> None:
    """Index 1 has failed; pod 0 runs since the beginning."""
    shell.observe(children={1: kids(failures={1: times}, pods=(pod(0, started=NOW), DEAD, *pods_of_one))})
    shell.passes()


def test_a_failure_is_said_until_all_pods_have_been_well_for_a_while() -> None:
    shell = Shell(make_job()).run()
    failed(shell)
    assert (shell.status.state, shell.status.reason) == ("Running", "PodsFailing")
    shell.now += 10
    began = shell.now
    failed(shell, pod(1, uid="new", started=began))
    assert shell.status.reason == "PodsFailing", "it has only begun"
    shell.now = began + WELL_SECONDS - 1
    shell.passes()
    assert shell.status.reason == "PodsFailing"
    wake = reconcile(shell.job, shell.status, shell.seen, shell.now).wake_after
    assert wake is not None
    assert wake <= 1, "asks to be called when it is over"
    writes = shell.writes
    shell.now = began + WELL_SECONDS
    shell.passes()
    assert shell.status.reason == ""
    assert shell.condition("Degraded") == ("False", "Well", "nothing is wrong")
    assert shell.status.restarts.failures == 1, "what is counted stays counted"
    assert shell.writes == writes + 1
    shell.passes(3)
    assert shell.writes == writes + 1


def test_a_pod_that_keeps_failing_does_not_make_the_reason_come_and_go() -> None:
    shell = Shell(make_job(maxRestarts=10)).run()
    seen = []
    for times in range(1, 6):
        failed(shell, times=times)
        shell.now += 30
        failed(shell, pod(1, uid=f"n{times}", started=shell.now), times=times)
        shell.now += WELL_SECONDS / 2
        shell.passes()
        seen.append(shell.status.reason)
    assert seen == ["PodsFailing"] * 5


def test_a_pod_that_is_not_ready_is_not_well_however_long_it_takes() -> None:
    shell = Shell(make_job()).run()
    failed(shell, pod(1, "Pending", uid="new", started=NOW))
    shell.now += 10 * WELL_SECONDS
    shell.passes()
    assert shell.status.reason != ""
    assert shell.condition("Degraded")[0] == "True"


def test_it_is_said_again_when_it_fails_again() -> None:
    shell = Shell(make_job()).run()
    failed(shell, pod(1, uid="new", started=NOW))
    shell.now += WELL_SECONDS + 1
    shell.passes()
    assert shell.status.reason == ""
    failed(shell, times=2)
    assert shell.status.reason == "PodsFailing"
    assert "pod index 1 failed 2 times of 3 allowed" in shell.condition("Degraded")[2]


def test_where_a_job_failed_stays_whatever_pods_say_that_are_being_ended() -> None:
    """Found by the simulation of a cluster: ranks began anew from the start after the job had failed."""
    shell = Shell(make_job(maxRestarts=0)).run()
    shell.feed(last_step=8, last_name="c8", last_generation=1, book={"commits": [{"step": 8}]})
    shell.observe(children={1: kids(failures={1: 1}, failed=frozenset({1}), pods=(pod(0), DEAD))})
    shell.passes()
    assert shell.status.state == "Failed"
    cursor, book = shell.status.cursor, shell.status.book
    assert cursor.total_step == 8
    shell.feed(last_step=0, last_name="", last_generation=0, book={"commits": []})
    shell.passes(2)
    assert (shell.status.cursor, shell.status.book) == (cursor, book)
