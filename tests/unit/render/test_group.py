"""Gangs: the PodGroup, who belongs to it, and what it reserves; and the sums of requests that it is made of."""

from typing import Any

import pytest

from lanefeed_operator.api.spec import Job, Provider
from lanefeed_operator.render import RenderError, pod_group
from lanefeed_operator.render import constants as c
from lanefeed_operator.render.requests import amount, pod_requests, spell
from unit.render.podgroups import faults
from unit.render.test_pods import container, make, pods


def gang(provider: str, **more: Any) -> Job:
    resources = {"requests": {"cpu": "1500m", "memory": "4Gi"}, "limits": {"nvidia.com/gpu": 2}}
    changes = {"scheduling": {"gang": {"provider": provider, **more}}, "replicas": 4}
    return make(changes, resources=resources)


def test_no_gang_no_group() -> None:
    job = make()
    assert pod_group(job, pods(job)) is None


def test_volcano_gets_a_group_that_reserves_sidecars_too() -> None:
    job = gang("Volcano", queue="gpus")
    made = pods(job)
    group = pod_group(job, made)
    assert group is not None
    assert (group["apiVersion"], group["kind"]) == ("scheduling.volcano.sh/v1beta1", "PodGroup")
    assert group["metadata"]["name"] == made["metadata"]["name"]
    assert group["metadata"]["ownerReferences"][0]["kind"] == "ShardedTrainingJob"
    assert group["metadata"]["labels"][c.PLAN_LABEL] == "1"
    own = container(made["spec"]["template"]["spec"], c.SIDECAR)["resources"]["requests"]
    each = amount("4Gi") + amount(own["memory"])
    assert group["spec"]["minMember"] == 4
    assert group["spec"]["queue"] == "gpus"
    assert amount(group["spec"]["minResources"]["memory"]) == 4 * each
    assert group["spec"]["minResources"]["cpu"] == "8"
    assert group["spec"]["minResources"]["nvidia.com/gpu"] == "8"
    template = made["spec"]["template"]
    assert template["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "good-1"
    assert template["spec"]["schedulerName"] == "volcano"


def test_coscheduling_goes_by_a_label_and_the_users_scheduler() -> None:
    job = gang("Coscheduling", minAvailable=2, timeoutSeconds=90)
    made = pods(job)
    group = pod_group(job, made)
    assert group is not None
    assert group["apiVersion"] == "scheduling.x-k8s.io/v1alpha1"
    assert (group["spec"]["minMember"], group["spec"]["scheduleTimeoutSeconds"]) == (2, 90)
    assert made["spec"]["template"]["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "good-1"
    assert "schedulerName" not in made["spec"]["template"]["spec"]


def test_a_smaller_plan_waits_for_no_more_pods_than_it_has() -> None:
    job = gang("Volcano", minAvailable=9)
    group = pod_group(job, pods(job))
    assert group is not None
    assert group["spec"]["minMember"] == 4


def made_group(provider: Provider, **more: Any) -> dict[str, Any]:
    job = gang(provider.value, **more)
    group = pod_group(job, pods(job))
    assert group is not None
    return group


@pytest.mark.parametrize(
    ("provider", "more"),
    [
        (Provider.VOLCANO, {}),
        (Provider.VOLCANO, {"queue": "gpus", "minAvailable": 2}),
        (Provider.COSCHEDULING, {}),
        (Provider.COSCHEDULING, {"timeoutSeconds": 2**31 - 1, "minAvailable": 1}),
    ],
)
def test_the_schedulers_definitions_take_the_groups(provider: Provider, more: dict[str, Any]) -> None:
    assert faults(provider, made_group(provider, **more)) == []


def test_volcano_gets_the_priority_of_the_pods() -> None:
    job = make({"scheduling": {"gang": {"provider": "Volcano"}}}, pod={"priorityClassName": "high"})
    group = pod_group(job, pods(job))
    assert group is not None
    assert group["spec"]["priorityClassName"] == "high"
    assert faults(Provider.VOLCANO, group) == []
    # Coscheduling goes by the pods' own, which are all of one template.
    job = make({"scheduling": {"gang": {"provider": "Coscheduling"}}}, pod={"priorityClassName": "high"})
    group = pod_group(job, pods(job))
    assert group is not None
    assert faults(Provider.COSCHEDULING, group) == []


@pytest.mark.parametrize(
    ("provider", "key", "value", "said"),
    [
        (Provider.VOLCANO, "scheduleTimeoutSeconds", 5, ".spec.scheduleTimeoutSeconds is unknown"),
        (Provider.COSCHEDULING, "queue", "q", ".spec.queue is unknown"),
        (Provider.COSCHEDULING, "minMember", 0, ".spec.minMember: 0 is not in 1 to 2147483647"),
        (Provider.VOLCANO, "minMember", "4", ".spec.minMember: '4' is no integer"),
        (Provider.VOLCANO, "minResources", {"cpu": "8 cores"}, ".spec.minResources.cpu: '8 cores'"),
        (Provider.VOLCANO, "minResources", {"cpu": 1.5}, ".spec.minResources.cpu: 1.5"),
    ],
)
def test_the_definitions_bite(provider: Provider, key: str, value: Any, said: str) -> None:
    group = made_group(provider)
    group["spec"][key] = value
    assert faults(provider, group) == [said]
    group = made_group(provider) | {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1"}
    assert faults(provider, group) == [".apiVersion: scheduling.sigs.k8s.io/v1alpha1"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("500m", 0.5), (2, 2), ("1.5", 1.5), ("4Gi", 4 * 2**30), ("1e3", 1000), ("1E", 10**18), ("2k", 2000), (".5", 0.5)],
)
def test_quantities(text: Any, value: float) -> None:
    assert amount(text) == value


@pytest.mark.parametrize("text", ["", "4gi", "1 Gi", "abc", "1x", None])
def test_no_quantities(text: Any) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        amount(text)


def _c(cpu: str, **more: Any) -> dict[str, Any]:
    return {"name": "x", "resources": {"requests": {"cpu": cpu}}, **more}


def test_requests_add_up_as_the_scheduler_does_it() -> None:
    """KEP-753: an init container runs beside the sidecars before it; containers run beside all sidecars."""
    side = {"restartPolicy": "Always"}
    pod = {"initContainers": [_c("5"), _c("1", **side), _c("4.5"), _c("2", **side)], "containers": [_c("1"), _c("1")]}
    assert spell(pod_requests(pod)) == {"cpu": "5500m"}
    pod["containers"].append(_c("1"))
    assert spell(pod_requests(pod)) == {"cpu": "6"}
    limits = {"containers": [{"resources": {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}}]}
    assert spell(pod_requests(limits), 3) == {"cpu": "3", "memory": "3Gi"}
    assert spell(pod_requests({"containers": [_c("1")], "overhead": {"cpu": "250m"}})) == {"cpu": "1250m"}


def test_a_wrong_quantity_names_its_field() -> None:
    job = make({"scheduling": {"gang": {"provider": "Volcano"}}}, resources={"limits": {"cpu": "many"}})
    with pytest.raises(RenderError, match=r"containers\[trainer\]\.resources: 'many' is not a quantity"):
        pod_group(job, pods(job))
