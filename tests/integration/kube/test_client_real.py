"""The client against a real API server: what tests against a scripted one can only assume.

Skipped where no cluster is up (`../shared/kube/up` starts one). The ShardedTrainingJobs made here say that another
controller runs them, so that an operator which is installed leaves them alone.
"""

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lanefeed_operator.api import crd
from lanefeed_operator.kube import api
from lanefeed_operator.kube import client as module
from lanefeed_operator.kube.client import Client, configuration
from lanefeed_operator.kube.facts import pod_facts
from lanefeed_operator.runtime.fencing import free_pod
from unit.kube.bed import spec

#: Of ../shared/kube; never that of $KUBECONFIG, which may be somebody's own cluster.
KUBECONFIG = str(Path(os.environ.get("KUBE_STATE", "/tmp/kube")) / "admin.conf")
NAMESPACES = api.Kind("", "v1", "namespaces", "Namespace", namespaced=False)
CRDS = api.Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    if not Path(KUBECONFIG).exists():
        pytest.skip(f"no cluster: there is no {KUBECONFIG}; ../shared/kube/up starts one")
    found = Client(configuration(KUBECONFIG, None, 4), seconds=30)
    try:
        found.list(api.NODES)
    except api.ApiError as error:
        pytest.skip(f"no cluster: the one of {KUBECONFIG} does not answer: {error}")
    yield found
    found.close()


@pytest.fixture(scope="module")
def namespace(client: Client) -> Iterator[str]:
    name = f"client-{uuid.uuid4().hex[:8]}"
    made = client.create(NAMESPACES, "", {"metadata": {"name": name}})
    yield name
    client.delete(NAMESPACES, "", name, uid=made["metadata"]["uid"])


@pytest.fixture(scope="module")
def job_kind(client: Client) -> None:
    try:
        client.create(CRDS, "", crd.definition())
    except api.AlreadyExists:
        return
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            client.list(api.STJS)
            return
        except api.NotFound:
            time.sleep(0.2)
    raise AssertionError("the CRD is not served after 60 s")


def config_map(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"test": "client"}}, "data": {"a": "1"}, **more}


def test_objects_are_made_read_changed_and_deleted(client: Client, namespace: str) -> None:
    made = client.create(api.CONFIG_MAPS, namespace, config_map("one"))
    with pytest.raises(api.AlreadyExists, match='"one" already exists'):
        client.create(api.CONFIG_MAPS, namespace, config_map("one"))
    uid, version = made["metadata"]["uid"], made["metadata"]["resourceVersion"]
    wrong = {"metadata": {"uid": "00000000-0000-0000-0000-000000000000"}, "data": {"a": "2"}}
    with pytest.raises(api.Conflict):
        client.patch(api.CONFIG_MAPS, namespace, "one", wrong)
    right = {"metadata": {"uid": uid, "resourceVersion": version}, "data": {"a": "2"}}
    assert client.patch(api.CONFIG_MAPS, namespace, "one", right)["data"] == {"a": "2"}
    with pytest.raises(api.Conflict):
        client.patch(api.CONFIG_MAPS, namespace, "one", right)
    with pytest.raises(api.Conflict):
        client.delete(api.CONFIG_MAPS, namespace, "one", uid="00000000-0000-0000-0000-000000000000")
    client.delete(api.CONFIG_MAPS, namespace, "one", uid=uid)
    client.delete(api.CONFIG_MAPS, namespace, "one", uid=uid)
    with pytest.raises(api.NotFound):
        client.get(api.CONFIG_MAPS, namespace, "one")


def test_an_immutable_map_cannot_be_changed(client: Client, namespace: str) -> None:
    client.create(api.CONFIG_MAPS, namespace, config_map("fixed", immutable=True))
    with pytest.raises(api.Invalid, match="immutable"):
        client.patch(api.CONFIG_MAPS, namespace, "fixed", {"data": {"a": "2"}})


