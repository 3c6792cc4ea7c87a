"""What the core owes a cluster: huge datasets, rogue pods, many ranks, news and progress, old copies of a status."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lanefeed_core import expected
from lanefeed_operator.api.status import PlanStatus, Status
from lanefeed_operator.coordinator import lives
from lanefeed_operator.coordinator.admission import MAX_SESSIONS
from lanefeed_operator.coordinator.core import Coordinator
from lanefeed_operator.coordinator.reports import PodReport, RankCommit, RankReport, Reply
from support.report_bed import LANES, TOTAL, ledger

EPOCH = LANES.steps_per_epoch


class Two:
    """A coordinator of two pods with a rank each."""

    def __init__(self, world: int = 2, status: Status | None = None) -> None:
        self.core, self.world, self.sequence = Coordinator("job", LANES, TOTAL, status), world, 0
        self.core.new_plan(1, world, 1)
        for index in range(world):
            self.core.expect(1, index, f"u{index}")

    def report(self, rank: int, consumed: int, *commits: RankCommit, started: int = 0, **more: Any) -> PodReport:
        self.sequence += 1
        life = RankReport(rank, started, started > 0, consumed, attached=True)
        report = PodReport("job", rank, f"u{rank}", 1, f"s{rank}", self.sequence, (life,), commits)
        return replace(report, **more)

    def say(self, rank: int, consumed: int, *commits: RankCommit, **more: Any) -> Reply:
        return self.core.report(self.report(rank, consumed, *commits, **more), 100.0)

    def commit(self, rank: int, first: int, until: int) -> RankCommit:
        return RankCommit(rank, first, until, f"c{until}", ledger(self.world, rank, first, until))


# ---- huge datasets ---------------------------------------------------------------------------------------------


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sums over the dataset while the lock was held ("locked") or not ("free")."""
    found: list[str] = []
    beds: list[Two] = []

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            for bed in beds:
                taken: list[bool] = []
                probe = threading.Thread(target=lambda bed=bed, taken=taken: taken.append(try_lock(bed)))  # type: ignore[misc]
                probe.start()
                probe.join()
                found.append("free" if taken[0] else "locked")
            return original(*args)

        return call

    def try_lock(bed: Two) -> bool:
        if bed.core._lock.acquire(blocking=False):
            bed.core._lock.release()
            return True
        return False

    for name in ("all_rows", "epoch_entry", "prefix"):
        monkeypatch.setattr(expected, name, watched(getattr(expected, name)))
    init = Two.__init__

    def remember(self: Two, *args: Any, **more: Any) -> None:
        init(self, *args, **more)
        beds.append(self)

    monkeypatch.setattr(Two, "__init__", remember)
    return found


def test_an_epochs_end_sums_the_dataset_up_before_the_lock_is_taken(sums: list[str]) -> None:
    bed = Two()
    bed.say(0, EPOCH + 1, bed.commit(0, 0, EPOCH + 1))
    report = bed.report(1, EPOCH + 1, bed.commit(1, 0, EPOCH + 1))
    assert not bed.core.slow(report), "the other rank's report has prepared it"
    bed.core.report(report, 100.0)
    assert bed.core.snapshot(0).proofs[0].verified
    assert sums
    assert set(sums) == {"free"}


def test_the_jobs_end_too_and_only_once(sums: list[str]) -> None:
    bed = Two()
    for rank in range(2):
        report = bed.report(rank, TOTAL, bed.commit(rank, 0, TOTAL))
        assert bed.core.slow(report) is (rank == 0)
        bed.core.report(report, 100.0)
    assert [proof.verified for proof in bed.core.snapshot(0).proofs] == [True, True]
    assert set(sums) == {"free"}
    before = len(sums)
    bed.say(0, TOTAL, bed.commit(0, 0, TOTAL))
    assert len(sums) == before


def test_a_start_at_a_step_that_no_commit_names_too(sums: list[str]) -> None:
    bed = Two()
    for rank in range(2):
        bed.say(rank, 30, started=29)
    assert bed.core.snapshot(0).book["commits"][-1]["standIn"]  # type: ignore[index]
    assert sums
    assert set(sums) == {"free"}


def test_a_start_at_a_known_commit_sums_nothing_up(sums: list[str]) -> None:
    bed = Two()
    for step in (7, 14):
        for rank in range(2):
            bed.say(rank, step, bed.commit(rank, step - 7, step))
    sums.clear()
    for rank in range(2):
        bed.say(rank, 8, started=7)
    assert bed.core.snapshot(0).last_step == 7
    assert sums == []


def test_tooth_a_sum_under_the_lock_is_seen(sums: list[str]) -> None:
    bed = Two()
    bed.core._needed = lambda _report: []  # type: ignore[method-assign]
    for rank in range(2):
        bed.say(rank, EPOCH, bed.commit(rank, 0, EPOCH))
    assert "locked" in sums


