"""A real Prometheus on this machine that scrapes a cluster's pods, with the chart's scrape configuration and rules.

Used by tests/chart and tests/e2e. This machine must reach the pods (../shared/kube: it does).
"""

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from support import discovery
from support.helm import CHART, missing
from support.ports import free_port

__all__ = ["Prometheus", "configuration", "prometheus"]

START_SECONDS = 60.0


def configuration(discovery: str, *, interval: str = "1s") -> dict[str, Any]:
    """prometheus.yml: the chart's jobs and rules, as often as tests need; pods are found through `discovery`."""
    found: dict[str, Any] = yaml.safe_load((CHART / "files/scrape.yaml").read_text())
    for job in found["scrape_configs"]:
        job["scrape_interval"] = interval
        selectors = [s["label"] for d in job.pop("kubernetes_sd_configs") for s in d["selectors"]]
        urls = [f"{discovery}?{urllib.parse.urlencode({'selector': selector})}" for selector in selectors]
        job["http_sd_configs"] = [{"url": url, "refresh_interval": interval} for url in urls]
    rules = [str(CHART / "files/rules.yaml")]
    return {"global": {"scrape_interval": interval, "evaluation_interval": interval}, "rule_files": rules, **found}


class Prometheus:
    """The running server."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"

    def api(self, path: str, **query: str) -> Any:
        """The data of an answer of its API."""
        with urllib.request.urlopen(
            f"{self._base}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=10
        ) as answer:
            return json.loads(answer.read())["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """An instant query: labels and value of each series."""
        found = self.api("query", query=expression)
        if found["resultType"] == "scalar":
            return [({}, float(found["result"][1]))]
        return [(series["metric"], float(series["value"][1])) for series in found["result"]]

    def targets(self) -> list[dict[str, Any]]:
        """What it scrapes, and how that goes (health, lastError, labels, discoveredLabels)."""
        found: list[dict[str, Any]] = self.api("targets", state="active")["activeTargets"]
        return found

    def wait(self, what: str, ask: "Callable[[], Any]", seconds: float = 60) -> Any:
        """Until `ask` answers something true; its answer."""
        deadline = time.monotonic() + seconds
        while True:
            found = ask()
            if found:
                return found
            if time.monotonic() > deadline:
                targets = [(t["scrapeUrl"], t["health"], t["lastError"]) for t in self.targets()]
                raise AssertionError(f"waited {seconds:g} s for {what}; targets: {targets}")
            time.sleep(0.3)


@contextmanager
def prometheus(kubeconfig: Path, folder: Path, *, interval: str = "1s") -> Iterator[Prometheus]:
    """Started in `folder`, and ended."""
    program = shutil.which("prometheus") or missing("there is no prometheus: install Debian's package prometheus")
    with discovery.serve(kubeconfig) as address:
        file = folder / "prometheus.yml"
        file.write_text(yaml.safe_dump(configuration(address, interval=interval)))
        with _running(program, file, folder) as found:
            yield found


@contextmanager
def _running(program: str, file: Path, folder: Path) -> Iterator[Prometheus]:
    port = free_port()
    arguments = [program, f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "prometheus.log").open("w") as log:
        server = subprocess.Popen(
            [*arguments, f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"], stdout=log, stderr=log
        )
        try:
            found = Prometheus(port)
            deadline = time.monotonic() + START_SECONDS
            while not _ready(found):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"prometheus did not start: {(folder / 'prometheus.log').read_text()[-2000:]}")
                time.sleep(0.1)
            yield found
        finally:
            server.terminate()
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _ready(server: Prometheus) -> bool:
    try:
        server.api("status/buildinfo")
    except OSError:
        return False
    return True
