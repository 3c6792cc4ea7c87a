"""Operators as processes, for tests: started with ports of their own, asked over HTTP, ended for certain."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from lanefeed_operator.runtime.settings import PREFIX
from support.apiserver import until

__all__ = ["OperatorProcess", "job"]


def job(name: str, namespace: str = "a", **spec: object) -> dict[str, object]:
    """A job that can be reconciled as far as its indexer, which nobody runs here."""
    container = {"name": "trainer", "image": "kube.test/trainer:1", "command": ["true"]}
    body = {
        "replicas": 2,
        "data": {"uri": "/data/*.parquet"},
        "batching": {"globalBatchSize": 8},
        "template": {"spec": {"containers": [container]}},
    }
    return {"metadata": {"name": name, "namespace": namespace}, "spec": body | spec}


class OperatorProcess:
    """One `python -m lanefeed_operator`."""

    def __init__(self, kubeconfig: Path, folder: Path, name: str = "one", **settings: str) -> None:
        self.log = folder / f"operator-{name}.log"
        given = {
            "SIDECAR_IMAGE": "kube.test/sidecar:1",
            "NAMESPACE": "a",
            "COORDINATOR": "127.0.0.1:9443",
            "BIND": "127.0.0.1",
            "POD": name,
            **dict.fromkeys(("REPORT_PORT", "HEALTH_PORT", "METRICS_PORT"), "0"),
            "LOG_LEVEL": "info",
        }
        environ = os.environ | {"KUBECONFIG": str(kubeconfig)}
        environ |= {PREFIX + key: value for key, value in (given | settings).items()}
        self.begun = time.monotonic()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lanefeed_operator"], env=environ, stdout=log, stderr=log, cwd=folder
            )

    def __enter__(self) -> "OperatorProcess":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(60)

    @property
    def text(self) -> str:
        """Its log."""
        return self.log.read_text()

    def port(self, what: str) -> int:
        """Port 0 is any free one; the log says which."""
        found = until(f"the {what} port", lambda: re.search(rf"{what} at \S*:(\d+)", self.text))
        return int(found[1])

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a page; (0, "") while nobody answers."""
        port = self.port("metrics" if path == "/metrics" else "health")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def ready(self, text: str = "ready", seconds: float = 100.0) -> float:
        """Wait for /readyz to say so; seconds since the start."""
        until(f"/readyz to say {text!r} ({self.text[-2000:]})", lambda: text in self.get("/readyz")[1], seconds)
        return time.monotonic() - self.begun

    def metric(self, name: str) -> float:
        """Sum of a metric's series whose text begins with `name`."""
        lines = self.get("/metrics")[1].splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"lanefeed_operator_{name}"))

    def watching(self) -> None:
        """Wait until all watches have begun."""
        until("the watches", lambda: "every watch has begun" in self.text)

    def terminate(self, seconds: float = 60.0) -> tuple[int, float]:
        """SIGTERM: (exit code, seconds)."""
        begun = time.monotonic()
        self.process.terminate()
        return self.process.wait(seconds), time.monotonic() - begun