# ---- rogue pods ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [TOTAL + 1, 1 << 62])
def test_steps_beyond_the_jobs_end_are_refused_and_cost_nothing(step: int) -> None:
    """A commit of step 2^62 would have every epoch up to there proven, in the only pod of a job by itself."""
    bed = Two(world=1)
    reply = bed.say(0, 0, RankCommit(0, 0, step, "far", ledger(1, 0, 0, 3)))
    assert reply.refused == (f"commit of step {step} by rank 0: the job ends at step {TOTAL}",)
    bed.say(0, step)
    bed.say(0, 1, started=step)
    feed = bed.core.snapshot(0)
    assert (feed.ranks[0].started, feed.ranks[0].consumed, feed.last_step) == (0, 0, 0)


def test_sessions_without_end_are_refused_and_bounded() -> None:
    bed = Two(world=1)
    for n in range(MAX_SESSIONS + 1):
        assert not bed.say(0, 1, session=f"s-{n}").reason
    reply = bed.say(0, 1, session="one too many")
    assert reply.fenced
    assert "its sidecar keeps dying" in reply.reason
    assert not bed.say(0, 1, session=f"s-{MAX_SESSIONS}").reason


def test_notes_and_words_are_bounded() -> None:
    bed = Two(world=1)
    for n in range(50):
        many = tuple((f"/{n}-{i}", "x") for i in range(100))
        bed.say(0, 1, quarantined=many, failures=((f"K{n}", "y" * 10_000, True),), metrics_address="z" * 100_000)
    feed = bed.core.snapshot(0)
    assert (len(feed.failures), len(feed.quarantined)) == (32, 1024)
    assert len(feed.failures[0].message) == 4096
    assert len(bed.core.addresses()[0]) == 256


# ---- many ranks ------------------------------------------------------------------------------------------------


def test_progress_alone_looks_at_no_other_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    bed = Two(world=8)
    for rank in range(8):
        bed.say(rank, 1)
    looks: list[int] = []
    original = lives.common_start
    monkeypatch.setattr(lives, "common_start", lambda found: looks.append(1) or original(found))
    for step in range(2, 50):
        for rank in range(8):
            bed.say(rank, step)
    assert looks == []
    bed.say(3, 0)
    assert looks == [1], "a new life is looked at once"


def test_news_wake_at_once_and_progress_by_its_own_way() -> None:
    bed = Two()
    woken: list[str] = []
    bed.core.on_change = lambda: woken.append("news")
    bed.core.on_progress = lambda: woken.append("progress")

    def say(*args: Any, **more: Any) -> str:
        woken.clear()
        bed.say(*args, **more)
        return ",".join(woken)

    assert say(0, 1) == say(1, 1) == "news"
    assert say(0, 2) == say(0, 3) == "progress"
    assert say(0, 7, bed.commit(0, 0, 7)) == "progress", "it is the job's commit that matters"
    assert say(1, 7, bed.commit(1, 0, 7)) == "news"
    assert say(0, 8, ready=True) == "news"
    assert say(0, 9, ready=True) == "progress"
    assert say(0, 9, ready=True, failures=(("K", "m", True),)) == "news"
    assert say(0, 10, ready=True, failures=(("K", "m", True),)) == "progress"
    ended = (RankReport(0, 0, False, TOTAL, True, ended=True),)
    assert say(0, TOTAL, ready=True, ranks=ended) == "news"
    assert say(0, 3, ready=True, session="other") == "news", "a life that went back is a new one"
    bed.core.on_progress = None
    assert say(0, 4, ready=True, session="other") == "news"


# ---- held answers and old copies -------------------------------------------------------------------------------


def test_whoever_waits_for_a_version_is_called_once_outside_of_the_lock() -> None:
    bed = Two()
    core = bed.core
    version = core.snapshot(0).version
    calls: list[str] = []

    def call() -> None:
        free: list[bool] = []
        probe = threading.Thread(target=lambda: free.append(core._lock.acquire(timeout=60)) or core._lock.release())
        probe.start()
        probe.join()
        calls.append("free" if free[0] else "locked")

    assert core.when_persisted(version, call)
    core.persisted(version - 1)
    assert calls == []
    core.persisted(version)
    core.persisted(version + 1)
    assert calls == ["free"]
    assert not core.when_persisted(version, call)
    later = core.snapshot(0).version + 5
    assert core.when_persisted(later, call)
    core.cancel_wait(call)
    core.persisted(later)
    assert calls == ["free"]


def saved(core: Coordinator) -> Status:
    feed = core.snapshot(0)
    plan = PlanStatus(generation=feed.plan_generation, replicas=2)
    return Status.model_validate(json.loads(json.dumps(Status(book=feed.book, plan=plan).to_dict())))


def test_an_old_copy_of_the_status_is_found_out_and_a_void_commit_is_no_sign_of_one() -> None:
    bed = Two()
    for step in (7, 14, 21):
        for rank in range(2):
            bed.say(rank, step, bed.commit(rank, step - 7, step))
        if step == 14:
            older = saved(bed.core)
    newest = saved(bed.core)
    assert Two(status=older).core.behind(newest)
    assert not bed.core.behind(older)
    for rank in range(2):
        bed.say(rank, 7, started=7)
    assert bed.core.snapshot(0).last_step == 7
    assert not bed.core.behind(newest), "21 is void here: this one knows more"
    again = Two(status=newest)
    again.core.new_plan(2, 2, 1)
    assert bed.core.behind(saved(again.core)), "a newer plan generation"
    assert not again.core.behind(newest)
    assert not bed.core.behind(Status())
