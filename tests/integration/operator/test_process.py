"""The operator's process against a real API server of its own: start, idleness, an API server that goes, the end."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.operator.processes import OperatorProcess, job
from lanefeed_operator.kube.api import CONFIG_MAPS, JOBS, SECRETS, STJS, ApiError, Kind
from support.apiserver import CRDS, ApiServer, until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, shm_root: Path) -> Iterator[ApiServer]:
    with ApiServer.running(tmp_path_factory.mktemp("kube")) as found:
        yield found


@pytest.fixture
def operator(server: ApiServer, tmp_path: Path) -> Iterator[OperatorProcess]:
    with OperatorProcess(server.kubeconfig("one"), tmp_path) as found:
        yield found


def condition(server: ApiServer, name: str, kind: str, namespace: str = "a") -> dict[str, Any]:
    status = server.api().get(STJS, namespace, name).get("status") or {}
    return next((c for c in status.get("conditions") or () if c["type"] == kind), {})


def indexing(server: ApiServer, name: str, namespace: str = "a") -> bool:
    """Whether the job was taken up: what is decided is in its status, and what follows from it was made."""
    jobs = [o["metadata"]["name"] for o in server.api().list(JOBS, namespace)]
    return condition(server, name, "DatasetReady", namespace).get("reason") == "Indexing" and f"{name}-index" in jobs


def test_a_job_is_taken_up_soon_after_the_start_and_kopf_leaves_no_trace(
    server: ApiServer, operator: OperatorProcess
) -> None:
    server.api().create(STJS, "a", job("early"))
    operator.ready()
    until("the job that was there", lambda: indexing(server, "early"))
    server.api().create(STJS, "b", job("late", "b"))
    until("the job that came later", lambda: indexing(server, "late", "b"))
    for name, namespace in (("early", "a"), ("late", "b")):
        meta = server.api().get(STJS, namespace, name)["metadata"]
        assert "finalizers" not in meta
        assert "annotations" not in meta
    assert server.api().get(SECRETS, "a", "lanefeed-operator-report-tls")["data"]["ca.crt"]
    assert server.api().get(CONFIG_MAPS, "a", "early-trust")["data"]["ca.crt"]
    code, seconds = operator.terminate()
    assert (code, seconds < 25.0) == (0, True), "a pod that is told to end has 30 s"
    assert "job a/early plan 0: DatasetReady=Unknown Indexing" in operator.text
    assert not [line for line in operator.text.splitlines() if " ERROR " in line or "Traceback" in line]


def settled(server: ApiServer, operator: OperatorProcess) -> bool:
    """Whether nothing waits, and nothing was written for three seconds."""
    writes = len(server.writes("one"))
    time.sleep(3.0)
    return operator.metric("queue_depth") == 0 and len(server.writes("one")) == writes


def test_an_idle_operator_writes_nothing_and_looks_seldom(server: ApiServer, operator: OperatorProcess) -> None:
    server.api().create(STJS, "a", job("idle"))
    operator.ready()
    until("the job", lambda: indexing(server, "idle"))
    until("its last pass", lambda: settled(server, operator))
    before = (len(server.writes("one")), operator.metric("reconcile_seconds_count"))
    begun = time.monotonic()
    time.sleep(8.0)
    after = (len(server.writes("one")), operator.metric("reconcile_seconds_count"))
    assert after[0] == before[0], "an idle job is never written"
    often = (time.monotonic() - begun) / 2
    assert after[1] - before[1] <= often * len(server.api().list(STJS)), "a pass every few seconds at the most"


def test_an_api_server_that_goes_and_comes_back_is_nothing_to_restart_for(
    server: ApiServer, operator: OperatorProcess
) -> None:
    operator.ready()
    operator.watching()
    server.kill()
    time.sleep(6.0)
    assert operator.get("/healthz") == (200, "ok\n")
    server.start()
    server.api().create(STJS, "a", job("after"))
    until("the job of after the outage", lambda: indexing(server, "after"), 100.0)
    assert operator.process.poll() is None
    assert operator.get("/healthz")[0] == 200
    assert not [line for line in operator.text.splitlines() if " ERROR " in line or "Traceback" in line]


def test_a_watch_that_ends_for_good_ends_the_process(server: ApiServer, operator: OperatorProcess) -> None:
    operator.ready()
    operator.watching()
    server.remove_crd()
    try:
        assert operator.process.wait(60) == 1
        assert "a watch ended" in operator.text
    finally:
        server.apply_crd()


def test_without_the_crd_it_waits_and_says_what_for(server: ApiServer, tmp_path: Path) -> None:
    server.remove_crd()
    try:
        with OperatorProcess(server.kubeconfig("one"), tmp_path) as operator:
            operator.ready("the CustomResourceDefinition of ShardedTrainingJobs is not installed")
            assert operator.get("/readyz")[0] == 503
            assert operator.get("/healthz")[0] == 200
            server.apply_crd()
            operator.ready()
            server.api().create(STJS, "a", job("waited"))
            until("the job", lambda: indexing(server, "waited"))
            assert operator.terminate()[0] == 0
    finally:
        if "waited" not in [o["metadata"]["name"] for o in _jobs(server)]:
            server.apply_crd()


def _jobs(server: ApiServer) -> list[dict[str, Any]]:
    return server.api().list(STJS)


def test_only_the_namespaces_that_it_is_told_of_are_looked_at(server: ApiServer, tmp_path: Path) -> None:
    with OperatorProcess(server.kubeconfig("one"), tmp_path, WATCH_NAMESPACES="b") as operator:
        operator.ready()
        server.api().create(STJS, "a", job("outside"))
        server.api().create(STJS, "b", job("inside", "b"))
        until("the job inside", lambda: indexing(server, "inside", "b"))
        time.sleep(1.0)
        assert not server.api().get(STJS, "a", "outside").get("status")
        assert operator.terminate()[0] == 0


def test_a_wrong_environment_is_said_and_ends_it(server: ApiServer, tmp_path: Path) -> None:
    with OperatorProcess(server.kubeconfig("one"), tmp_path, WORKERS="many") as operator:
        assert operator.process.wait(60) == 2
        assert "LANEFEED_OPERATOR_WORKERS is 'many'" in operator.text


def test_sigterm_while_the_api_server_does_not_answer_ends_it_in_time(
    server: ApiServer, operator: OperatorProcess
) -> None:
    operator.ready()
    with server.frozen():
        time.sleep(0.5)
        code, seconds = operator.terminate()
    assert seconds < 25.0
    assert code in (0, 1)


def test_an_object_that_makes_other_kopf_operators_pause_is_passed_over(server: ApiServer, tmp_path: Path) -> None:
    """kopf's peering joins whatever peering object is called `default`, and stands still beside a higher priority."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    names = {"kind": "KopfPeering", "plural": "kopfpeerings", "singular": "kopfpeering"}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    server.api().create(
        CRDS,
        "",
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "kopfpeerings.kopf.dev"},
            "spec": {"group": "kopf.dev", "scope": "Namespaced", "names": names, "versions": [version]},
        },
    )
    peerings = Kind("kopf.dev", "v1", "kopfpeerings", "KopfPeering")
    other = {"priority": 1000, "lastseen": "2999-01-01T00:00:00", "lifetime": 60}
    peering = {"metadata": {"name": "default"}, "status": {"other": other}}
    until("the peering's kind", lambda: _created(server, peerings, peering))
    with OperatorProcess(server.kubeconfig("one"), tmp_path) as operator:
        operator.ready()
        operator.watching()
        server.api().create(STJS, "a", job("unfrozen"))
        until("the job", lambda: indexing(server, "unfrozen"))


def _created(server: ApiServer, kind: Kind, body: dict[str, Any]) -> bool:
    try:
        server.api().create(kind, "a", body)
    except ApiError:
        return False
    return True
