"""Reports come twice a second from each pod: what of them makes the operator look at the job."""

from dataclasses import replace
from typing import Any

from lanefeed_operator.coordinator.core import Coordinator
from lanefeed_operator.coordinator.reports import PodReport, RankCommit, RankReport
from lanefeed_operator.runtime.registry import Registry
from lanefeed_operator.runtime.view import View
from sim.pods import EPOCHS, lanes_of
from support.kube_store import KubeStore
from unit.reconcile.test_coordinator import commit

PODS = 4
LANES = lanes_of("Partial")
KEY = ("ns", "a")


class Bed:
    """A job of four pods of one rank, as the registry holds it."""

    def __init__(self) -> None:
        self.woken = 0
        registry = Registry(KubeStore(), View())
        registry.on_change = self._wake
        self.core = Coordinator("u", LANES, EPOCHS * LANES.steps_per_epoch)
        self.core.new_plan(1, PODS, 1)
        registry.attach(registry.member(KEY, "u"), self.core)
        self.sequence = 0
        for index in range(PODS):
            self.core.expect(1, index, f"p{index}")
            self.say(index, 0)
        self.woken = 0

    def _wake(self, key: tuple[str, str]) -> None:
        assert key == KEY
        self.woken += 1

    def say(self, rank: int, consumed: int, *commits: RankCommit, ended: bool = False, **more: Any) -> None:
        self.sequence += 1
        life = RankReport(rank, 0, False, consumed, attached=True, ended=ended)
        report = PodReport("u", rank, f"p{rank}", 1, f"s{rank}", self.sequence, ranks=(life,), commits=commits)
        self.core.report(replace(report, ready=True, **more), 100.0 + self.sequence / 10)

    def taken(self) -> int:
        found, self.woken = self.woken, 0
        return found


def test_progress_alone_wakes_nobody() -> None:
    bed = Bed()
    for step in range(1, 6):
        for rank in range(PODS):
            bed.say(rank, step)
    assert bed.taken() == 0


def test_a_commit_of_the_job_wakes_at_once_and_parts_of_it_do_not() -> None:
    bed = Bed()
    for rank in range(PODS - 1):
        bed.say(rank, 5, commit(rank, 0, 5, world=PODS))
    parts = bed.taken()
    bed.say(PODS - 1, 5, commit(PODS - 1, 0, 5, world=PODS))
    assert bed.core.snapshot(200.0).last_step == 5
    assert bed.taken() == 1
    assert parts <= PODS - 1


def test_what_reconcile_acts_on_wakes_at_once() -> None:
    bed = Bed()
    bed.say(0, 3, ended=True)
    assert bed.taken() == 1, "a stream that ended"
    bed.say(1, 3, failures=(("DataError", "a shard is broken", False),))
    assert bed.taken() == 1, "a failure"
    bed.say(2, 3, quarantined=(("/x", "broken"),))
    assert bed.taken() == 1, "a shard set aside"
    bed.core.fence(1, 3, "p3", "its node is lost")
    bed.core.stop(1, 9, "Resize")
    assert bed.taken() == 2
