"""A pod's sidecar as a real process with the small engine: start, kill, restart, ask, and leave nothing behind."""

import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from lanefeed_core import manifest_codec
from lanefeed_core.cursor import Cursor, SavedState
from lanefeed_core.lanes import Lanes
from lanefeed_core.manifest import Field, Manifest, Shard
from lanefeed_core.plan import Plan
from lanefeed_core.podconfig import PodConfig
from lanefeed_core.slices import rank_slice
from lanefeed_core.stream import StreamSpec
from support.feed_client import Client

MANIFEST = Manifest(
    shards=tuple(Shard(f"part-{i}.parquet", 1000, (rows,)) for i, rows in enumerate((60, 31, 45, 17))),
    fields=(Field("x", "fixed_size_list<item: int64>[2]"), Field("text", "string")),
)
SPEC = StreamSpec(seed=3, global_batch_size=8, lanes=4, window=16, last_batch="Partial")
HERE = Path(__file__).parent


class Pod:
    """One run folder and the sidecar in it."""

    def __init__(self, tmp_path: Path, run_dir: Path | None = None, **fields: Any) -> None:
        root = os.environ.get("LANEFEED_SHM_ROOT", "/dev/shm")
        self.run_dir = run_dir or Path(tempfile.mkdtemp(prefix="lf-feed-", dir=root))
        self.tmp_path = tmp_path
        manifest = tmp_path / "manifest.bin"
        manifest.write_bytes(manifest_codec.encode(MANIFEST))
        ranks = fields.pop("ranks", 1)
        defaults = {
            "job": "demo",
            "job_uid": "uid-1",
            "pod_index": 0,
            "pod_uid": "pod-1",
            "plan": Plan(1, fields.pop("replicas", 1), ranks, Cursor()),
            "spec": SPEC,
            "epochs": 2,
            "manifest_path": str(manifest),
            "run_dir": str(self.run_dir),
            "slots": 4,
            "report_seconds": 0.1,
        }
        self.config = PodConfig(**{**defaults, **fields})
        self.lanes = Lanes(self.config.spec, MANIFEST.shard_rows)
        self.total = self.config.epochs * self.lanes.steps_per_epoch
        self.log = tmp_path / "sidecar.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.clients: list[Client] = []

    def spawn(self, env: dict[str, str] | None = None, **changes: Any) -> subprocess.Popen[bytes]:
        """Start the process and do not wait for it."""
        file = self.tmp_path / "config.json"
        file.write_text(replace(self.config, **changes).to_json())
        command = [sys.executable, str(HERE / "feed_engine.py"), "--config", str(file)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log, env={**os.environ, **(env or {})})
        return self.process

    def start(self, env: dict[str, str] | None = None, seconds: float = 60, **changes: Any) -> "Pod":
        """Start and wait until /readyz says 200."""
        (self.run_dir / "metrics.addr").unlink(missing_ok=True)
        process = self.spawn(env, **changes)
        end = time.monotonic() + seconds
        while not self.ready():
            assert process.poll() is None, f"the sidecar ended with {process.returncode}: {self.text()}"
            assert time.monotonic() < end, f"not ready after {seconds} s: {self.text()}"
            time.sleep(0.01)
        return self

    def ready(self) -> bool:
        try:
            return self.get("/readyz")[0] == 200
        except OSError:
            return False

    def get(self, path: str) -> tuple[int, str]:
        address = (self.run_dir / "metrics.addr").read_text().strip()
        connection = http.client.HTTPConnection(address, timeout=20)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def metric(self, name: str, **labels: str) -> float:
        """One sample of /metrics; 0 if it is not there."""
        from prometheus_client.parser import text_string_to_metric_families

        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        return 0.0

    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def last_line(self) -> str:
        return self.text().strip().rsplit("\n", 1)[-1]

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def terminate(self, seconds: float = 60) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def client(self, rank: int = 0, **fields: Any) -> Client:
        client = Client(self.run_dir, rank, self.config.plan.world, self.config.plan.generation, **fields)
        self.clients.append(client)
        return client

    def state(self, total: int, **changes: Any) -> dict[str, Any]:
        """The state of a checkpoint at a total step."""
        cursor = Cursor.from_total(total, self.lanes.steps_per_epoch)
        return {**SavedState(MANIFEST.digest, self.config.spec, cursor).to_dict(), **changes}

    def expected(self, rank: int = 0) -> dict[int, list[int]]:
        """Total step -> ids of the rank, from `lanes` alone."""
        found = {}
        for total in range(self.total):
            ids, _ = self.lanes.batch(*divmod(total, self.lanes.steps_per_epoch))
            low, high = rank_slice(len(ids), self.config.plan.world, rank)
            found[total] = ids[low:high].tolist()
        return found

    def close(self) -> None:
        for client in self.clients:
            client.close()
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.run_dir, ignore_errors=True)
