"""Turns the API's pydantic models into a structural schema, as Kubernetes wants it in a CustomResourceDefinition.

Called by `crd`. Fields, types, defaults and bounds come from the models; descriptions from docstrings and `#:`
comments, and from `crd_docs` where a field has none. Knows nothing of rules that span fields (`crd_rules`). Pure, but
for reading the models' own source.
"""

import inspect
import re
import types
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Annotated, Any, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from lanefeed_operator.api.crd_docs import DOCS
from lanefeed_operator.api.quantity import format_bytes, parse_bytes
from lanefeed_operator.api.spec import Preserving

__all__ = ["QUANTITY", "Schema", "comments", "describe", "object_schema"]

Schema = dict[str, Any]

#: Bounds are float64 in the API server: beyond this one overflows there, and `format: int64` is the bound.
MAX_BOUND = 1 << 53
_MAX_INT32 = (1 << 31) - 1

#: A Kubernetes quantity of bytes; the pattern is that of `quantity.parse_bytes`.
QUANTITY: Schema = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "pattern": r"^\d+(\.\d+)?(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$",
    "maxLength": 32,
    "x-kubernetes-int-or-string": True,
}
_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_COMMENT = re.compile(r"^\s*#: ?(.*)$")
_FIELD = re.compile(r"^    (\w+)\s*:")


def comments(model: type[BaseModel]) -> dict[str, str]:
    """Field name -> the text of the `#:` comment above it, in the model's own source."""
    found: dict[str, str] = {}
    pending: list[str] = []
    for line in inspect.getsource(model).splitlines():
        if match := _COMMENT.match(line):
            pending.append(match[1])
            continue
        if (match := _FIELD.match(line)) and pending:
            found[match[1]] = " ".join(pending)
        pending = []
    return found


def describe(model: type[BaseModel], name: str, *, spoken: dict[str, str] | None = None) -> str:
    """The description of a field: its comment, else the text in `crd_docs`, else its type's docstring.

    Raises KeyError where there is none: a field that nobody explains is a mistake.
    """
    text = (comments(model) if spoken is None else spoken).get(name) or DOCS.get(f"{model.__name__}.{name}")
    if text is None:
        kind = next(_classes(model.model_fields[name].annotation), None)
        text = _sentence(kind)
    if not text:
        raise KeyError(
            f"{model.__name__}.{name} has no description: write a `#:` comment above it, or add it to crd_docs"
        )
    return text[0].upper() + text[1:]


def object_schema(model: type[BaseModel], *, defaults: bool = True, skip: Iterable[str] = ()) -> Schema:
    """The schema of a model.

    Args:
        model: one of the API's.
        defaults: write defaults and what is required into it (a status has neither).
        skip: fields to leave out, by their names in Python.
    """
    keeps = issubclass(model, Preserving)
    spoken = comments(model)
    properties: Schema = {}
    required = []
    for name, info in model.model_fields.items():
        if name in skip:
            continue
        alias = info.alias or name
        node = _node(info.annotation, list(info.metadata), defaults=defaults and not keeps)
        text = describe(model, name, spoken=spoken)
        # What is kept as it was written gets nothing added.
        if defaults and not keeps and not info.is_required():
            text = _default(node, info, text)
        properties[alias] = {"description": text, **node}
        if defaults and info.is_required():
            required.append(alias)
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    if keeps:
        schema[_PRESERVE] = True
    return schema


def _default(node: Schema, info: FieldInfo, text: str) -> str:
    """Write a field's default into its schema, and into the description where it is one word."""
    value = info.get_default(call_default_factory=True)
    if value is None:
        return text
    if isinstance(value, BaseModel):
        node["default"] = {}
        return text
    if isinstance(value, Enum):
        value = value.value
    elif node.get("x-kubernetes-int-or-string"):
        value = format_bytes(value) if value else 0
    elif isinstance(value, list | dict):
        # An empty list says nothing that no list does not say.
        return text
    node["default"] = value
    shown = {True: "true", False: "false"}.get(value, value) if isinstance(value, bool) else value
    return f"{text} Default: {shown}." if value != "" else text


# ---- types -----------------------------------------------------------------------------------------------------


def _node(annotation: Any, metadata: list[Any], *, defaults: bool) -> Schema:
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        metadata = metadata + more
    # Field(ge=1) inside of Annotated is a FieldInfo that holds the bounds.
    flat = [m for item in metadata for m in (item.metadata if isinstance(item, FieldInfo) else [item])]
    if any(isinstance(m, BeforeValidator) and m.func is parse_bytes for m in flat):
        return dict(QUANTITY)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        rest = [a for a in args if a is not type(None)]
        if len(rest) == 1:
            return _node(rest[0], metadata, defaults=defaults)
        # A structural schema cannot say "a string or a list": it is kept as written, and checked by the operator.
        return {_PRESERVE: True}
    if origin is list:
        return {"type": "array", "items": _node(args[0], [], defaults=defaults)}
    if origin is dict:
        if args[1] is Any:
            return {"type": "object", _PRESERVE: True}
        return {"type": "object", "additionalProperties": _node(args[1], [], defaults=defaults)}
    return _plain(annotation, flat, defaults=defaults)


def _plain(kind: Any, bounds: list[Any], *, defaults: bool) -> Schema:
    if issubclass(kind, BaseModel):
        return object_schema(kind, defaults=defaults)
    if issubclass(kind, Enum):
        return {"type": "string", "enum": [member.value for member in kind]}
    if kind is bool:
        return {"type": "boolean"}
    if kind is int:
        return _integer(bounds)
    if kind is float:
        return {"type": "number"}
    if kind is str:
        most = next((b.max_length for b in bounds if isinstance(b, MaxLen)), None)
        return {"type": "string"} | ({"maxLength": most} if most is not None else {})
    raise TypeError(f"{kind} has no schema: teach crd_schema")


def _integer(bounds: list[Any]) -> Schema:
    low: Any = next((b.ge for b in bounds if isinstance(b, Ge)), None)
    high: Any = next((b.le for b in bounds if isinstance(b, Le)), None)
    below: Any = next((b.lt for b in bounds if isinstance(b, Lt)), None)
    if any(isinstance(b, Gt) for b in bounds):
        raise TypeError("use ge, not gt, in the API's models")
    if below is not None:
        high = below - 1
    schema: Schema = {"type": "integer", "format": "int64"}
    if high is not None and high <= _MAX_INT32:
        schema["format"] = "int32"
    if low is not None:
        schema["minimum"] = low
    if high is not None and high <= MAX_BOUND:
        schema["maximum"] = high
    return schema


def _classes(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type):
        yield annotation
    for part in get_args(annotation):
        yield from _classes(part)


def _sentence(kind: type | None) -> str:
    """A docstring's first paragraph on one line; "" for types that are not ours."""
    if kind is None or not kind.__module__.startswith("lanefeed_operator") or not kind.__doc__:
        return ""
    return " ".join(kind.__doc__.partition("\n\n")[0].split())
