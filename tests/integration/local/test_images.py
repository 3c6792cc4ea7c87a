"""Jobs with images through `lanefeed run`: kills and a proof, options that are fixed, and the example of the docs."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.local.jobs import LocalJob
from support.images import write_images

EXAMPLE = Path(__file__).parents[3] / "examples" / "images"
ROWS = 157
IMAGE = {"column": "image", "height": 16, "width": 16}
DATA: dict[str, Any] = {"uri": "data", "images": [IMAGE]}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[LocalJob]:
    write_images(tmp_path / "data", [(60, 20), (50, 50), (ROWS - 110, 16)])
    made = LocalJob(tmp_path, data=DATA)
    yield made
    made.close()


def test_a_job_with_images_and_a_killed_trainer_and_sidecar_is_proven(job: LocalJob) -> None:
    runner = job.start()
    job.until_step(4)
    trainer = job.until(lambda: job.running(1), "pod 1 trains")
    os.kill(trainer.trainer_pid, signal.SIGKILL)
    job.until(lambda: (p := job.running(1)) and p.uid != trainer.uid, "pod 1 is replaced")
    sidecar = job.until(lambda: job.running(0), "pod 0 trains")
    os.kill(sidecar.sidecar_pid, signal.SIGKILL)
    job.pace(0.001)
    status = job.finish(runner)
    assert status["stream"]["rows"] == ROWS
    assert [(e["verified"], e["samples"]) for e in status["ledger"]["epochs"]] == [(True, ROWS)] * 2
    job.spec["data"] = {**DATA, "images": [{**IMAGE, "width": 17}]}
    job.finish(job.start(), 2)
    assert "spec.data.images was" in job.log
    assert "it is fixed for the job's life" in job.log


def test_the_example_trains(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "job")
    work = tmp_path / "job"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], cwd=work, env=env, capture_output=True, text=True, timeout=400
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("make_data.py")
    run("-m", "lanefeed_operator.cli.main", "run", "job.yaml")
    status = yaml.safe_load((work / ".lanefeed" / "images" / "status.yaml").read_text())["status"]
    assert status["state"] == "Complete"
    assert all(epoch["verified"] for epoch in status["ledger"]["epochs"])
    assert "every sample used exactly once" in run("-m", "lanefeed_operator.cli.main", "verify", "images")
    (log,) = (work / ".lanefeed" / "images" / "pods").glob("*/logs/trainer*.log")
    assert "epoch done, loss" in log.read_text()
