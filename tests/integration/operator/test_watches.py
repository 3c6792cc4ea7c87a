"""Watches that fall silent, credentials that run out, and what an operator imports."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.operator.processes import OperatorProcess, job
from lanefeed_operator.kube.api import JOBS, STJS
from support.apiserver import ApiServer, until
from support.blackhole import Blackhole


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, shm_root: Path) -> Iterator[ApiServer]:
    with ApiServer.running(tmp_path_factory.mktemp("kube")) as found:
        yield found


def taken_up(server: ApiServer, name: str) -> bool:
    return f"{name}-index" in [o["metadata"]["name"] for o in server.api().list(JOBS, "a")]


def ages(operator: OperatorProcess) -> list[float]:
    kinds = ("shardedtrainingjobs", "jobs", "pods", "nodes")
    return [operator.metric(f'watch_age_seconds{{resource="{kind}"}}') for kind in kinds]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_watches_that_fall_silent_are_begun_anew(server: ApiServer, tmp_path: Path) -> None:
    """As behind a load balancer that forgot the connections: both ends think that all is well."""
    with Blackhole.running(server.port) as proxy:
        kubeconfig = tmp_path / "proxied.conf"
        text = server.kubeconfig("one").read_text()
        kubeconfig.write_text(text.replace(f"127.0.0.1:{server.port}", f"127.0.0.1:{proxy.port}"))
        with OperatorProcess(kubeconfig, tmp_path) as operator:
            operator.ready()
            operator.watching()
            server.api().create(STJS, "a", job("heard"))
            until("a job to be seen", lambda: taken_up(server, "heard"))
            # The listings that follow the beginning of each watch are over: only the watches can tell.
            time.sleep(8.0)
            assert proxy.silence() >= 4
            server.api().create(STJS, "a", job("unheard"))
            until("the job that was created in silence", lambda: taken_up(server, "unheard"), 140.0)
            assert operator.process.poll() is None
            assert operator.get("/healthz")[0] == 200
            assert "Traceback" not in operator.text


def test_watches_log_in_again_when_their_token_has_run_out(server: ApiServer, tmp_path: Path) -> None:
    with OperatorProcess(server.kubeconfig("two"), tmp_path, "two") as operator:
        operator.ready()
        operator.watching()
        server.kill()
        begun = time.monotonic()
        server.new_token("two")
        server.start()
        # Each watch is answered again: none is older than the outage.
        until(
            "the watches to be answered with the new token",
            lambda: all(0 < age < time.monotonic() - begun for age in ages(operator)),
        )
        assert operator.process.poll() is None


def test_the_operator_starts_light() -> None:
    """What it imports is most of the time from start to first reconcile: no typed models, no data, no screens."""
    code = (
        "import sys, lanefeed_operator.runtime.main;"
        "print(sum(m.startswith('kubernetes.client.models') for m in sys.modules),"
        " *(m for m in ('pyarrow', 'torch', 'rich', 'typer', 'pandas') if m in sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    models, *heavy = found.stdout.split()
    assert int(models) < 50
    assert heavy == []
