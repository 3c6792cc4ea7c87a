"""Which Arrow types are delivered, and as what.

Called by the indexer (is this column supported?) and by readers (which Column is it?). Types that no slot can hold are
refused with the way out; nothing is converted in a way that loses a bit.
"""

from dataclasses import dataclass

import pyarrow as pa

from lanefeed_core.layout import FIXED, RAGGED, Column

__all__ = ["Unsupported", "column_of", "deliverable", "parse_type"]

_NUMPY = {
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "uint8": "uint8",
    "uint16": "uint16",
    "uint32": "uint32",
    "uint64": "uint64",
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
}


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Why a type cannot be delivered, for the message."""

    reason: str


def _element(kind: pa.DataType) -> tuple[str, str] | None:
    """(NumPy dtype, logical name) of a primitive type, or None."""
    name = str(kind)
    if name in _NUMPY:
        return _NUMPY[name], ""
    if pa.types.is_boolean(kind):
        return "bool", "bool"
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return "int32", name
    if pa.types.is_date64(kind) or pa.types.is_time64(kind) or pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return "int64", name
    return None


def deliverable(name: str, kind: pa.DataType, *, nullable: bool) -> Column | Unsupported:
    """The Column as which an Arrow column is delivered, or why it cannot be."""
    if pa.types.is_dictionary(kind):
        return deliverable(name, kind.value_type, nullable=nullable)
    element = _element(kind)
    if element:
        return Column(name, element[0], (), FIXED, nullable, element[1])
    if pa.types.is_fixed_size_binary(kind):
        return Column(name, "uint8", (kind.byte_width,), FIXED, nullable, "binary")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return Column(name, "uint8", (), RAGGED, nullable, "string")
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return Column(name, "uint8", (), RAGGED, nullable, "binary")
    if pa.types.is_fixed_size_list(kind):
        inner = deliverable(name, kind.value_type, nullable=False)
        if isinstance(inner, Unsupported) or inner.ragged or pa.types.is_dictionary(kind.value_type):
            return Unsupported(f"fixed-size lists of {kind.value_type} are not supported")
        return Column(name, inner.dtype, (kind.list_size, *inner.shape), FIXED, nullable, inner.logical)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner_element = _element(kind.value_type)
        if inner_element is None:
            return Unsupported(f"lists of {kind.value_type} are not supported, only lists of numbers")
        return Column(name, inner_element[0], (), RAGGED, nullable, inner_element[1])
    if pa.types.is_null(kind):
        return Unsupported("every value in every shard is null")
    return Unsupported(f"type {kind} is not supported")


def column_of(name: str, type_name: str, *, nullable: bool) -> Column | Unsupported:
    """As `deliverable`, from the type's name as the manifest keeps it."""
    return deliverable(name, parse_type(type_name), nullable=nullable)


def parse_type(name: str) -> pa.DataType:
    """The Arrow type of a name that `str(type)` gave, for the types that can be delivered."""
    if name.startswith("fixed_size_list<"):
        inner, size = name.removeprefix("fixed_size_list<").rsplit(">[", 1)
        return pa.list_(parse_type(_item(inner)), int(size.rstrip("]")))
    if name.startswith("large_list<"):
        return pa.large_list(parse_type(_item(name.removeprefix("large_list<")[:-1])))
    if name.startswith("list<"):
        return pa.list_(parse_type(_item(name.removeprefix("list<")[:-1])))
    if name.startswith("dictionary<"):
        values = name.removeprefix("dictionary<values=").split(", indices=")[0]
        return pa.dictionary(pa.int32(), parse_type(values))
    if name.startswith("fixed_size_binary["):
        return pa.binary(int(name.removeprefix("fixed_size_binary[").rstrip("]")))
    if name.startswith("timestamp["):
        unit, _, zone = name.removeprefix("timestamp[").rstrip("]").partition(", tz=")
        return pa.timestamp(unit, zone or None)
    aliases = {"date32[day]": pa.date32(), "date64[ms]": pa.date64(), "float": pa.float32(), "double": pa.float64()}
    if name in aliases:
        return aliases[name]
    try:
        return pa.type_for_alias(name)
    except ValueError:
        return pa.union([], "sparse")


def _item(text: str) -> str:
    """'item: int32 not null' or 'element: int32' -> 'int32'."""
    return text.split(": ", 1)[1].removesuffix(" not null")
