"""What people read of trainers that exit too early or never connect: which pod, what to do, and when it is over."""

from lanefeed_operator.reconcile import types as t
from lanefeed_operator.runtime.events import changes
from sim.jobs import NOW, Shell, kids, make_job, pod, view

EVERYBODY = {r: view(r) for r in range(2)}


def exited(generation: int = 1) -> t.Children:
    """Both pods have exited with code 0 and are still there."""
    pods = tuple(pod(i, "Succeeded", name=f"j-{generation}-{i}-x") for i in range(2))
    return kids(generation, succeeded=frozenset({0, 1}), pods=pods)


def test_an_early_exit_names_its_pod_while_the_pod_is_there() -> None:
    shell = Shell(make_job()).run()
    shell.observe(children={1: exited()})
    shell.passes()
    assert shell.status.reason == "", "last reports may be on their way"
    before = shell.status
    shell.now += 5.1
    shell.passes()
    assert (shell.status.state, shell.status.reason) == ("Running", "ExitedEarly")
    told = shell.condition("Degraded")[2]
    assert told.startswith("pod j-1-0-x has exited with code 0 before its stream ended"), told
    assert "ranks 0, 1 have samples left" in told
    assert "kubectl logs -n default j-1-0-x -c trainer" in told
    assert "read the loader to its end" in told
    assert [(note.reason, note.text, note.warning) for note in changes(before, shell.status)] == [
        ("ExitedEarly", told, True)
    ]


def test_reports_that_were_only_late_take_it_back() -> None:
    shell = Shell(make_job()).run()
    shell.observe(children={1: exited()})
    shell.passes()
    shell.now += 5.1
    shell.passes()
    assert shell.status.reason == "ExitedEarly"
    shell.feed(ranks={r: view(r, 125, ended=True) for r in range(2)}, last_step=125, last_generation=1)
    shell.passes(2)
    assert (shell.status.state, shell.status.reason) == ("Complete", "")
    assert shell.condition("Degraded")[0] == "False"


def test_it_is_over_with_the_first_commit_of_the_next_plan() -> None:
    shell = Shell(make_job()).run()
    shell.observe(children={1: exited()})
    shell.passes()
    shell.now += 16
    before = shell.status
    shell.passes()
    (told,) = [note for note in changes(before, shell.status) if note.reason == "Restarting"]
    assert "ranks 0, 1 had samples left: the job begins again from step 0" in told.text
    shell.passes()
    shell.observe(children={})
    shell.passes(2)
    shell.observe(children={2: kids(2, pods=(pod(0, name="j-2-0-y"), pod(1)))}, plans=frozenset({2}))
    shell.feed(ranks=EVERYBODY, plan_generation=2)
    shell.passes()
    told = shell.condition("Degraded")[2]
    assert "1 times in a row with no new commit (at most 3). Read its log (kubectl logs -n default j-2-0-y" in told
    assert shell.condition("Stopping")[0] == "False"
    shell.feed(ranks=EVERYBODY, plan_generation=2, last_step=16, last_name="c", last_generation=2)
    shell.passes()
    assert shell.condition("Degraded")[0] == "False"
    assert shell.status.reason == ""


def test_ranks_that_never_connect_are_named_by_their_pods() -> None:
    shell = Shell(make_job()).run()
    pods = tuple(pod(i, started=NOW, name=f"j-1-{i}-x") for i in range(2))
    shell.observe(children={1: kids(pods=pods)})
    shell.feed(ranks={0: view(0)})
    shell.passes()
    before = shell.status
    shell.now += 20.5
    shell.passes()
    told = shell.condition("Running")[2]
    assert "1 of 2 ranks have not connected to their sidecars (pods j-1-1-x)" in told
    assert "kubectl logs -n default j-1-1-x -c trainer" in told
    assert "lanefeed.connect()" in told
    assert [(note.reason, note.warning) for note in changes(before, shell.status)] == [("TrainerNotConnected", False)]
