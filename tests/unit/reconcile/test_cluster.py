"""What only a cluster does: queues, evictions, refused objects, pods that wait; and the words that people read then."""

from dataclasses import replace

import pytest

from lanefeed_operator.api.spec import Job
from lanefeed_operator.reconcile import types as t
from sim.jobs import NOW, Shell, kids, make_job, pod, view

EVERYBODY = {r: view(r) for r in range(2)}


def generation(job: Job, number: int) -> Job:
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"generation": number})})


def begun(job: Job | None = None) -> Shell:
    """Plan 1 is written, its children are not made yet."""
    shell = Shell(job or make_job())
    shell.passes(2)
    shell.observe(plans=frozenset({1}))
    shell.feed()
    return shell


# ---- state -----------------------------------------------------------------------------------------------------


def test_a_new_plan_is_not_running_before_its_pods_are() -> None:
    """Resizing -> Starting -> Running: never Running in between for the sake of the former plan's pods."""
    shell = Shell(make_job()).run()
    shell.job = make_job(replicas=3)
    shell.passes(2)
    shell.feed(last_step=16, last_name="c", last_generation=1)
    shell.passes(2)
    shell.observe(children={})
    states = []
    for _ in range(3):
        shell.passes()
        states.append(shell.status.state)
    shell.observe(plans=frozenset({2}))
    shell.feed(ranks={})
    starting = tuple(pod(i, "Pending", f"n{i}") for i in range(3))
    for pods in (starting, (pod(0, uid="n0"), *starting[1:]), tuple(pod(i, uid=f"n{i}") for i in range(3))):
        shell.observe(children={2: kids(2, 3, pods=pods)})
        shell.passes()
        states.append(shell.status.state)
    assert states == ["Starting"] * 5 + ["Running"]
    shell.observe(children={2: kids(2, 3, pods=(pod(0, uid="n0"), pod(1, uid="n1"), starting[2]))})
    shell.passes()
    assert shell.status.state == "Running", "one pod that is replaced does not take the whole job back to Starting"
    assert shell.condition("Running")[1] == "PodsMissing"


def test_the_selector_is_there_from_the_first_write_on() -> None:
    shell = Shell(make_job())
    shell.passes()
    assert shell.status.selector == "lanefeed.dev/job=j,lanefeed.dev/role=pods"


def test_a_job_of_another_manager_is_left_alone() -> None:
    shell = Shell(make_job(managedBy="kueue.x-k8s.io/multikueue"), children={3: kids(3)})
    assert shell.passes(3) == ()
    assert shell.writes == 0
    shell.job = make_job(managedBy="lanefeed.dev/operator")
    assert shell.passes() == (t.DeleteChildren(3, "OldPlan"),)


# ---- what was refused ------------------------------------------------------------------------------------------


def test_a_template_that_the_api_server_refuses_is_said_and_mended_by_a_change() -> None:
    shell = begun()
    said = 'Job "j-1" is invalid: spec.template.spec.volumes[0].name: Required value'
    shell.observe(problem=t.Why("InvalidPodTemplate", said))
    assert shell.passes() == (t.CreateChildren(1, 2),)
    assert shell.condition("SpecValid") == ("False", "InvalidPodTemplate", said)
    assert shell.condition("Running") == ("False", "InvalidPodTemplate", said)
    assert (shell.status.state, shell.status.reason) == ("Starting", "InvalidPodTemplate")
    writes = shell.writes
    shell.passes(5)
    assert shell.writes == writes
    shell.job = generation(shell.job, 2)
    assert shell.passes() == ()
    assert (shell.status.plan_generation, shell.status.plan.reason) == (2, "SpecChanged")
    shell.observe(problem=None, plans=frozenset({1, 2}))
    shell.feed()
    assert shell.passes() == (t.CreateChildren(2, 2),)
    assert shell.condition("SpecValid")[0] == "True"
    assert shell.status.reason == ""


def test_a_change_of_a_running_job_waits_for_the_next_plan() -> None:
    shell = Shell(make_job()).run()
    shell.job = generation(shell.job, 2)
    assert shell.passes(2) == ()
    assert shell.status.plan_generation == 1


