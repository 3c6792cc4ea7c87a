"""The README's trainer, job and local commands, run as they are written: a reader who copies them gets what it says."""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

README = (Path(__file__).resolve().parents[3] / "README.md").read_text()
ROWS = 20 * 512
#: What the README leaves to the reader. In the first plan ranks wait at step 5 until a stop is agreed on: however slow
#: the machine is, the job runs when it is scaled.
YOURS = """
import pathlib, time, torch

def make_model():
    model = torch.nn.Linear(8, 4)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)

def train(model, optimizer, batch):
    torch.nn.functional.cross_entropy(model(batch["x"]), batch["label"]).backward()
    optimizer.step(), optimizer.zero_grad()
    while loader.plan_generation == 1 and loader.step >= 5 and loader._feed.stop_at is None:
        pathlib.Path(f"waits-{loader.rank}").touch()
        time.sleep(0.01)

"""


def block(language: str, word: str) -> str:
    """The README's one block of that language with that word in it."""
    (found,) = [text for text in re.findall(rf"```{language}\n(.+?)```", README, re.DOTALL) if word in text]
    return str(found)


def commands() -> dict[str, list[str]]:
    """The local commands, by the name of the subcommand."""
    lines = [line.partition("#")[0] for line in block("sh", "lanefeed run").strip().splitlines()]
    split = [shlex.split(command) for line in lines for command in line.split(";")]
    assert all(words[0] == "lanefeed" for words in split)
    return {words[1]: words[1:] for words in split}


class Reader:
    """Somebody with the README in an empty folder."""

    def __init__(self, work: Path) -> None:
        self.work = work
        tools = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        path = os.pathsep.join(filter(None, sys.path))
        self.env = os.environ | {"PYTHONPATH": path, "PATH": tools, "OMP_NUM_THREADS": "1"}
        self.running: subprocess.Popen[bytes] | None = None
        (work / "job.yaml").write_text(block("yaml", "ShardedTrainingJob"))
        (work / "train.py").write_text(YOURS + block("python", "make_model"))
        (work / "data").mkdir()
        x = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(8 * ROWS, np.float32)), 8)
        table = pa.table({"x": x, "label": np.arange(ROWS) % 4, "other": np.arange(ROWS)})
        pq.write_table(table, work / "data" / "0.parquet", row_group_size=1024)

    @staticmethod
    def _command(words: list[str]) -> list[str]:
        return [sys.executable, "-m", "lanefeed_operator.cli.main", *words]

    def start(self, words: list[str]) -> "subprocess.Popen[bytes]":
        with (self.work / "run.log").open("wb") as log:
            self.running = subprocess.Popen(self._command(words), cwd=self.work, env=self.env, stdout=log, stderr=log)
        return self.running

    def run(self, words: list[str], code: int = 0) -> str:
        done = subprocess.run(
            self._command(words), cwd=self.work, env=self.env, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def log(self) -> str:
        logs = sorted(self.work.glob(".lanefeed/*/pods/*/logs/*.log"))
        return "\n".join(file.read_text()[-2000:] for file in (self.work / "run.log", *logs))

    def wait_for(self, files: list[str], seconds: float = 200) -> None:
        end = time.monotonic() + seconds
        while not all((self.work / file).exists() for file in files):
            assert self.running is not None
            assert self.running.poll() is None, self.log()
            assert time.monotonic() < end, f"no {files} after {seconds} s\n{self.log()}"
            time.sleep(0.05)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path)
    yield made
    if made.running is not None and made.running.poll() is None:
        made.running.terminate()
        made.running.wait(100)


def test_the_readme_is_true_on_one_machine(reader: Reader) -> None:
    said = commands()
    assert set(said) == {"run", "plan", "scale", "status", "verify"}
    assert "simulated: 8 pods x 1 ranks" in reader.run(said["plan"])
    runner = reader.start(said["run"])
    reader.wait_for(["waits-0", "waits-1"])
    for pods in ("3", "7"):
        assert "uneven to Allow" in reader.run(["scale", "mine", pods], code=2)
    assert "mine: 2 -> 4 pods" in reader.run(said["scale"])
    assert runner.wait(400) == 0, reader.log()
    status = yaml.safe_load((reader.work / ".lanefeed" / "mine" / "status.yaml").read_text())["status"]
    assert (status["state"], status["planGeneration"], status["plan"]["replicas"]) == ("Complete", 2, 4)
    assert status["restarts"]["failures"] == 0, reader.log()
    assert "Complete" in reader.run(said["status"])
    assert "every sample used exactly once" in reader.run(said["verify"])
