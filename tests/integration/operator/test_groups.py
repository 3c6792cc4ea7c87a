"""PodGroups on a real API server that knows both kinds: taken as they are rendered, strictly, and stored whole."""

from collections.abc import Iterator
from typing import Any

import pytest

from lanefeed_operator.api.spec import Provider
from lanefeed_operator.kube.api import ApiError, Kind
from lanefeed_operator.kube.client import Client
from support.apiserver import CRDS, ApiServer, until
from unit.render.podgroups import definition
from unit.render.test_group import made_group

KINDS = {
    Provider.VOLCANO: Kind("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup"),
    Provider.COSCHEDULING: Kind("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup"),
}
MORE: dict[Provider, dict[str, Any]] = {
    Provider.VOLCANO: {"queue": "gpus"},
    Provider.COSCHEDULING: {"timeoutSeconds": 90, "minAvailable": 2},
}


def served(client: Client, kind: Kind) -> bool:
    try:
        client.list(kind)
    except ApiError:
        return False
    return True


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, shm_root: object) -> Iterator[Client]:
    with ApiServer.running(tmp_path_factory.mktemp("kube")) as server:
        found = server.api()
        for provider, kind in KINDS.items():
            found.create(CRDS, "", definition(provider))
            until(f"{kind.group} to be served", lambda kind=kind: served(found, kind))
        yield found
        found.close()


@pytest.mark.parametrize("provider", KINDS)
def test_it_takes_a_group_as_it_is_rendered(client: Client, provider: Provider) -> None:
    group = made_group(provider, **MORE[provider])
    group["metadata"]["namespace"] = "a"
    stored = client.create(KINDS[provider], "a", group)
    assert stored["spec"] == group["spec"]
    assert stored["metadata"]["labels"] == group["metadata"]["labels"]
    assert stored["metadata"]["ownerReferences"] == group["metadata"]["ownerReferences"]


@pytest.mark.parametrize(
    ("provider", "key", "value", "said"),
    [
        (Provider.VOLCANO, "scheduleTimeoutSeconds", 5, 'unknown field "spec.scheduleTimeoutSeconds"'),
        (Provider.COSCHEDULING, "queue", "q", 'unknown field "spec.queue"'),
        (Provider.COSCHEDULING, "minMember", 0, "spec.minMember in body should be greater than or equal to 1"),
        (Provider.VOLCANO, "minResources", {"cpu": "8 cores"}, "spec.minResources.cpu in body should match"),
    ],
)
def test_it_refuses_what_is_not_theirs(client: Client, provider: Provider, key: str, value: Any, said: str) -> None:
    group = made_group(provider)
    group["metadata"] |= {"name": "other", "namespace": "a"}
    group["spec"][key] = value
    with pytest.raises(ApiError, match=said):
        client.create(KINDS[provider], "a", group, dry_run=True)
