"""A spec that nests as deep as the API server takes it: one tenant's, beside the healthy job of another."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.operator.processes import OperatorProcess, job
from integration.operator.test_process import indexing
from lanefeed_operator.kube.api import STJS, Invalid
from support.apiserver import ApiServer, until

MARK = "DEEP"
PATH = f"/apis/{STJS.group}/{STJS.version}/namespaces/b/{STJS.plural}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, shm_root: Path) -> Iterator[ApiServer]:
    with ApiServer.running(tmp_path_factory.mktemp("kube")) as found:
        yield found


def post(server: ApiServer, name: str, levels: int) -> None:
    """As `kubectl apply` sends it: the text is never read here."""
    body = {"apiVersion": f"{STJS.group}/{STJS.version}", "kind": STJS.kind, **job(name, "b")}
    body["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": MARK}  # type: ignore[index]
    text = json.dumps(body).replace(f'"{MARK}"', '{"x":' * levels + "1" + "}" * levels)
    client = server.api()
    url = f"{client._host}{PATH}"
    client._text("create", "POST", url, text.encode(), "application/json", time.monotonic() + 30)


def get(server: ApiServer, name: str) -> bytes:
    client = server.api()
    url = f"{client._host}{PATH}/{name}"
    return client._text("get", "GET", url, None, "application/json", time.monotonic() + 30)


def test_a_spec_as_deep_as_the_api_server_takes_it_harms_no_other_job(server: ApiServer, tmp_path: Path) -> None:
    with OperatorProcess(server.kubeconfig("one"), tmp_path) as operator:
        operator.ready()
        operator.watching()
        post(server, "deep", 9_900)
        server.api().create(STJS, "a", job("beside"))
        until("the job beside it", lambda: indexing(server, "beside"))
        until("its author to be told", lambda: b"SpecRefused" in get(server, "deep"))
        assert operator.process.poll() is None
        assert operator.get("/healthz") == (200, "ok\n")
        assert "a fault of the operator's" not in operator.text
        assert len(operator.text) < 100_000, "what is said of it is not as long as it is deep"
        operator.terminate()
    with OperatorProcess(server.kubeconfig("one"), tmp_path, name="two") as operator:
        operator.ready()
        server.api().create(STJS, "a", job("later"))
        until("a job after a restart", lambda: indexing(server, "later"))
        assert operator.process.poll() is None


def test_the_api_server_takes_nothing_deeper_than_is_read(server: ApiServer) -> None:
    with pytest.raises(Invalid, match="depth"):
        post(server, "deeper", 10_001)
