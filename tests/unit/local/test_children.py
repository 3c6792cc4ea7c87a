"""The local Indexed Job: replacement, counting, adoption and deletion, with real pods."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lanefeed_operator.local import children, procs
from lanefeed_operator.local.children import IndexedJob
from lanefeed_operator.local.poddoc import PodDoc
from unit.local.pods import PYTHONPATH, make_doc, wait_for

SLEEP = "import time; time.sleep(600)"


class Bench:
    """Makes jobs over one folder, as one runner after the other would."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.code = SLEEP
        self.said: list[str] = []
        self.adopted: list[str] = []
        self.jobs: list[IndexedJob] = []
        (work / "shm").mkdir()

    def factory(self, index: int, uid: str, folder: Path) -> PodDoc:
        doc = make_doc(folder, self.work / "shm", [sys.executable, "-c", self.code])
        run_dir = str(self.work / "shm" / uid[:8])
        config = doc.config.replace(doc.run_dir, run_dir)
        return replace(
            doc, index=index, uid=uid, run_dir=run_dir, config=config, env={"INDEX": str(index)}, grace_seconds=1
        )

    def job(self, replicas: int = 1, max_restarts: int = 2) -> IndexedJob:
        job = IndexedJob(
            self.work / "pods",
            1,
            replicas,
            max_restarts=max_restarts,
            factory=self.factory,
            say=self.said.append,
            adopted=lambda doc: self.adopted.append(doc.uid),
        )
        self.jobs.append(job)
        return job


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    made = Bench(tmp_path)
    yield made
    for job in made.jobs:
        job.kill()


def until(job: IndexedJob, what: Callable[[], object]) -> None:
    def step() -> object:
        job.sync()
        return what()

    wait_for(step)


def uid_of(job: IndexedJob, index: int = 0) -> str:
    doc = job.slots[index].doc
    assert doc is not None
    return doc.uid


def test_all_indexes_succeed(bench: Bench) -> None:
    bench.code = ""
    job = bench.job(replicas=3)
    until(job, lambda: job.view().complete and not job.living)
    assert job.view().succeeded == {0, 1, 2}
    assert {pod.phase for pod in job.view().pods} == {"Succeeded"}
    assert not list((bench.work / "shm").iterdir())


def test_a_failed_pod_is_replaced_until_its_budget_is_used_up(bench: Bench) -> None:
    bench.code = "import sys; sys.exit(3)"
    job = bench.job(max_restarts=1)
    seen: set[str] = set()
    until(job, lambda: (job.slots[0].doc and seen.add(uid_of(job))) or job.view().failed)
    assert len(seen) == 2
    assert job.view().failures == {0: 2}
    assert not job.view().alive
    last = job.view().pods[-1]
    assert (last.phase, last.exit_code) == ("Failed", 3)
    assert "gives up" in bench.said[-1]


def test_leaving_with_75_is_free(bench: Bench) -> None:
    bench.code = (
        "import os,sys,pathlib; p=pathlib.Path('left-once'); "
        "first=not p.exists(); p.touch(); sys.exit(75 if first else 0)"
    )
    job = bench.job(max_restarts=0)
    until(job, lambda: job.view().complete)
    assert job.view().failures == {}
    assert job.view().disruptions == 1


def test_who_left_at_an_agreed_stop_is_not_replaced(bench: Bench) -> None:
    bench.code = "import sys; sys.exit(75)"
    job = bench.job(max_restarts=0)
    job.stopping = True
    until(job, lambda: not job.living and job.view().disruptions == 1)
    uid = uid_of(job)
    job.sync()
    assert (uid_of(job), job.view().alive) == (uid, ())
    job.stopping = False
    job.sync()
    assert uid_of(job) != uid


def test_a_killed_supervisor_is_a_disruption_and_its_leftovers_are_swept(bench: Bench) -> None:
    job = bench.job(max_restarts=0)
    until(job, lambda: job.view().ready)
    uid = uid_of(job)
    state = job.slots[0].state
    assert state is not None
    os.kill(state.pid, signal.SIGKILL)
    until(job, lambda: uid_of(job) != uid and job.view().ready)
    assert list(procs.marked(procs.POD_MARK, uid)) == []
    assert [entry.name for entry in (bench.work / "shm").iterdir()] == [uid_of(job)[:8]]
    assert (job.view().failures, job.view().disruptions) == ({}, 1)
    assert [pod.disrupted for pod in job.view().pods] == [True, False]


def test_a_second_runner_adopts_living_pods_and_notices_their_end(bench: Bench) -> None:
    first = bench.job(replicas=2)
    until(first, lambda: first.view().ready == 2)
    uids = [uid_of(first, 0), uid_of(first, 1)]
    second = bench.job(replicas=2)
    assert bench.adopted == uids
    second.sync()
    assert second.view().ready == 2
    state = second.slots[1].state
    assert state is not None
    os.kill(state.trainer_pid, signal.SIGKILL)
    until(second, lambda: second.view().ready == 2 and uid_of(second, 1) != uids[1])
    assert uid_of(second, 0) == uids[0]
    assert second.view().failures == {1: 1}


def test_an_end_is_counted_once_over_runners(bench: Bench) -> None:
    bench.code = "import sys; sys.exit(3)"
    job = bench.job(max_restarts=0)
    until(job, lambda: job.view().failed)
    again = bench.job(max_restarts=0)
    again.sync()
    again.sync()
    assert again.view().failures == {0: 1}
    assert again.view().failed == {0}


def test_a_pod_written_ahead_but_never_started_is_replaced(bench: Bench) -> None:
    job = bench.job()
    until(job, lambda: job.view().ready)
    job.kill()
    slot = bench.work / "pods" / "1-0"
    (slot / "pod.json").unlink()
    children.job_file(bench.work / "pods", 1).unlink()
    again = bench.job()
    until(again, lambda: again.view().ready)
    assert again.view().failures == {}


def test_deletion_ends_all_and_replaces_none(bench: Bench) -> None:
    job = bench.job(replicas=2)
    until(job, lambda: job.view().ready == 2)
    job.delete()
    job.delete()
    until(job, lambda: not job.living)
    job.sync()
    view = job.view()
    assert view.deleting
    assert not view.alive
    assert view.failures == {}
    assert children.stored(bench.work / "pods") == {1: 2}
    assert bench.job(replicas=2).deleting, "a second runner would replace what the first one deleted"
    job.forget()
    assert children.stored(bench.work / "pods") == {}
