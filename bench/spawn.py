"""Runs one job of `bench.jobs` as a process, and again while others use the machine. Called by `bench.run`."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from bench.adapters.peer import peers_folder
from bench.jobs import Job

__all__ = ["RETRIES", "RunFailed", "run_job"]

ROOT = Path(__file__).resolve().parents[1]
#: Above this many cores of other processes a run is repeated, RETRIES runs at most; the quietest one counts.
FOREIGN_CORES = 0.12
RETRIES = 3
#: By module, where it is not LIMIT_SECONDS.
LIMITS = {"bench.footers": 400, "bench.remote": 300}
LIMIT_SECONDS = 150


class RunFailed(Exception):
    """A measuring process gave no result; the text holds the end of what it said."""


def run_job(job: Job, tries: int = RETRIES) -> dict[str, float]:
    """Run the job, again while others used the machine; the quietest run."""
    best: dict[str, float] = {}
    for _ in range(tries):
        found = _spawn(job)
        if not best or found.get("foreign_cores", 0) < best["foreign_cores"]:
            best = {"foreign_cores": 0.0, **found}
        if best["foreign_cores"] <= FOREIGN_CORES:
            break
    return best


def _environment(job: Job) -> dict[str, str]:
    parts = [str(ROOT / part) for part in (".", "trainer_lib", "sidecar", "operator")]
    if job.request.loader == "mosaic":
        # It imports torchvision at its start, whose release cannot load beside the CPU build of torch.
        parts.append(str(peers_folder() / "stubs"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(parts), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def _spawn(job: Job) -> dict[str, float]:
    """Run the job's process until its result is there and return that."""
    command = [job.python, "-m", job.module, str(time.monotonic()), job.request.to_json()]
    with tempfile.TemporaryFile("w+") as log, tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env=_environment(job), stdout=out, stderr=log, text=True, start_new_session=True
        )
        try:
            process.wait(LIMITS.get(job.module, LIMIT_SECONDS))
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end_group(process)
            _remove_left_behind(job)
        out.seek(0)
        for line in out:
            if line.startswith("RESULT "):
                return dict(json.loads(line[7:]))
        log.seek(0)
        raise RunFailed(f"{job.key} gave no result (exit code {process.returncode}):\n{log.read()[-1500:]}")


def _remove_left_behind(job: Job) -> None:
    """Empty folders that fkat's writers leave in shared memory when they are ended."""
    if job.request.loader == "fkat":
        for folder in Path("/dev/shm").glob("[0-9]*-*-*-*-*-*"):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _end_group(process: "subprocess.Popen[str]") -> None:
    """End what the run left in its own session; first a moment in which its makers clean up shared memory."""
    try:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + 3.0
        while time.monotonic() < deadline:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
