"""Runs a real job through `lanefeed run`, kills its processes at random and reads back what the checkpoints saw."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from lanefeed_core import manifest_codec
from lanefeed_core.lanes import Lanes
from lanefeed_core.stream import StreamSpec
from support.chain import consumed

TRAINER = Path(__file__).parent.parent / "support" / "chaos_trainer.py"
GLOBAL_BATCH = 28
JOB = "chaos"


def make_dataset(folder: Path, *, rows: int = 4211, shards: int = 7) -> None:
    """Parquet whose `id` column is the sample id by the sorted listing, in shards and row groups of uneven size."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(3)
    cuts = np.sort(rng.choice(np.arange(1, rows), shards - 1, replace=False)).tolist()
    for index, (low, high) in enumerate(zip([0, *cuts], [*cuts, rows], strict=True)):
        ids = np.arange(low, high, dtype=np.int64)
        payload = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(ids, 8)), 8)
        table = pa.table({"id": ids, "payload": payload, "text": [f"row {i}" for i in ids]})
        pq.write_table(table, folder / f"{index:03d}.parquet", row_group_size=int(rng.integers(40, 400)))


def job_yaml(data: Path, *, replicas: int, epochs: int) -> dict[str, object]:
    """The job, as a user would write it."""
    return {
        "apiVersion": "lanefeed.dev/v1alpha1",
        "kind": "ShardedTrainingJob",
        "metadata": {"name": JOB},
        "spec": {
            "replicas": replicas,
            "maxRestarts": 10_000,
            "elastic": {"stopGraceSeconds": 20},
            "data": {"uri": str(data)},
            "batching": {"globalBatchSize": GLOBAL_BATCH, "lastBatch": "Partial", "uneven": "Allow", "lanes": 14},
            "shuffle": {"seed": 5, "window": 64},
            "epochs": epochs,
            "sidecar": {"readAheadBytes": "64Mi", "decodeThreads": 1, "slots": 4},
            "template": {"spec": {"containers": [{"name": "trainer", "command": [sys.executable, str(TRAINER)]}]}},
        },
    }


def environment(pid: int) -> dict[str, str]:
    """A process's initial environment; empty if it is gone."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    return dict(item.decode(errors="replace").partition("=")[::2] for item in raw.split(b"\0") if item)


def alive(pid: int) -> bool:
    """Whether a process runs; zombies do not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


@dataclass
class Chaos:
    """One job under fire."""

    work: Path
    seed: int
    epochs: int = 3
    replicas: int = 4
    kills: Counter[str] = field(default_factory=Counter)
    runner: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        """Make the dataset and the job."""
        self.rng = random.Random(self.seed)
        self.out = self.work / "out"
        self.out.mkdir(parents=True)
        make_dataset(self.work / "data")
        job = job_yaml(self.work / "data", replicas=self.replicas, epochs=self.epochs)
        (self.work / "job.yaml").write_text(yaml.safe_dump(job))
        self.mark = f"chaos-{os.getpid()}-{self.seed}"

    def start(self) -> None:
        """Start (again) `lanefeed run`."""
        env = os.environ | {"CHAOS_OUT": str(self.out), "CHAOS_MARK": self.mark}
        log = (self.work / "runner.log").open("ab")
        run = [sys.executable, "-m", "lanefeed_operator.cli.main", "run", "job.yaml"]
        self.runner = subprocess.Popen(run, cwd=self.work, env=env, stdout=log, stderr=log)
        log.close()

    def status(self) -> dict[str, object]:
        """The job's status, {} before there is one."""
        file = self.work / ".lanefeed" / JOB / "status.yaml"
        if not file.exists():
            return {}
        return dict((yaml.safe_load(file.read_text()) or {}).get("status") or {})

    def allow(self, step: int) -> None:
        """Let trainers run up to `step`."""
        temporary = self.out / "limit.tmp"
        temporary.write_text(str(step))
        temporary.replace(self.out / "limit")

    def scale(self, replicas: int) -> None:
        """`lanefeed scale`."""
        command = [sys.executable, "-m", "lanefeed_operator.cli.main", "scale", JOB, str(replicas)]
        subprocess.run(command, cwd=self.work, check=True, capture_output=True, timeout=60)

    def processes(self) -> dict[str, list[int]]:
        """Living processes of the job by kind."""
        found: dict[str, list[int]] = {"trainer": [], "sidecar": [], "pod": []}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or environment(int(entry.name)).get("CHAOS_MARK") != self.mark:
                continue
            pid = int(entry.name)
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if "chaos_trainer.py" in command:
                found["trainer"].append(pid)
            elif "lanefeed_sidecar" in command:
                found["sidecar"].append(pid)
            elif "lanefeed_operator.local.pod" in command:
                found["pod"].append(pid)
        return {kind: [p for p in pids if alive(p)] for kind, pids in found.items()}

    def kill_one(self) -> bool:
        """SIGKILL a random process; False if there was none of the kind drawn."""
        kind = self.rng.choice(["trainer", "trainer", "sidecar", "sidecar", "pod", "runner"])
        if kind == "runner":
            assert self.runner is not None
            self.runner.kill()
            self.runner.wait()
            self.start()
        else:
            pids = self.processes()[kind]
            if not pids:
                return False
            try:
                os.kill(self.rng.choice(sorted(pids)), signal.SIGKILL)
            except ProcessLookupError:
                return False
        self.kills[kind] += 1
        return True

    def run(self, kills: int, worlds: list[int], total_steps: int) -> None:
        """Kill `kills` processes while the job goes through `worlds`, then let it end. Raises on a stall."""
        self.allow(2)
        self.start()
        done = 0
        self._wait(lambda: bool(self.processes()["trainer"]), 120, "the first trainer")
        for number in range(kills):
            world = worlds[number * len(worlds) // kills]
            if world != self.replicas:
                self.scale(world)
                self.replicas = world
            self.allow((number + 1) * total_steps // (kills + 1))
            time.sleep(self.rng.uniform(0.1, 1.5))
            for _ in range(200):
                if self.kill_one():
                    done += 1
                    break
                time.sleep(0.05)
        assert done == kills, f"only {done} of {kills} kills found a process"
        self.allow(10**9)
        assert self.runner is not None
        try:
            code = self.runner.wait(timeout=400)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the job did not end; status: {json.dumps(self.status(), default=str)[:4000]}"
            ) from None
        assert code == 0, f"lanefeed run ended with {code}: {(self.work / 'runner.log').read_text()[-3000:]}"

    def _wait(self, done: object, seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while not done():  # type: ignore[operator]
            assert time.monotonic() < end, (
                f"waited {seconds} s for {what}: {(self.work / 'runner.log').read_text()[-3000:]}"
            )
            time.sleep(0.05)

    def stop(self) -> None:
        """End whatever is left."""
        if self.runner and self.runner.poll() is None:
            self.runner.kill()
            self.runner.wait()
        for pids in self.processes().values():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue

    def lanes(self) -> Lanes:
        """The job's lanes, from its own frozen manifest and stream."""
        manifest = manifest_codec.decode((self.work / ".lanefeed" / JOB / "manifest.bin").read_bytes())
        spec = StreamSpec(seed=5, global_batch_size=GLOBAL_BATCH, lanes=14, window=64, last_batch="Partial")
        return Lanes(spec, manifest.shard_rows)

    def consumed(self, last: str) -> list[list[int]]:
        """Ids of every global batch as the chain of checkpoints that ends in `last` saw them."""
        return consumed(self.out, last)