def test_a_name_that_is_taken_is_said_before_and_while_a_plan_runs() -> None:
    taken = t.Why("NameConflict", "Service j exists and is not of this job: delete it, or rename the job")
    shell = Shell(make_job())
    shell.observe(manifest=None, problem=taken)
    assert shell.passes() == (t.BuildManifest(),)
    assert shell.condition("DatasetReady")[:2] == ("False", "NameConflict")
    assert (shell.status.state, shell.status.reason) == ("Pending", "NameConflict")
    shell = Shell(make_job()).run()
    shell.observe(problem=taken)
    shell.passes()
    assert shell.condition("Degraded") == ("True", *(taken.reason, taken.message))
    assert (shell.status.state, shell.status.reason) == ("Running", "NameConflict")
    assert shell.condition("SpecValid")[0] == "True"


# ---- pods that wait --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (
            t.Trouble("ImagePullBackOff", "trainer", 'pulling "x:1"'),
            ('container trainer of pod j-1-1-abc: ImagePullBackOff: pulling "x:1"', "imagePullSecrets"),
        ),
        (
            t.Trouble("CreateContainerConfigError", "trainer", 'secret "k" not found'),
            ('secret "k" not found', "make the Secret"),
        ),
        (
            t.Trouble("Unschedulable", "", "0/3 nodes are available"),
            ("pod j-1-1-abc: Unschedulable: 0/3 nodes", "shrinkAfterSeconds"),
        ),
        (
            t.Trouble("OOMKilled", "lanefeed-sidecar", "", 3, 137),
            ("started again 3 times, exit code 137", "spec.sidecar.resources.limits.memory"),
        ),
        (
            t.Trouble("CrashLoopBackOff", "lanefeed-sidecar", "no space", 2),
            ("no space", "kubectl logs -n default j-1-1-abc -c lanefeed-sidecar"),
        ),
    ],
    ids=lambda x: getattr(x, "reason", ""),
)
def test_pods_that_wait_say_what_for_and_what_to_do(trouble: t.Trouble, words: tuple[str, ...]) -> None:
    shell = begun()
    waiting = pod(1, "Pending", troubles=(trouble,), name="j-1-1-abc", started=NOW)
    shell.observe(children={1: kids(pods=(pod(0), waiting))})
    shell.passes()
    status, reason, message = shell.condition("Running")
    assert (status, reason, shell.status.reason) == ("False", trouble.reason, trouble.reason)
    assert all(word in message for word in words), message
    assert shell.status.state == "Starting"
    shell.observe(children={1: kids()})
    shell.feed(ranks=EVERYBODY)
    shell.passes()
    assert (shell.status.state, shell.status.reason) == ("Running", "")
    assert shell.condition("Degraded")[0] == "False"
    shell.observe(children={1: kids(pods=(pod(0), waiting))})
    shell.passes()
    assert (shell.status.state, shell.status.reason) == ("Running", trouble.reason)
    assert shell.condition("Degraded")[:2] == ("True", trouble.reason)


@pytest.mark.parametrize("what", ["creating", "missing", "unconnected"])
def test_what_kubernetes_does_not_say_is_said_after_a_while(what: str) -> None:
    creating = (t.Trouble("ContainerCreating", "lanefeed-sidecar"),)
    children, reason, words = {
        "creating": (
            kids(pods=(pod(0), pod(1, "Pending", troubles=creating, started=NOW, name="x"))),
            "PodNotStarting",
            "kubectl describe -n default pod x",
        ),
        "missing": (kids(pods=(pod(0),), started=NOW, name="j-1"), "PodsNotCreated", "describe -n default job j-1"),
        "unconnected": (
            kids(pods=tuple(pod(i, started=NOW) for i in range(2))),
            "TrainerNotConnected",
            "2 of 2 ranks have not connected",
        ),
    }[what]
    shell = begun()
    shell.observe(children={1: children})
    shell.passes()
    assert shell.status.reason == ""
    shell.now += 20.5
    shell.passes()
    assert shell.status.reason == reason
    if what != "unconnected":
        assert words in shell.condition("Degraded")[2]
    else:
        assert shell.status.state == "Running"
        assert words in shell.condition("Running")[2]
        assert shell.condition("Degraded")[0] == "False", "large models load for minutes"
        shell.now += 170
        shell.passes()
        assert words in shell.condition("Degraded")[2]
        shell.feed(ranks=EVERYBODY)
        shell.passes()
        assert shell.status.reason == ""


