"""An eviction as workers see it: SIGTERM by torchrun, one agreed step, a commit there, and the job's ledger whole."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.feed_client import eventually
from support.feed_pod import Pod
from support.report_tls import ReportService

MakePod = Callable[..., Pod]
TRAINER = Path(__file__).parents[2] / "support" / "leaving_trainer.py"


class Workers:
    """The trainer's container of one pod."""

    def __init__(self, pod: Pod, out: Path, *, agree: float = 20.0, step: float = 0.1, torchrun: bool = False) -> None:
        self.pod, self.out = pod, out
        out.mkdir()
        plan = pod.config.plan
        env = {
            **os.environ,
            "LANEFEED_RUN_DIR": str(pod.run_dir),
            "LANEFEED_PLAN_GENERATION": str(plan.generation),
            "LANEFEED_POD_INDEX": str(pod.config.pod_index),
            "LANEFEED_WORLD_SIZE": str(plan.world),
        }
        each = plan.ranks_per_replica
        script = [str(TRAINER), str(out), str(step), str(agree)]
        if torchrun:
            run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(each), *script]
            self.processes = [subprocess.Popen([sys.executable, *run], env=env)]
            return
        self.processes = [
            subprocess.Popen([sys.executable, *script], env=env | {"LOCAL_RANK": str(r), "LOCAL_WORLD_SIZE": str(each)})
            for r in range(each)
        ]

    def reach(self, step: int, seconds: float = 100) -> None:
        ranks = self.pod.config.plan.ranks(self.pod.config.pod_index)
        with eventually(seconds, f"step {step}") as check:
            for rank in ranks:
                check(lambda rank=rank: self.reached(rank) >= step)

    def reached(self, rank: int) -> int:
        """The step that a rank has trained."""
        return int(self._read(f"{rank}.step") or "0")

    def _read(self, name: str) -> str:
        try:
            return (self.out / name).read_text()
        except OSError:
            return ""

    def sigterm(self, *which: int) -> None:
        for number in which or range(len(self.processes)):
            self.processes[number].send_signal(signal.SIGTERM)

    def end(self, seconds: float = 100) -> list[int]:
        return [process.wait(seconds) for process in self.processes]

    def said(self, rank: int) -> dict[str, Any]:
        return dict(json.loads((self.out / f"{rank}.json").read_text()))

    def kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def work() -> Iterator[Callable[..., Workers]]:
    made: list[Workers] = []

    def start(*args: Any, **fields: Any) -> Workers:
        made.append(Workers(*args, **fields))
        return made[-1]

    yield start
    for workers in made:
        workers.kill()


def check_ids(pod: Pod, workers: Workers, ranks: int, stop: int) -> None:
    for rank in range(ranks):
        expected = {str(step): ids for step, ids in pod.expected(rank).items() if step < stop}
        assert workers.said(rank)["ids"] == expected


def test_one_rank_that_is_told_to_end_takes_all_ranks_of_its_pod_along(
    make_pod: MakePod, tmp_path: Path, work: Callable[..., Workers]
) -> None:
    """No control plane is needed: all ranks are here. They leave at one step, which then is the job's commit."""
    pod = make_pod(ranks=2, epochs=20).start()
    workers = work(pod, tmp_path / "out")
    workers.reach(5)
    workers.sigterm(0)
    assert workers.end() == [75, 75]
    one, two = workers.said(0), workers.said(1)
    assert one["step"] == two["step"] >= 7
    assert one["reason"] == two["reason"] == "preemption"
    check_ids(pod, workers, 2, one["step"])
    book = json.loads((pod.run_dir / "book.json").read_text())
    assert book["commits"][-1]["step"] == one["step"]
    assert f"ranks leave at step {one['step']} (preemption)" in pod.text()


@pytest.mark.slow
def test_a_stop_of_ours_that_was_no_eviction_ends_after_a_while(
    make_pod: MakePod,
) -> None:
    """Somebody sent SIGTERM to a worker; the pod is still here, and torchrun starts its ranks again."""
    from lanefeed_sidecar.feed import hub

    pod = make_pod(epochs=20).start()
    client = pod.client()
    client.attach()
    client.stream()
    client.run(until=6)
    client.progress(stop_wanted=True)
    with eventually() as check:
        check(lambda: "ranks leave at step" in pod.text())
    client.run(until=60)
    client.commit("left")
    client.close()
    late = pod.client()
    with eventually() as check:
        check(lambda: pod.metric("lanefeed_rank_attached", rank="0") == 0)
    with pytest.raises(grpc.RpcError) as caught:
        late.attach(pod.state(6))
    assert "stopping (preemption)" in caught.value.details()
    assert hub.OUR_STOP_SECONDS == 30.0
    time.sleep(hub.OUR_STOP_SECONDS)
    assert late.attach(pod.state(6)).start == 6
    late.stream()
    late.run(until=12)
    assert not any(event.HasField("stop_at") for event in late.events)


