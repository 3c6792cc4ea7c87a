"""Some pods have exited, others not, or nobody listened: who waits in vain, who works on, and what is judged."""

from typing import Any

import pytest

from lanefeed_operator.reconcile import types as t
from sim.jobs import MANIFEST, Shell, kids, make_job, pod, view


def alone(last: t.Pod, life: t.RankView | None = None, spec: dict[str, Any] | None = None, **more: Any) -> Shell:
    """Pod 0 has exited with 0; `last` of index 1 lives, `life` is its rank's, and nothing has moved for a minute."""
    shell = Shell(make_job(**spec or {})).run()
    early = more.pop("early", False)
    pods = (pod(0, "Succeeded"), *more.pop("dead", ()), last)
    shell.observe(children={1: kids(succeeded=frozenset({0}), pods=pods, **more)})
    lives = {0: view(0, 110 if early else 125, ended=not early)} | ({1: life} if life else {})
    shell.feed(ranks=lives, moved=shell.now, last_step=100, last_generation=1)
    shell.passes()
    assert shell.status.stop is None
    shell.now += 61
    shell.passes()
    return shell


AGAIN = pod(1, uid="again")
DIED = pod(1, "Failed", exit_code=3)


@pytest.mark.parametrize(
    "more",
    [{"failures": {1: 1}}, {"dead": (DIED,)}, {"disruptions": 1}],
    ids=["counted", "seen", "disrupted"],
)
@pytest.mark.parametrize("life", [None, view(1, 101, pod_uid="again")], ids=["silent", "begun"])
def test_a_pod_that_took_anothers_place_does_not_wait_for_peers_that_are_gone(
    more: dict[str, Any], life: t.RankView | None
) -> None:
    life = t.RankView(1, 1, "again", "s", 100, True, 101, True, False) if life else None
    shell = alone(AGAIN, life, **more)
    assert shell.status.stop is not None
    assert shell.status.stop.reason == "Interrupted"
    assert shell.passes() == (t.DeleteChildren(1, "Interrupted"),)


def test_a_rank_that_began_anew_in_its_pod_does_not_wait_for_peers_that_are_gone() -> None:
    shell = alone(pod(1), t.RankView(1, 1, "u1", "s", 100, True, 101, True, False))
    assert shell.status.stop is not None


def test_nobody_waits_for_a_peer_that_exited_0_too_early() -> None:
    """On SIGTERM, at an eviction: its index is complete, and the others stand at their next collective."""
    shell = alone(pod(1), view(1, 110), early=True)
    assert shell.status.stop is not None
    assert shell.status.stop.reason == "Interrupted"


def test_where_exit_code_0_is_enough_a_peer_may_exit_whenever_it_likes() -> None:
    assert alone(pod(1), view(1, 110), {"completion": "OnExit"}, early=True).status.stop is None


@pytest.mark.parametrize("spec", [{}, {"completion": "OnExit"}], ids=["StreamEnd", "OnExit"])
def test_a_pod_that_was_there_all_the_time_may_work_on_after_its_peers(spec: dict[str, Any]) -> None:
    """It evaluates, or uploads the model, before it asks for the batch that is not there."""
    shell = alone(pod(1), view(1, 124), spec)
    shell.now += 3600
    shell.passes(3)
    assert (shell.status.stop, shell.status.restarts.interrupted) == (None, 0)
    assert shell.actions == []
    assert shell.status.state == "Running"


def test_a_pod_that_took_part_in_a_commit_since_is_none_that_waits() -> None:
    """It was replaced long ago, at step 40: the job went on with it."""
    life = t.RankView(1, 1, "again", "s", 40, True, 124, True, False)
    shell = alone(AGAIN, life, failures={1: 1})
    assert shell.status.stop is None
    assert shell.actions == []


def test_nothing_is_judged_where_nobody_could_read_the_last_words() -> None:
    """The operator was begun anew and the manifest is gone: without it there is no coordinator to hear of the end."""
    shell = Shell(make_job()).run()
    done = kids(succeeded=frozenset({0, 1}), pods=tuple(pod(i, "Succeeded") for i in range(2)))
    shell.observe(children={1: done}, manifest=None, feed=t.FeedView())
    for _ in range(10):
        assert t.BuildManifest() in shell.passes()
        shell.now += 10
    assert shell.status.stop is None
    assert not [a for a in shell.actions if isinstance(a, t.DeleteChildren)]
    shell.observe(manifest=MANIFEST)
    shell.passes()
    assert shell.status.stop is None, "now last reports are waited for"
    shell.feed(ranks={r: view(r, 125, ended=True) for r in range(2)}, last_step=125, last_generation=1)
    shell.now += 3
    shell.passes()
    assert shell.status.state == "Complete"