def test_a_new_control_plane_does_not_call_running_ranks_unconnected() -> None:
    """Its first passes come before the first reports; the status knows that the ranks were heard of in this plan."""
    shell = Shell(make_job()).run()
    shell.now += 20.5
    shell.feed(ranks={rank: view(rank, consumed=5) for rank in range(2)})
    shell.passes()
    shell.observe(children={1: kids(pods=tuple(pod(i, started=NOW) for i in range(2)))})
    shell.feed(ranks={})
    shell.now += 20.5
    shell.passes()
    assert shell.status.reason == ""


def test_an_index_that_fails_names_its_log() -> None:
    shell = Shell(make_job()).run()
    dead = pod(1, "Failed", name="j-1-1-x", exit_code=137, reason="OOMKilled")
    shell.observe(children={1: kids(failures={1: 2}, pods=(pod(0), dead))})
    shell.passes()
    assert (
        "the last time with exit code 137 (OOMKilled): read its log (kubectl logs -n default j-1-1-x -c trainer)"
        in (shell.condition("Degraded")[2])
    )


# ---- ends ------------------------------------------------------------------------------------------------------


def test_a_code_that_no_restart_mends_fails_the_job_at_once() -> None:
    job = make_job(failurePolicy={"nonRetryableExitCodes": [42]})
    shell = Shell(job).run()
    dead = pod(1, "Failed", exit_code=42, message="no such model")
    shell.observe(children={1: kids(failures={1: 1}, pods=(pod(0), dead))})
    shell.passes()
    assert shell.condition("Failed")[1] == "NonRetryableExitCode"
    assert "pod index 1 ended with exit code 42: no such model" in shell.condition("Failed")[2]
    shell = Shell(job).run()
    shell.observe(children={1: kids(gave_up=t.Why("PodFailurePolicy", "Container trainer for pod x failed"))})
    shell.passes()
    assert shell.condition("Failed")[1] == "NonRetryableExitCode"


def test_a_failed_job_goes_on_when_its_restart_token_is_changed() -> None:
    shell = Shell(make_job(maxRestarts=0)).run()
    shell.feed(last_step=8, last_name="c", last_generation=1)
    broken = kids(failures={1: 1}, failed=frozenset({1}), pods=(pod(0), pod(1, "Failed", exit_code=3)))
    shell.observe(children={1: broken})
    shell.passes()
    assert "change spec.restartToken" in shell.condition("Failed")[2]
    shell.passes(5)
    assert shell.status.terminal
    shell.job = make_job(maxRestarts=0, restartToken="again")
    assert shell.passes() == (t.DeleteChildren(1, "Finished"),), "first what lives has to end"
    shell.observe(children={1: replace(broken, pods=(pod(1, "Failed", exit_code=3),))}, feed=t.FeedView())
    shell.passes()
    assert not shell.status.terminal
    assert shell.condition("Failed")[:2] == ("False", "Restarted")
    assert (shell.status.state, shell.status.completion_time) == ("Starting", "")
    shell.passes()
    assert (shell.status.plan_generation, shell.status.plan.start, shell.status.plan.reason) == (2, 8, "Restart")
    assert shell.passes() == (t.DeleteChildren(1, "OldPlan"),)
    shell.observe(children={})
    assert shell.passes()[0] == t.WritePlan(2, 2, 1, 8)


def test_what_has_no_stream_or_is_complete_stays_as_it_is() -> None:
    shell = Shell(make_job())
    shell.observe(manifest=t.ManifestInfo(error="no such folder"))
    shell.passes()
    shell.job = make_job(restartToken="again")
    assert shell.passes(3) == ()
    assert shell.status.terminal
    shell = Shell(make_job()).run()
    done = kids(succeeded=frozenset({0, 1}), pods=(pod(0, "Succeeded"), pod(1, "Succeeded")))
    shell.observe(children={1: done})
    shell.feed(ranks={r: view(r, 125, ended=True) for r in range(2)}, last_step=125)
    shell.passes()
    shell.job = make_job(restartToken="again")
    assert shell.passes(3) == ()
    assert shell.status.state == "Complete"


