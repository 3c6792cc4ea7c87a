"""Runs `lanefeed` as a user does, over a tiny dataset and the raw trainer, and does harm to its processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from lanefeed_operator.local import poddoc, procs
from lanefeed_operator.local.poddoc import PodState

TRAINER = str(Path(__file__).parent / "raw_trainer.py")
ROWS = 1201
NEVER = 10**9
#: Exit code after Ctrl-C.
INTERRUPTED = 130


def make_data(folder: Path, rows: int = ROWS) -> None:
    """Five shards of uneven size."""
    folder.mkdir(parents=True)
    for index, (low, high) in enumerate(zip((0, 90, 400, 410, 900), (90, 400, 410, 900, rows), strict=True)):
        pq.write_table(pa.table({"id": np.arange(low, high)}), folder / f"{index}.parquet", row_group_size=60)


class LocalJob:
    """One job in its own folder."""

    def __init__(self, work: Path, name: str = "tiny", **spec: Any) -> None:
        self.work, self.name = work, name
        self.state = work / ".lanefeed" / name
        self.out = work / "out"
        self.out.mkdir(exist_ok=True)
        if not (work / "data").exists():
            make_data(work / "data")
        self.env = {"RAW_OUT": str(self.out)}
        self.pace(0.01)
        self.allow(0)
        self.command = [sys.executable, TRAINER]
        self.spec: dict[str, Any] = {
            "replicas": 2,
            "elastic": {"stopGraceSeconds": 100},
            "data": {"uri": "data"},
            "batching": {"globalBatchSize": 12, "lastBatch": "Partial", "uneven": "Allow"},
            "shuffle": {"seed": 7, "window": 32},
            "epochs": 2,
            "sidecar": {"readAheadBytes": "64Mi", "decodeThreads": 1, "slots": 4},
        } | spec
        self.runners: list[subprocess.Popen[str]] = []

    def write(self) -> Path:
        """The YAML, as a user would write it."""
        container = {"name": "trainer", "command": self.command}
        spec = self.spec | {"template": {"spec": {"containers": [container]}}}
        head = {"apiVersion": "lanefeed.dev/v1alpha1", "kind": "ShardedTrainingJob", "metadata": {"name": self.name}}
        file = self.work / "job.yaml"
        file.write_text(yaml.safe_dump({**head, "spec": spec}, sort_keys=False))
        return file

    def pace(self, seconds: float) -> None:
        """Seconds a step from now on."""
        self._tell("sleep", seconds)

    def allow(self, step: int) -> None:
        """Let trainers run up to `step` and wait there: whatever a test does to them, however slowly, they are there.

        Only a stop that was agreed on lets them go further.
        """
        self.allowed = step
        self._tell("limit", step)

    def _tell(self, name: str, value: float) -> None:
        temporary = self.out / f".{name}"
        temporary.write_text(str(value))
        temporary.replace(self.out / name)

    # ---- commands ----------------------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        return os.environ | self.env | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def lanefeed(self, *arguments: str, seconds: float = 200) -> subprocess.CompletedProcess[str]:
        """A command to its end."""
        command = [sys.executable, "-m", "lanefeed_operator.cli.main", *arguments]
        return subprocess.run(
            command, cwd=self.work, env=self.environment(), capture_output=True, text=True, timeout=seconds
        )

    def start(self, *options: str) -> subprocess.Popen[str]:
        """`lanefeed run job.yaml`, in the background."""
        self.write()
        command = [sys.executable, "-m", "lanefeed_operator.cli.main", "run", "job.yaml", *options]
        with (self.work / "runner.log").open("a") as log:
            runner = subprocess.Popen(
                command,
                cwd=self.work,
                env=self.environment(),
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.runners.append(runner)
        return runner

    @property
    def log(self) -> str:
        return (self.work / "runner.log").read_text()

    def finish(self, runner: subprocess.Popen[str], code: int = 0, seconds: float = 200) -> dict[str, Any]:
        """Wait for the runner's end and its exit code; the last status. Trainers may go to their end, but for 130."""
        if code != INTERRUPTED:
            self.allow(NEVER)
        try:
            got = runner.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end after {seconds} s\n{self.log}\n{self.logs()}") from None
        assert got == code, f"exit code {got}\n{self.log}\n{self.logs()}"
        return self.status()

    # ---- looking -----------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        file = self.state / "status.yaml"
        return dict(yaml.safe_load(file.read_text())["status"]) if file.exists() else {}

    def logs(self) -> str:
        return "\n".join(f"== {f}\n{f.read_text()[-1500:]}" for f in sorted(self.state.glob("pods/*/logs/*.log")))

    def pod(self, index: int) -> PodState | None:
        """The pod at an index in the present plan generation."""
        generation = self.status().get("planGeneration", 0)
        return poddoc.load_state(self.state / "pods" / f"{generation}-{index}")

    def running(self, index: int = 0) -> PodState | None:
        """The pod, if it trains."""
        state = self.pod(index)
        return state if state and state.phase == "Running" and state.ready and state.trainer_pid else None

    def committed(self) -> int:
        return int(self.status().get("cursor", {}).get("totalStep", 0))

    def until(self, what: Callable[[], Any], why: str, seconds: float = 100) -> Any:
        deadline = time.monotonic() + seconds
        while not (value := what()):
            assert time.monotonic() < deadline, f"waited {seconds} s until {why}\n{self.log}\n{self.logs()}"
            time.sleep(0.02)
        return value

    def until_step(self, step: int) -> None:
        """Until `step` is committed by all; they go on to the next commit at most (every 5 steps)."""
        self.allow(max(self.allowed, step + 6))
        self.until(lambda: self.committed() >= step, f"step {step} is committed")

    def processes(self) -> list[int]:
        """Everything that carries this job's mark."""
        uid = yaml.safe_load((self.state / "status.yaml").read_text())["metadata"]["uid"]
        return list(procs.marked(procs.JOB_UID_MARK, uid))

    # ---- the end -----------------------------------------------------------------------------------------------

    def assert_exact(self, epochs: int = 2) -> None:
        """The job is complete, every epoch proven, and nothing of it is left."""
        status = self.status()
        assert status["state"] == "Complete", self.log
        proven = status["ledger"]["epochs"]
        assert [e["epoch"] for e in proven] == list(range(epochs))
        assert all(e["verified"] and e["samples"] == ROWS for e in proven)
        verify = self.lanefeed("verify", self.name)
        assert verify.returncode == 0, verify.stdout + verify.stderr
        assert "every sample used exactly once" in verify.stdout
        assert self.processes() == []

    def close(self) -> None:
        for runner in self.runners:
            if runner.poll() is None:
                runner.kill()
            runner.wait()
        if (self.state / "status.yaml").exists():
            for pid in self.processes():
                procs.signal_pid(pid, signal.SIGKILL)
            uid = yaml.safe_load((self.state / "status.yaml").read_text())["metadata"]["uid"]
            import shutil

            from lanefeed_operator.local import rundir

            shutil.rmtree(rundir.job_root(uid), ignore_errors=True)
