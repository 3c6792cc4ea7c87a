"""What the two kinds of PodGroup take, as definitions that a real API server serves: for the tests of gangs.

Written here from their definitions, not copied: names, types and bounds of the fields of `spec`; no status, since
nobody here reads one. Read on 2026-11-30 from volcano-sh/volcano, config/crd/volcano/bases/
scheduling.volcano.sh_podgroups.yaml at 096235e, and kubernetes-sigs/scheduler-plugins, config/crd/bases/
scheduling.x-k8s.io_podgroups.yaml at 3f8606c. Older ones have fewer fields (Volcano: no networkTopology, no
preemptable) and else the same; what we render is in both.
"""

from typing import Any

from lanefeed_operator.api.spec import Provider
from unit.crd import structural

__all__ = ["definition", "faults"]

_INT32: dict[str, Any] = {"type": "integer", "format": "int32", "maximum": (1 << 31) - 1, "minimum": -(1 << 31)}
_TEXT = {"type": "string"}
#: A number, and a unit of Kubernetes or an exponent.
_QUANTITY = {
    "x-kubernetes-int-or-string": True,
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "pattern": r"^[+-]?(\d+(\.\d*)?|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?(\d+(\.\d*)?|\.\d+))?$",
}
_RESOURCES = {"type": "object", "additionalProperties": _QUANTITY}
_TOPOLOGY = {
    "type": "object",
    "properties": {
        "mode": {"type": "string", "enum": ["hard", "soft"], "default": "hard"},
        "highestTierAllowed": {"type": "integer", "default": 1},
    },
}
_SPECS: dict[Provider, dict[str, Any]] = {
    Provider.VOLCANO: {
        "minMember": _INT32,
        "minResources": _RESOURCES,
        "minTaskMember": {"type": "object", "additionalProperties": _INT32},
        "networkTopology": _TOPOLOGY,
        "preemptable": {"type": "boolean"},
        "priorityClassName": _TEXT,
        "queue": {"type": "string", "default": "default"},
    },
    Provider.COSCHEDULING: {
        "minMember": _INT32 | {"minimum": 1},
        "minResources": _RESOURCES,
        "scheduleTimeoutSeconds": _INT32,
    },
}
_GROUPS = {
    Provider.VOLCANO: ("scheduling.volcano.sh", "v1beta1"),
    Provider.COSCHEDULING: ("scheduling.x-k8s.io", "v1alpha1"),
}


def _schema(provider: Provider) -> dict[str, Any]:
    spec = {"type": "object", "properties": _SPECS[provider]}
    head = {"apiVersion": _TEXT, "kind": _TEXT, "metadata": {"type": "object"}}
    return {"type": "object", "properties": {**head, "spec": spec}}


def faults(provider: Provider, group: dict[str, Any]) -> list[str]:
    """Everything for which the API server would refuse it, unknown fields among them."""
    name, version = _GROUPS[provider]
    found = [] if group["apiVersion"] == f"{name}/{version}" else [f".apiVersion: {group['apiVersion']}"]
    return found + structural.faults(group, _schema(provider))


def definition(provider: Provider) -> dict[str, Any]:
    """A CustomResourceDefinition of that kind, for a server that has none."""
    group, version = _GROUPS[provider]
    names = {"kind": "PodGroup", "listKind": "PodGroupList", "plural": "podgroups", "singular": "podgroup"}
    served = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _schema(provider)},
    }
    # Groups under *.k8s.io need a word of the API's owners; this one has it.
    approved = {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"podgroups.{group}",
            "annotations": approved if provider is Provider.COSCHEDULING else {},
        },
        "spec": {"group": group, "names": names, "scope": "Namespaced", "versions": [served]},
    }