def test_a_node_that_is_lost_is_said_instead_of_old_words() -> None:
    shell = Shell(make_job()).run()
    old = (t.Trouble("Unknown", "lanefeed-sidecar", "session is ready"),)
    gone = pod(1, lost_since=shell.now, troubles=old, name="j-1-1-x")
    shell.observe(children={1: kids(pods=(pod(0), gone))})
    shell.passes()
    assert shell.status.reason == "NodeLost"
    assert "the node of pod j-1-1-x has not been heard of since" in shell.condition("Degraded")[2]
    assert "nodeLostSeconds (30 s)" in shell.condition("Degraded")[2]
    writes = shell.writes
    shell.now += 5
    shell.passes()
    assert shell.writes == writes


def test_a_disrupted_pod_with_such_a_code_is_no_failure() -> None:
    shell = Shell(make_job(failurePolicy={"nonRetryableExitCodes": [137]})).run()
    shell.observe(children={1: kids(pods=(pod(0), pod(1, "Failed", exit_code=137, disrupted=True)))})
    shell.passes()
    assert shell.status.state == "Running"


def test_a_job_that_gave_up_fails_with_its_words() -> None:
    shell = Shell(make_job()).run()
    shell.observe(children={1: kids(name="j-1", gave_up=t.Why("DeadlineExceeded", "was active too long"))})
    shell.passes()
    assert shell.condition("Failed")[1] == "JobFailed"
    assert "Job j-1 has failed (DeadlineExceeded): was active too long" in shell.condition("Failed")[2]


def test_leaving_at_a_stop_under_a_launcher_does_not_use_up_the_budget() -> None:
    """torchrun makes 1 of its workers' 75; with maxRestarts 0 the Job fails at once."""
    shell = Shell(make_job(maxRestarts=0)).run()
    shell.job = make_job(maxRestarts=0, replicas=3)
    shell.passes(2)
    gone = tuple(pod(i, "Failed", exit_code=1) for i in range(2))
    failed = kids(failures={0: 1}, failed=frozenset({0}), pods=gone, gave_up=t.Why("FailedIndexes", "x"))
    shell.observe(children={1: failed})
    shell.passes()
    assert not shell.status.terminal
    assert shell.status.stop is not None
    assert shell.status.stop.outcome == "AllLeft"
    shell.passes()
    assert shell.actions[-1] == t.DeleteChildren(1, "Resize")
    assert shell.status.restarts.failures == 0


def test_pods_that_the_job_made_since_are_not_waited_for() -> None:
    """Code 75 is ignored by the Job, which replaces the pod at once: such a pod never trained before the stop."""
    shell = Shell(make_job()).run()
    shell.job = make_job(restartToken="a")
    shell.passes(2)
    one = (pod(0, started=NOW - 50), pod(1, uid="n1", started=shell.now + 2))
    shell.observe(children={1: kids(pods=one)})
    shell.passes()
    assert shell.status.stop is not None
    assert not shell.status.stop.done
    shell.observe(children={1: kids(pods=tuple(pod(i, uid=f"n{i}", started=shell.now + 2) for i in range(2)))})
    shell.passes()
    assert shell.status.stop.outcome == "AllLeft"


def test_exiting_early_is_said_while_it_is_tried_again() -> None:
    shell = Shell(make_job()).run()
    done = kids(succeeded=frozenset({0, 1}), pods=(pod(0, "Succeeded"), pod(1, "Succeeded")))
    shell.observe(children={1: done})
    shell.passes()
    assert "exited with code 0 and 2 ranks have not read their stream" in shell.condition("Running")[2]
    shell.now += 16
    shell.passes(2)
    shell.observe(children={})
    shell.passes(2)
    shell.observe(children={2: kids(2)}, plans=frozenset({2}))
    shell.feed(ranks=EVERYBODY)
    shell.passes()
    assert (shell.status.state, shell.status.reason) == ("Running", "ExitedEarly")
    assert "1 times in a row" in shell.condition("Degraded")[2]
