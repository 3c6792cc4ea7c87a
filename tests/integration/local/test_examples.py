"""The examples of docs/images.md and docs/packing.md, run as their readers run them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.mark.parametrize("name", ["images", "packing"])
def test_an_example_trains(name: str, tmp_path: Path) -> None:
    work = tmp_path / "job"
    shutil.copytree(EXAMPLES / name, work)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], cwd=work, env=env, capture_output=True, text=True, timeout=400
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("make_data.py")
    run("-m", "lanefeed_operator.cli.main", "run", "job.yaml")
    status = yaml.safe_load((work / ".lanefeed" / name / "status.yaml").read_text())["status"]
    assert status["state"] == "Complete"
    assert all(epoch["verified"] for epoch in status["ledger"]["epochs"])
    assert "every sample used exactly once" in run("-m", "lanefeed_operator.cli.main", "verify", name)
    (log,) = (work / ".lanefeed" / name / "pods").glob("*/logs/trainer*.log")
    assert "epoch done, loss" in log.read_text()
