"""`lanefeed run` end to end: real sidecars, a real consumer, real signals; the ledger says whether it was exact."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.local.jobs import NEVER, LocalJob, make_data


@pytest.fixture
def job(tmp_path: Path) -> Iterator[LocalJob]:
    made = LocalJob(tmp_path)
    yield made
    made.close()


def test_a_job_runs_to_its_end_and_is_proven(job: LocalJob) -> None:
    job.pace(0.001)
    status = job.finish(job.start())
    job.assert_exact()
    assert status["restarts"]["failures"] == 0
    assert status["planGeneration"] == 1
    assert "exactly once" in job.log
    again = job.finish(job.start(), 0)
    assert again == status, "a complete job must stay as it is"


def test_a_killed_trainer_sidecar_and_pod_cost_nothing(job: LocalJob) -> None:
    runner = job.start()
    job.until_step(10)
    trainer = job.until(lambda: job.running(1), "pod 1 trains")
    os.kill(trainer.trainer_pid, signal.SIGKILL)
    replaced = job.until(lambda: (p := job.running(1)) and p.uid != trainer.uid and p, "pod 1 is replaced")
    step = job.committed()
    job.until_step(step + 10)
    sidecar = job.until(lambda: job.running(0), "pod 0 trains")
    os.kill(sidecar.sidecar_pid, signal.SIGKILL)
    job.until(lambda: (p := job.pod(0)) and p.sidecar_restarts == 1 and p.ready, "the sidecar is back")
    assert job.pod(0).trainer_pid == sidecar.trainer_pid  # type: ignore[union-attr]
    step = job.committed()
    job.until_step(step + 10)
    os.kill(replaced.pid, signal.SIGKILL)
    job.until(lambda: (p := job.running(1)) and p.uid != replaced.uid, "the lost pod is replaced")
    job.pace(0.001)
    status = job.finish(runner)
    job.assert_exact()
    assert status["planGeneration"] == 1
    assert status["restarts"]["failures"] == 1
    assert status["restarts"]["disruptions"] == 1


def test_a_killed_runner_leaves_pods_training_and_the_next_one_adopts_them(job: LocalJob) -> None:
    runner = job.start()
    job.until_step(10)
    before = [job.until(lambda i=i: job.running(i), f"pod {i} trains") for i in range(2)]
    runner.kill()
    runner.wait()
    states = len(list(job.out.glob("state-*.json")))
    job.allow(job.allowed + 30)
    job.until(lambda: len(list(job.out.glob("state-*.json"))) > states + 2, "pods train on without a runner")
    second = job.start()
    job.until_step(job.allowed)
    job.pace(0.001)
    assert [job.pod(i).uid for i in range(2)] == [p.uid for p in before]  # type: ignore[union-attr]
    status = job.finish(second)
    job.assert_exact()
    assert (status["planGeneration"], status["restarts"]["failures"], status["restarts"]["disruptions"]) == (1, 0, 0)
    assert "went on with 2 living pods" in job.log


def test_a_job_that_ends_while_no_runner_lives_is_complete_on_the_next_run(job: LocalJob) -> None:
    job.pace(0.005)
    runner = job.start()
    job.until_step(20)
    runner.kill()
    runner.wait()
    job.allow(NEVER)
    job.until(lambda: all(p and not _alive(p.trainer_pid) for p in (job.pod(0), job.pod(1))), "both trainers end")
    time.sleep(0.5)
    status = job.finish(job.start())
    job.assert_exact()
    assert status["planGeneration"] == 1


def _alive(pid: int) -> bool:
    from lanefeed_operator.local import procs

    return procs.start_time(pid) > 0


def test_resizes_while_running(job: LocalJob) -> None:
    runner = job.start()
    job.until_step(10)
    scaled = job.lanefeed("scale", job.name, "3")
    assert (scaled.returncode, "2 -> 3 pods (its runner resizes it now)" in scaled.stdout) == (0, True), scaled.stderr
    job.until(lambda: job.status().get("replicas") == 3 and job.running(2), "3 pods run")
    job.until_step(job.committed() + 10)
    assert job.lanefeed("scale", "job.yaml", "1").returncode == 0
    job.until(lambda: job.status().get("replicas") == 1 and job.running(0), "1 pod runs")
    job.pace(0.001)
    status = job.finish(runner)
    job.assert_exact()
    assert status["planGeneration"] == 3
    assert status["restarts"] | {"resizes": 2, "failures": 0, "disruptions": 0} == status["restarts"]
    assert len(list((job.state / "plans").iterdir())) == 3


def test_ctrl_c_stops_at_a_checkpoint_and_the_next_run_goes_on(job: LocalJob) -> None:
    runner = job.start()
    job.until_step(10)
    runner.send_signal(signal.SIGINT)
    status = job.finish(runner, 130)
    assert status["state"] == "Suspended"
    assert status["cursor"]["totalStep"] >= 10
    assert job.processes() == []
    stopped = job.status()["cursor"]["totalStep"]
    assert f"stopped at step {stopped}" in job.log
    job.pace(0.001)
    status = job.finish(job.start())
    job.assert_exact()
    assert status["planGeneration"] == 2
    assert status["restarts"]["failures"] == 0
    assert status["restarts"]["suspends"] == 1


def test_a_second_ctrl_c_kills(job: LocalJob) -> None:
    job.pace(0.5)
    job.spec["elastic"] = {"stopGraceSeconds": 600}
    runner = job.start()
    job.until_step(5)
    runner.send_signal(signal.SIGINT)
    job.until(lambda: "leave at step" in job.log, "the stop is asked for")
    runner.send_signal(signal.SIGINT)
    job.finish(runner, 130, seconds=50)
    assert job.processes() == []
    job.pace(0.001)
    job.finish(job.start())
    job.assert_exact()


def test_two_runners_of_one_job_are_refused(job: LocalJob) -> None:
    runner = job.start()
    job.until(lambda: (job.state / "status.yaml").exists(), "the first one runs")
    second = job.lanefeed("run", "job.yaml")
    assert second.returncode == 2
    assert f"job tiny is being run already (by process {runner.pid})" in second.stderr
    assert "Traceback" not in second.stderr
    job.pace(0)


def test_a_trainer_that_exits_0_too_early_does_not_end_the_job(job: LocalJob) -> None:
    from integration.local.jobs import TRAINER

    # Exits 0 once, in the middle, as a trainer does that takes SIGTERM for the end.
    once = job.out / "exited"
    program = (
        "import os,runpy,threading,time\nfrom pathlib import Path\n"
        f"on=Path({str(job.out)!r}, 'state-10.json')\n"
        f"once=Path({str(once)!r}+os.environ['LANEFEED_POD_INDEX'])\n"
        "def leave():\n  while not on.exists(): time.sleep(0.01)\n  once.touch()\n  os._exit(0)\n"
        "if not once.exists(): threading.Thread(target=leave).start()\n"
        f"runpy.run_path({TRAINER!r}, run_name='__main__')\n"
    )
    (job.work / "early.py").write_text(program)
    job.command = [job.command[0], "early.py"]
    status = job.finish(job.start())
    job.assert_exact()
    assert status["restarts"]["interrupted"] == 1
    assert status["planGeneration"] == 2


def test_a_trainer_that_always_fails_fails_the_job_and_it_goes_on_when_mended(job: LocalJob) -> None:
    mended = job.command
    job.spec["maxRestarts"] = 1
    job.command = [job.command[0], "-c", "import sys; sys.exit(3)"]
    status = job.finish(job.start(), 1)
    assert status["state"] == "Failed"
    assert "exit code 3" in job.log
    assert "spec.maxRestarts is 1" in job.log
    assert job.processes() == []
    job.command = mended
    job.pace(0.001)
    job.finish(job.start())
    job.assert_exact()


def test_a_changed_dataset_is_refused_and_fresh_begins_anew(job: LocalJob) -> None:
    runner = job.start()
    job.until_step(5)
    runner.send_signal(signal.SIGINT)
    job.finish(runner, 130)
    (job.work / "data" / "3.parquet").rename(job.work / "data" / "7.parquet")
    refused = job.lanefeed("run", "job.yaml")
    assert refused.returncode == 2
    assert "has changed since the job began: 1 missing (3.parquet); 1 new (7.parquet)" in refused.stderr
    assert "--fresh" in refused.stderr
    job.pace(0.001)
    job.finish(job.start("--fresh"))
    job.assert_exact()


def test_leftovers_of_a_machine_that_lost_everything_are_cleaned(job: LocalJob) -> None:
    runner = job.start()
    job.until_step(10)
    pods = [job.until(lambda i=i: job.running(i), f"pod {i} trains") for i in range(2)]
    runner.kill()
    runner.wait()
    for pod in pods:
        os.kill(pod.pid, signal.SIGKILL)
    job.pace(0.001)
    status = job.finish(job.start())
    job.assert_exact()
    assert status["restarts"]["disruptions"] == 2


def test_wrong_input_is_told_in_one_breath(job: LocalJob) -> None:
    file = job.write()
    file.write_text(file.read_text().replace("globalBatchSize", "globalBatchsize"))
    wrong = job.lanefeed("run", "job.yaml")
    assert wrong.returncode == 2
    assert "globalBatchSize" in wrong.stderr
    assert "Traceback" not in wrong.stderr
    job.spec["data"] = {"uri": "nothing/*.parquet"}
    job.write()
    failed = job.lanefeed("run", "job.yaml")
    assert failed.returncode == 1
    assert "nothing/*.parquet" in failed.stderr
    assert "Traceback" not in failed.stderr
    for arguments in (("status", "other"), ("verify", "other"), ("scale", "other", "2"), ("plan", "other")):
        done = job.lanefeed(*arguments)
        assert done.returncode == 2
        assert "there is no job 'other'" in done.stderr
        assert "known here: tiny" in done.stderr


def test_plan_and_index_work_before_the_job_ever_ran(job: LocalJob) -> None:
    job.write()
    plan = job.lanefeed("plan", "job.yaml", "--replicas", "3")
    assert plan.returncode == 0, plan.stderr
    assert "simulated: 3 pods x 1 ranks" in plan.stdout
    assert "parquet[" in plan.stdout
    assert not job.state.exists()
    index = job.lanefeed("index", "data")
    assert index.returncode == 0, index.stderr
    assert "1,201" in index.stdout
    bad = job.lanefeed("plan", "job.yaml", "--epoch", "9")
    assert (bad.returncode, "this job has epochs 0 to 1" in bad.stderr) == (2, True)


def test_torchrun_gives_each_pod_the_ranks_of_its_plan(job: LocalJob) -> None:
    program = (
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "seen = torch.zeros(4, dtype=torch.int64)\n"
        "want = int(os.environ['LANEFEED_POD_INDEX']) * 2 + int(os.environ['LOCAL_RANK'])\n"
        "seen[dist.get_rank()] = want\n"
        "dist.all_reduce(seen)\n"
        "assert seen.tolist() == [0, 1, 2, 3], seen\n"
        "open(os.environ['RAW_OUT'] + f'/rank-{dist.get_rank()}', 'w')\n"
        "dist.destroy_process_group()\n"
    )
    (job.work / "ranks.py").write_text(program)
    job.command = ["torchrun", "ranks.py"]
    job.spec |= {"ranksPerReplica": 2, "completion": "OnExit"}
    job.finish(job.start())
    assert sorted(p.name for p in job.out.glob("rank-*")) == [f"rank-{n}" for n in range(4)]


def test_make_data_is_what_the_tests_count_on(tmp_path: Path) -> None:
    make_data(tmp_path / "d")
    assert len(list((tmp_path / "d").iterdir())) == 5
