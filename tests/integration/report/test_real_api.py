"""The report service against a real API server: TokenReview of bound tokens, the Secret. Skipped with no cluster up."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from lanefeed_operator.coordinator.authenticate import TokenAuthenticator
from lanefeed_operator.coordinator.certstore import Certificates
from lanefeed_operator.kube.api import PODS, SECRETS, Kind
from lanefeed_operator.kube.client import Client, connect
from support.report_bed import AUDIENCE, Bed, Pod, refusal

Code = grpc.StatusCode
NAMESPACES = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
#: Of ../shared/kube; never that of $KUBECONFIG, which may be somebody's own cluster.
KUBECONFIG = str(Path(os.environ.get("KUBE_STATE", "/tmp/kube")) / "admin.conf")


def kubectl(*words: str) -> str:
    program = shutil.which("kubectl") or str(Path(KUBECONFIG).parent / "bin/kubectl")
    command = [program, "--kubeconfig", KUBECONFIG, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return done.stdout.strip()


@pytest.fixture(scope="module")
def api() -> Iterator[Client]:
    if not Path(KUBECONFIG).exists():
        pytest.skip(f"no cluster: there is no {KUBECONFIG}; ../shared/kube/up starts one")
    try:
        kubectl("get", "--raw", "/readyz")
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"no cluster: the one of {KUBECONFIG} does not answer: {error}")
    client = connect(kubeconfig=KUBECONFIG)
    yield client
    client.close()


@pytest.fixture(scope="module")
def namespace(api: Client) -> Iterator[str]:
    name = f"report-{os.getpid()}"
    kubectl("create", "namespace", name)
    until = time.monotonic() + 60
    while "default" not in kubectl("get", "sa", "-n", name, "-o", "name"):
        assert time.monotonic() < until, "the namespace got no service account"
        time.sleep(0.2)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


def pod(api: Client, namespace: str, name: str) -> dict[str, Any]:
    """A pod that no node takes: tokens can be bound to it all the same."""
    container = {"name": "c", "image": "none"}
    spec = {"containers": [container], "nodeSelector": {"never": "there"}, "terminationGracePeriodSeconds": 0}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}
    return api.create(PODS, namespace, body)


def token(namespace: str, of: dict[str, Any] | None, audience: str = AUDIENCE) -> str:
    bound: list[str] = []
    if of is not None:
        meta = of["metadata"]
        bound = ["--bound-object-kind", "Pod", "--bound-object-name", meta["name"], "--bound-object-uid", meta["uid"]]
    return kubectl("create", "token", "default", "-n", namespace, "--audience", audience, *bound)


@pytest.fixture
def real(api: Client, namespace: str) -> Iterator[Bed]:
    """The service with the real API behind it."""
    made = Bed()
    names = ("127.0.0.1", "lanefeed.system.svc")
    made.certificates = Certificates(api, namespace, "report-certificates", names, time.time)
    made.gate = TokenAuthenticator(api, AUDIENCE)
    made.up()
    yield made
    made.down()


def test_a_projected_token_of_the_pod_counts_until_the_pod_is_gone(real: Bed, api: Client, namespace: str) -> None:
    mine = pod(api, namespace, "mine")
    uid = mine["metadata"]["uid"]
    job = real.job("j1", namespace=namespace)
    job.core.expect(1, 0, uid)
    with real.pod("j1", 0, uid=uid, token=token(namespace, mine)) as sidecar:
        assert not sidecar.say(3).reason
        assert job.core.snapshot(0).ranks[0].consumed == 3
        api.delete(PODS, namespace, "mine", uid=uid, grace=0)
        until = time.monotonic() + 60
        while (code := after_a_minute(real, sidecar)) is Code.OK:
            assert time.monotonic() < until, "the token of a pod that is gone is still accepted"
            time.sleep(0.5)
        assert code is Code.UNAUTHENTICATED


def after_a_minute(real: Bed, sidecar: Pod) -> Code:
    """How a report ends when the last answer of TokenReview is too old to count."""
    assert real.gate is not None
    real.gate._known.clear()
    try:
        sidecar.say(4)
    except grpc.RpcError as error:
        return error.code()  # type: ignore[attr-defined,no-any-return]
    return Code.OK


def test_other_tokens_of_the_real_api_are_refused(real: Bed, api: Client, namespace: str) -> None:
    other = pod(api, namespace, "other")
    real.job("j1", namespace=namespace)
    for given, words in (
        (token(namespace, None), "bound to no pod"),
        (token(namespace, other, "https://kubernetes.default.svc.cluster.local"), "refuses the token"),
        (token(namespace, other)[:-8] + "AAAAAAAA", "refuses the token"),
    ):
        with real.pod("j1", 0, token=given) as sidecar:
            code, said = refusal(lambda: sidecar.say(1))
            assert code is Code.UNAUTHENTICATED
            assert words in said
    with real.pod("j1", 0, token=token(namespace, other)) as sidecar:
        code, said = refusal(lambda: sidecar.say(1))
        assert code is Code.PERMISSION_DENIED
        assert f"the token is of pod {other['metadata']['uid']}" in said


def test_the_secret_is_made_and_used_again(real: Bed, api: Client, namespace: str) -> None:
    stored = api.get(SECRETS, namespace, "report-certificates")
    assert set(stored["data"]) == {"ca.crt", "tls.crt", "tls.key", "state.json"}
    again = Certificates(api, namespace, "report-certificates", ("127.0.0.1", "lanefeed.system.svc"), time.time)
    assert again.refresh() == ""
    assert again.material == real.certificates.material
    assert (
        api.get(SECRETS, namespace, "report-certificates")["metadata"]["resourceVersion"]
        == (stored["metadata"]["resourceVersion"])
    )
    grown = Certificates(api, namespace, "report-certificates", ("127.0.0.1", "more.example.org"), time.time)
    assert "more.example.org" in grown.refresh()
    assert json.dumps(api.get(SECRETS, namespace, "report-certificates")["data"]) != json.dumps(stored["data"])