def test_unknown_fields_and_wrong_templates_are_refused_in_the_servers_words(client: Client, namespace: str) -> None:
    with pytest.raises(api.Invalid, match='unknown field "dat"'):
        client.create(api.CONFIG_MAPS, namespace, config_map("typo", dat={}))
    container = {"name": "trainer", "image": "x", "volumeMounts": [{"name": "none", "mountPath": "/x"}]}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    body = {"metadata": {"name": "wrong"}, "spec": {"template": template}}
    with pytest.raises(api.Invalid, match=r"volumeMounts\[0\]\.name: Not found"):
        client.create(api.JOBS, namespace, body, dry_run=True)
    del container["volumeMounts"]
    client.create(api.JOBS, namespace, body, dry_run=True)
    with pytest.raises(api.NotFound):
        client.get(api.JOBS, namespace, "wrong")


def test_lists_of_many_chunks_are_whole(client: Client, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(7):
        body = config_map(f"chunk-{number}")
        body["metadata"]["labels"] = {"test": "chunks"}
        client.create(api.CONFIG_MAPS, namespace, body)
    monkeypatch.setattr(module, "CHUNK", 3)
    found = client.list(api.CONFIG_MAPS, namespace, labels="test=chunks")
    assert sorted(o["metadata"]["name"] for o in found) == [f"chunk-{n}" for n in range(7)]
    assert {(o["apiVersion"], o["kind"]) for o in found} == {("v1", "ConfigMap")}


@pytest.mark.usefixtures("job_kind")
def test_a_status_is_written_apart_and_only_over_the_version_that_was_read(client: Client, namespace: str) -> None:
    body = {"metadata": {"name": "apart"}, "spec": spec(managedBy="example.com/nobody")}
    made = client.create(api.STJS, namespace, body)
    first = client.replace_status(api.STJS, namespace, {**made, "status": {"state": "Pending"}})
    assert first["status"]["state"] == "Pending"
    assert first["metadata"]["generation"] == made["metadata"]["generation"]
    with pytest.raises(api.Conflict):
        client.replace_status(api.STJS, namespace, {**made, "status": {"state": "Running"}})
    again = client.replace_status(api.STJS, namespace, {**first, "status": {"state": "Pending"}})
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"], "the same is not written"
    mixed = {**first, "spec": spec(replicas=4), "status": {"state": "Running"}}
    client.replace_status(api.STJS, namespace, mixed)
    assert client.get(api.STJS, namespace, "apart")["spec"]["replicas"] == 2, "the spec is not the operator's"
    gone = client.get(api.STJS, namespace, "apart")
    client.delete(api.STJS, namespace, "apart", uid=made["metadata"]["uid"])
    with pytest.raises(api.NotFound):
        client.replace_status(api.STJS, namespace, gone)


def test_a_pod_is_freed_as_the_garbage_collector_frees_it(client: Client, namespace: str) -> None:
    """A pod with the Job controller's finalizer, that no kubelet answers for: failed by disruption, then deleted."""
    container = {"name": "trainer", "image": "kube.test/none"}
    meta = {"name": "lost", "finalizers": ["example.com/held"]}
    body = {"metadata": meta, "spec": {"containers": [container], "schedulerName": "nobody", "restartPolicy": "Never"}}
    deadline = time.monotonic() + 60
    while True:
        try:
            made = client.create(api.PODS, namespace, body)
            break
        except api.Forbidden:
            # The namespace's service account is made a moment after it.
            assert time.monotonic() < deadline
            time.sleep(0.2)
    freed = free_pod(client, pod_facts(made), "its node is lost for 30 s", time.time())
    assert freed is not None
    found = client.get(api.PODS, namespace, "lost")
    assert found["status"]["phase"] == "Failed"
    targets = [x for x in found["status"]["conditions"] if x["type"] == "DisruptionTarget"]
    assert [(x["status"], x["message"]) for x in targets] == [("True", "Lanefeed: its node is lost for 30 s")]
    assert "deletionTimestamp" in found["metadata"]
    assert free_pod(client, pod_facts(found), "again", time.time()) is not None, "once more is no error"
    patch = {"metadata": {"uid": found["metadata"]["uid"], "finalizers": None}}
    client.patch(api.PODS, namespace, "lost", patch)
    assert free_pod(client, pod_facts(found), "it is gone", time.time()) is None


def test_a_wrong_token_is_nobodys(client: Client) -> None:
    assert client.token_owner("not a token", "lanefeed.dev/coordinator") is None
