"""The CustomResourceDefinition of ShardedTrainingJob, made from the typed API so that the two cannot drift apart.

Called by tools/gen_crd.py, which writes it into the chart and docs/fields.md. Pure; installs nothing.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from lanefeed_operator.api.crd_docs import EXTRA
from lanefeed_operator.api.crd_rules import BOUNDS, RULES
from lanefeed_operator.api.crd_schema import Schema, describe, object_schema
from lanefeed_operator.api.spec import API_VERSION, KIND, Job, Spec
from lanefeed_operator.api.status import Status

__all__ = ["PLURAL", "SHORT", "definition", "fields", "schema"]

GROUP, VERSION = API_VERSION.split("/")
PLURAL = "shardedtrainingjobs"
SHORT = "stj"

_ABOUT = (
    "A training job whose data is split over its pods: any world size, order kept, nothing lost, nothing repeated, "
    "also over restarts and resizes."
)


def definition() -> dict[str, Any]:
    """The whole object, as `kubectl apply` takes it."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{PLURAL}.{GROUP}",
            # Without it `helm uninstall` would delete every job of every user.
            "annotations": {"helm.sh/resource-policy": "keep"},
            "labels": {"app.kubernetes.io/name": "lanefeed", "app.kubernetes.io/part-of": "lanefeed"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": [SHORT],
                "categories": ["all", "ml"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema()},
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": _columns(),
                }
            ],
        },
    }


def _columns() -> list[dict[str, Any]]:
    shown = [
        ("State", "string", ".status.state", 0),
        ("Reason", "string", ".status.reason", 0),
        ("Replicas", "integer", ".spec.replicas", 0),
        ("Ready", "integer", ".status.readyReplicas", 0),
        ("Epoch", "integer", ".status.cursor.epoch", 0),
        ("Step", "integer", ".status.cursor.step", 0),
        ("Stall%", "number", ".status.stallPercent", 0),
        ("Age", "date", ".metadata.creationTimestamp", 0),
        ("Done%", "number", ".status.progress.percent", 1),
        ("Plan", "integer", ".status.planGeneration", 1),
        ("Failures", "integer", ".status.restarts.failures", 1),
        ("Commit", "string", ".status.cursor.commit", 1),
        ("Why", "string", '.status.conditions[?(@.type=="Running")].message', 1),
    ]
    return [
        {"name": name, "type": kind, "jsonPath": path} | ({"priority": priority} if priority else {})
        for name, kind, path, priority in shown
    ]


def schema() -> Schema:
    """The structural schema, with bounds and rules."""
    root: Schema = {
        "type": "object",
        "description": _ABOUT,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"Version of the API: {API_VERSION}."},
            "kind": {"type": "string", "description": f"Kind of the object: {KIND}."},
            "metadata": {"type": "object"},
            "spec": {"description": describe(Job, "spec"), **object_schema(Spec)},
            "status": {"description": describe(Job, "status"), **object_schema(Status, defaults=False)},
        },
    }
    for path, text in EXTRA.items():
        _place(root, path, {"description": text})
    for path, extra in BOUNDS.items():
        _place(root, path, extra)
    for path, rules in RULES.items():
        _find(root, path)["x-kubernetes-validations"] = deepcopy(rules)
    _no_empty_defaults(root)
    return root


def fields(root: Schema, base: str = "") -> Iterator[tuple[str, Schema]]:
    """Every field below a schema as (dotted path, schema), in the order of the schema."""
    for name, node in root.get("properties", {}).items():
        path = f"{base}.{name}" if base else name
        yield path, node
        yield from fields(node, path)
        if "items" in node:
            yield from fields(node["items"], f"{path}[]")


# ---- places ----------------------------------------------------------------------------------------------------


def _find(root: Schema, path: str) -> Schema:
    """The schema at a path. Raises KeyError where there is none: the models have moved."""
    node = root
    for part in filter(None, path.replace("[]", ".[]").split(".")):
        try:
            node = node["items"] if part == "[]" else node["properties"][part]
        except KeyError:
            raise KeyError(f"{path} is not in the schema: {part} is missing; follow the models in crd_rules") from None
    return node


def _place(root: Schema, path: str, extra: Schema) -> None:
    """Add to the schema at a path, or put a new field there (which says its type); None takes a key away."""
    parent, _, name = path.rpartition(".")
    if not name.endswith("[]"):
        siblings = _find(root, parent)["properties"]
        if name not in siblings and not {"type", "description"} & extra.keys():
            raise KeyError(f"{path} is not in the schema and gives no type: follow the models in crd_rules")
        siblings.setdefault(name, {})
    node = _find(root, path)
    for key, value in extra.items():
        if value is None:
            node.pop(key, None)
        else:
            node[key] = deepcopy(value)


def _no_empty_defaults(root: Schema) -> None:
    """`default: {}` only where it lets defaults below take effect: elsewhere it would add empty objects to jobs."""
    for path, node in fields(root):
        if node.get("default") == {} and not any("default" in n for _, n in fields(node, path)):
            del node["default"]