def test_torchrun_passes_it_on_and_the_workers_leave_with_a_commit(
    make_pod: MakePod, tmp_path: Path, work: Callable[..., Workers]
) -> None:
    pod = make_pod(ranks=2, epochs=40).start()
    workers = work(pod, tmp_path / "out", torchrun=True)
    workers.reach(5)
    workers.sigterm()
    assert workers.end() != [0], "an exit of 0 would tell Kubernetes that this pod is done"
    stop = workers.said(0)["step"]
    assert workers.said(1)["step"] == stop
    check_ids(pod, workers, 2, stop)
    assert json.loads((pod.run_dir / "book.json").read_text())["commits"][-1]["step"] == stop


def test_of_several_pods_the_control_plane_says_the_step(
    make_pod: MakePod, service: ReportService, tmp_path: Path, work: Callable[..., Workers]
) -> None:
    from lanefeed_operator.coordinator.core import Coordinator

    service.token.write_text("pod:pod-1")
    pods = [
        make_pod(
            replicas=2,
            epochs=20,
            pod_index=index,
            pod_uid="pod-1",
            coordinator=service.target,
            coordinator_token_path=str(service.token),
        )
        for index in range(2)
    ]
    core = Coordinator("uid-1", pods[0].lanes, pods[0].total)
    core.new_plan(1, 2, 1)
    core.on_change = lambda: core.persisted(core.snapshot(time.time()).version)
    for index in range(2):
        core.expect(1, index, "pod-1")
    service.job.coordinator = core
    service.up()
    for pod in pods:
        pod.start()
    trainers = [work(pod, tmp_path / f"out-{n}") for n, pod in enumerate(pods)]
    for trainer in trainers:
        trainer.reach(5)
    trainers[1].sigterm()
    time.sleep(1.5)
    assert all(t.processes[0].poll() is None for t in trainers), "one rank alone agrees on nothing"
    # Ahead of both, as the operator chooses it.
    stop = 40 + max(trainer.reached(rank) for rank, trainer in enumerate(trainers))
    core.stop(1, stop, "Eviction")
    assert [t.end()[0] for t in trainers] == [75, 75]
    assert trainers[0].said(0)["step"] == trainers[1].said(1)["step"] == stop
    with eventually() as check:
        check(lambda: core.snapshot(time.time()).last_step == stop)


def test_with_nobody_to_agree_with_a_rank_leaves_alone_in_time(
    make_pod: MakePod, service: ReportService, tmp_path: Path, work: Callable[..., Workers]
) -> None:
    """The operator is down and another pod trains on: this one goes, and its commit does not count until it could."""
    pod = make_pod(replicas=2, epochs=20, coordinator=service.target, coordinator_token_path=str(service.token)).start()
    workers = work(pod, tmp_path / "out", agree=1.0)
    workers.reach(5)
    began = time.monotonic()
    workers.sigterm()
    assert workers.end() == [75]
    assert 0.9 < time.monotonic() - began < 60
    check_ids(pod, workers, 1, workers.said(0)["step"])
    assert workers.said(0)["reason"] == "preemption"
    assert pod.metric("lanefeed_commits_waiting") == 1


def test_two_processes_as_one_rank_get_an_error_and_no_tug_of_war(
    make_pod: MakePod, tmp_path: Path, work: Callable[..., Workers]
) -> None:
    """What model-parallel users may try."""
    import lanefeed

    pod = make_pod(epochs=20).start(env={"ENGINE_DELAY": "0.3"})
    code = (
        "import lanefeed, sys\n"
        "loader = lanefeed.connect(rank=0, world=1, tensors='numpy', run_dir=sys.argv[1], plan_generation=1)\n"
        "for batch in loader:\n"
        "    print(batch.step, flush=True)\n"
    )
    first = subprocess.Popen(
        [sys.executable, "-c", code, str(pod.run_dir)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "0\n"
        loader = lanefeed.connect(rank=0, world=1, tensors="numpy", run_dir=str(pod.run_dir), plan_generation=1)
        batches = iter(loader)
        assert [next(batches).step for _ in range(6)] == list(range(6))
        _, err = first.communicate(timeout=60)
        assert first.returncode == 1
        assert "PlanMismatch: rank 0 is process" in err
        assert "let one read and broadcast its batches to the others" in err
        assert next(batches).step == 6, "the other one is left alone"
        loader.close()
    finally:
        first.kill()
        first.wait()
