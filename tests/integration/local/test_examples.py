"""The examples of docs/images.md and docs/packing.md, and the quickstart, run as their readers run them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


#: Before a quickstart that runs on two pods: both have written a checkpoint before either renames its file.
TOGETHER = """
import os, pathlib, time
rename = os.replace

def replace(source, target):
    pathlib.Path(f"at-{os.environ['LANEFEED_POD_INDEX']}-{target}").touch()
    while len(list(pathlib.Path().glob(f"at-*-{target}"))) < 2:
        time.sleep(0.01)
    rename(source, target)

os.replace = replace
"""


def run(work: Path, *command: str) -> str:
    """What Python says that runs `command`."""
    tools = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1", "PATH": tools}
    done = subprocess.run([sys.executable, *command], cwd=work, env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def train(work: Path, name: str, *options: str) -> dict[str, Any]:
    """The status of the job at its end, proven."""
    run(work, "-m", "lanefeed_operator.cli.main", "run", "job.yaml", *options)
    status = yaml.safe_load((work / ".lanefeed" / name / "status.yaml").read_text())["status"]
    assert status["state"] == "Complete"
    assert all(epoch["verified"] for epoch in status["ledger"]["epochs"])
    assert "every sample used exactly once" in run(work, "-m", "lanefeed_operator.cli.main", "verify", name)
    return dict(status)


def test_the_quickstart_trains_with_any_number_of_ranks(tmp_path: Path) -> None:
    """More than one of them write each checkpoint, at about the same time."""
    work = tmp_path / "examples" / "quickstart"
    shutil.copytree(EXAMPLES / "quickstart", work)
    job = (work / "job.yaml").read_text()
    (work / "job.yaml").write_text(job.replace("globalBatchSize: 256", "globalBatchSize: 8"))
    (work / "train.py").write_text(TOGETHER + (work / "train.py").read_text())
    rows = 8 * 410
    x = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(128 * rows, np.float32)), 128)
    (tmp_path / ".demo" / "data").mkdir(parents=True)
    pq.write_table(pa.table({"x": x, "label": np.arange(rows) % 10}), tmp_path / ".demo" / "data" / "0.parquet")
    status = train(work, "quickstart", "--replicas", "2")
    assert status["restarts"]["failures"] == 0
    assert sorted(p.name for p in work.glob("checkpoint*")) == [f"checkpoint-{n}00-gen1.pt" for n in range(1, 5)]


@pytest.mark.parametrize("name", ["images", "packing"])
def test_an_example_trains(name: str, tmp_path: Path) -> None:
    work = tmp_path / "job"
    shutil.copytree(EXAMPLES / name, work)
    run(work, "make_data.py")
    train(work, name)
    (log,) = (work / ".lanefeed" / name / "pods").glob("*/logs/trainer*.log")
    assert "epoch done, loss" in log.read_text()
