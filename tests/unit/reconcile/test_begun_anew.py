"""What a control plane that was begun anew knows, and does not know yet, of a plan that it found under way."""

from dataclasses import replace

import pytest

from lanefeed_operator.reconcile.stop import HEAR_SECONDS, stop_step
from sim.jobs import Shell, kids, make_job, pod, view


def test_a_control_plane_begun_anew_hears_the_ranks_before_it_asks_them_to_leave() -> None:
    """Seen on a cluster: scaled just after a restart, ranks at step 640 were to leave at 2 and were deleted at once."""
    shell = Shell(make_job()).run()
    began = shell.now
    shell.feed(ranks={}, rate=0.0, found=began)
    shell.job = make_job(replicas=3)
    assert shell.passes() == ()
    assert shell.status.stop is None, "nobody was heard yet"
    shell.now += 1
    shell.feed(ranks={0: view(0, 640)}, rate=0.0)
    shell.passes()
    assert shell.status.stop is None, "one of two was heard"
    shell.now += 1
    shell.feed(ranks={0: view(0, 640), 1: view(1, 641)}, rate=0.0)
    shell.passes()
    assert shell.status.stop is None, "nobody knows how fast they are"
    shell.feed(ranks={0: view(0, 650), 1: view(1, 650)}, rate=10.0)
    shell.passes()
    assert shell.status.stop is not None
    assert (shell.status.stop.step, shell.status.stop.outcome) == (stop_step(650, 10.0), "")


@pytest.mark.parametrize("pods", ["ready", "not ready"])
def test_a_control_plane_begun_anew_does_not_wait_for_ranks_that_are_not_there(pods: str) -> None:
    shell = Shell(make_job()).run()
    shell.feed(ranks={}, rate=0.0, found=shell.now)
    shell.job = make_job(replicas=3)
    if pods == "ready":
        shell.passes()
        assert shell.status.stop is None
        shell.now += HEAR_SECONDS
    else:
        shell.observe(children={1: kids(pods=tuple(replace(pod(i), ready=False) for i in range(2)))})
    shell.passes()
    assert shell.status.stop is not None
    assert shell.status.stop.outcome == "NothingRuns"
