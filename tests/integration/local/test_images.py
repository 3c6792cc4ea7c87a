"""Jobs with images through `lanefeed run`: kills and a proof, and options that are fixed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.local.jobs import LocalJob
from support.images import write_images

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
