"""What Kubernetes' own API would refuse in an object: unknown fields, wrong types, missing fields, names, references.

Fields, types and what is required come from the installed client package, which is generated from Kubernetes' API; the
rest is written from the API's documentation. Used by the property test, and by the test that it bites.
"""

import re
from collections.abc import Iterator
from typing import Any

import kubernetes.client.models as models

__all__ = ["faults"]

_LABEL_VALUE = re.compile(r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")
_LABEL_NAME = re.compile(r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
_DNS_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_DNS_NAME = re.compile(r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
_QUANTITY = re.compile(r"^[+-]?(\d+|\d+\.\d*|\.\d+)([eE][+-]?\d+|[numkMGTPE]|[KMGTPE]i)?$")
_ENV_NAME = re.compile(r"^[-._A-Za-z][-._A-Za-z0-9]*$")
_PLAIN: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "bytes": str,
    "datetime": str,
    "int": int,
    "bool": bool,
    "float": (int, float),
}
_QUANTITIES = {"limits", "requests", "sizeLimit"}
MAX_CONFIG_MAP = 1 << 20


def faults(made: dict[str, Any]) -> list[str]:
    """Every reason for which the API server would refuse the object."""
    kind = getattr(models, f"V1{made['kind']}")
    found = [*_typed(kind, made, made["kind"]), *_metadata(made["metadata"])]
    if made["kind"] == "Job":
        found += _job(made)
    elif made["kind"] == "Service" and not (
        len(made["metadata"]["name"]) <= 63 and re.match(r"^[a-z]", made["metadata"]["name"])
    ):
        found.append(f"a Service cannot be called {made['metadata']['name']}")
    elif made["kind"] == "ConfigMap":
        size = sum(len(v.encode()) for v in made.get("data", {}).values())
        found += [f"ConfigMap of {size} bytes"] if size > MAX_CONFIG_MAP else []
    return found


# ---- types -----------------------------------------------------------------------------------------------------


def _typed(kind: Any, value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path} is {type(value).__name__}"
        return
    names = {alias: name for name, alias in kind.attribute_map.items()}
    for key, below in value.items():
        if key not in names:
            yield f"{path}.{key} is unknown"
        elif key in _QUANTITIES:
            yield from _quantities(below, f"{path}.{key}")
        else:
            yield from _of(kind.openapi_types[names[key]], below, f"{path}.{key}")
    for name, field in kind.model_fields.items():
        if field.is_required() and value.get(kind.attribute_map[name]) is None:
            yield f"{path}.{kind.attribute_map[name]} is missing"


def _of(kind: str, value: Any, path: str) -> Iterator[str]:
    if kind.startswith("List["):
        if not isinstance(value, list):
            yield f"{path} is no list"
            return
        for number, item in enumerate(value):
            yield from _of(kind[5:-1], item, f"{path}[{number}]")
    elif kind.startswith("Dict["):
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            yield f"{path} is no map"
            return
        for key, item in value.items():
            yield from _of(kind[5:-1].partition(", ")[2], item, f"{path}.{key}")
    elif kind == "object":
        return
    elif kind in _PLAIN:
        if not isinstance(value, _PLAIN[kind]) or (isinstance(value, bool) and kind != "bool"):
            yield f"{path} is {value!r}, not {kind}"
    else:
        yield from _typed(getattr(models, kind), value, path)


def _quantities(value: Any, path: str) -> Iterator[str]:
    for name, one in value.items() if isinstance(value, dict) else [("", value)]:
        if isinstance(one, bool) or not _QUANTITY.match(str(one)):
            yield f"{path}.{name} is {one!r}, no quantity"


# ---- names -----------------------------------------------------------------------------------------------------


def _metadata(meta: dict[str, Any], *, named: bool = True) -> Iterator[str]:
    if named and not (_DNS_NAME.match(meta["name"]) and len(meta["name"]) <= 253):
        yield f"name {meta['name']!r}"
    for key, value in meta.get("labels", {}).items():
        if len(value) > 63 or not _LABEL_VALUE.match(value):
            yield f"label {key}={value!r}"
    for key in {**meta.get("labels", {}), **meta.get("annotations", {})}:
        prefix, _, name = key.rpartition("/")
        if not _LABEL_NAME.match(name) or len(name) > 63 or len(prefix) > 253:
            yield f"key {key!r}"
    if sum(len(k) + len(v) for k, v in meta.get("annotations", {}).items()) > 256 << 10:
        yield "annotations are too long"


def _job(made: dict[str, Any]) -> Iterator[str]:
    spec, template = made["spec"], made["spec"]["template"]
    pod, name = template["spec"], made["metadata"]["name"]
    yield from _metadata(template["metadata"], named=False)
    if spec.get("completionMode") == "Indexed":
        host = f"{name}-{spec['completions'] - 1}"
        if len(host) > 63 or not _DNS_LABEL.match(host):
            yield f"host {host!r}"
        if spec.get("backoffLimitPerIndex") is None and spec.get("maxFailedIndexes") is not None:
            yield "maxFailedIndexes without backoffLimitPerIndex"
    if pod.get("restartPolicy") not in ("Never", "OnFailure"):
        yield f"restartPolicy {pod.get('restartPolicy')!r}"
    rules = spec.get("podFailurePolicy", {}).get("rules", [])
    if rules and pod["restartPolicy"] != "Never":
        yield "podFailurePolicy needs restartPolicy Never"
    for codes in [rule["onExitCodes"] for rule in rules if "onExitCodes" in rule]:
        values = codes["values"]
        if values != sorted(set(values)) or not values or 0 in values or max(values) > 255:
            yield f"exit codes {values}"
        if codes.get("containerName") not in _names(pod):
            yield f"no container {codes.get('containerName')!r}"
    yield from _pod(pod)


def _names(pod: dict[str, Any]) -> list[str]:
    return [one["name"] for one in [*pod["containers"], *pod.get("initContainers", [])]]


def _pod(pod: dict[str, Any]) -> Iterator[str]:
    volumes = [volume["name"] for volume in pod.get("volumes", [])]
    for names in (volumes, _names(pod)):
        yield from (f"{name} is there twice" for name in set(names) if names.count(name) > 1)
        yield from (f"name {name!r}" for name in names if len(name) > 63 or not _DNS_LABEL.match(name))
    for volume in pod.get("volumes", []):
        if len(volume) != 2:
            yield f"volume {volume['name']} has {len(volume) - 1} sources"
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        yield from _container(container, volumes)


def _container(container: dict[str, Any], volumes: list[str]) -> Iterator[str]:
    name = container["name"]
    if not container.get("image"):
        yield f"{name} has no image"
    paths = [mount.get("mountPath") for mount in container.get("volumeMounts", [])]
    yield from (f"{name}: {path} is mounted twice" for path in set(paths) if paths.count(path) > 1)
    for mount in container.get("volumeMounts", []):
        if mount["name"] not in volumes:
            yield f"{name} mounts {mount['name']}, which is not there"
    for variable in container.get("env", []):
        if not _ENV_NAME.match(variable["name"]):
            yield f"{name}: variable {variable['name']!r}"
        if "valueFrom" in variable and variable.get("value"):
            yield f"{name}: variable {variable['name']!r} has two values"
    resources = container.get("resources", {})
    for key, asked in resources.get("requests", {}).items():
        limit = resources.get("limits", {}).get(key)
        if limit is not None and _bytes(asked) > _bytes(limit):
            yield f"{name} asks for more {key} than its limit"


def _bytes(value: Any) -> float:
    match = re.match(r"^([\d.]+)(\S*)$", str(value))
    if match is None:
        # Said already.
        return 0.0
    units = {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12} | {
        f"{unit}i": 1024.0**power for power, unit in enumerate("KMGTP", 1)
    }
    return float(match[1]) * units[match[2]]
