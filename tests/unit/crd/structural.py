"""What the tests need of a structural schema: validation, defaulting and pruning, as the API server does them."""

import copy
import re
from collections.abc import Iterator
from typing import Any

__all__ = ["defaulted", "faults", "nodes", "pruned"]

Schema = dict[str, Any]
_KEEP = "x-kubernetes-preserve-unknown-fields"
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}


def nodes(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema in a schema, with its path."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}".lstrip("."))
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


def faults(value: Any, schema: Schema, path: str = "") -> list[str]:
    """What the server would say of a value; CEL aside."""
    if schema.get("x-kubernetes-int-or-string"):
        return [] if type(value) is int or (type(value) is str and _text(value, schema)) else [f"{path}: {value!r}"]
    kind = schema.get("type")
    if kind and (not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return [f"{path}: {value!r} is no {kind}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{path}: {value!r} is none of {schema['enum']}"]
    if isinstance(value, str):
        return [] if _text(value, schema) else [f"{path}: {value[:40]!r} of {len(value)} characters"]
    if isinstance(value, int | float):
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        return [] if low <= value <= high else [f"{path}: {value} is not in {low} to {high}"]
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            return [f"{path}: {len(value)} items"]
        return [f for n, item in enumerate(value) for f in faults(item, schema.get("items", {}), f"{path}[{n}]")]
    return _object(value, schema, path)


def _text(value: str, schema: Schema) -> bool:
    size = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
    return size and ("pattern" not in schema or re.search(schema["pattern"], value) is not None)


def _object(value: dict[str, Any], schema: Schema, path: str) -> list[str]:
    found = [f"{path}.{name} is missing" for name in schema.get("required", ()) if name not in value]
    if len(value) > schema.get("maxProperties", len(value)):
        found.append(f"{path}: {len(value)} entries")
    for name, item in value.items():
        child = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
        if child is not None:
            found += faults(item, child, f"{path}.{name}")
        elif not schema.get(_KEEP) and path != ".metadata":
            found.append(f"{path}.{name} is unknown")
    return found


def pruned(value: Any, schema: Schema) -> Any:
    """Without what the schema does not know."""
    if isinstance(value, list):
        return [pruned(item, schema.get("items", {_KEEP: True})) for item in value]
    if not isinstance(value, dict):
        return value
    known, rest = schema.get("properties", {}), schema.get("additionalProperties")
    kept = {}
    for name, item in value.items():
        if name in known or rest is not None:
            kept[name] = pruned(item, known.get(name, rest))
        elif schema.get(_KEEP):
            kept[name] = item
    return kept


def defaulted(value: Any, schema: Schema) -> Any:
    """With defaults filled in, from above downwards."""
    if isinstance(value, list):
        return [defaulted(item, schema.get("items", {})) for item in value]
    if not isinstance(value, dict):
        return value
    value = dict(value)
    for name, child in schema.get("properties", {}).items():
        if name not in value and "default" in child:
            value[name] = copy.deepcopy(child["default"])
        if name in value:
            value[name] = defaulted(value[name], child)
    return value
