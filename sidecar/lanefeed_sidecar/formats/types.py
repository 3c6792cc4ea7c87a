"""Which Arrow types are delivered, and as what.

Called by the indexer (is this column supported, and under which type does the manifest keep it?) and by readers
(which Column is it?). Types that no slot can hold are refused with the way out; nothing is converted in a way that
loses a bit.
"""

from dataclasses import dataclass

import pyarrow as pa

from lanefeed_core.layout import FIXED, RAGGED, Column

__all__ = ["NUMBERS", "PHYSICAL_BYTES", "Unsupported", "column_of", "deliverable", "parse_type", "plain_type"]

#: Arrow names of the numbers -> NumPy's.
NUMBERS = {
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

#: Bytes of a decoded value, by Parquet's physical type of numbers.
PHYSICAL_BYTES = {"INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}

#: Names that `str(type)` gives and `pa.type_for_alias` does not take, or that it takes under another name.
_ALIASES = {
    "date32[day]": pa.date32(),
    "date64[ms]": pa.date64(),
    "float": pa.float32(),
    "double": pa.float64(),
}


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Why a type cannot be delivered, for the message."""

    reason: str


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type as delivered, one for all that a trainer cannot tell apart; the manifest keeps its name.

    Dictionaries are their values, extension types their storage, large and view types the plain ones, and the names and
    nullability of list items do not matter.
    """
    if isinstance(kind, pa.FixedShapeTensorType):
        for size in reversed(kind.shape):
            kind = pa.list_(kind if isinstance(kind, pa.FixedSizeListType) else kind.value_type, size)
        return plain_type(kind)
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(plain_type(kind.value_type), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(plain_type(kind.value_type))
    return kind


def _element(kind: pa.DataType) -> tuple[str, str] | None:
    """(NumPy dtype, logical name) of a primitive type, or None."""
    name = str(kind)
    if name in NUMBERS:
        return NUMBERS[name], ""
    if pa.types.is_boolean(kind):
        return "bool", "bool"
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return "int32", name
    if (
        pa.types.is_date64(kind)
        or pa.types.is_time64(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_duration(kind)
    ):
        return "int64", name
    return None


def deliverable(name: str, kind: pa.DataType, *, nullable: bool) -> Column | Unsupported:
    """The Column as which an Arrow column is delivered, or why it cannot be."""
    kind = plain_type(kind)
    element = _element(kind)
    if element:
        return Column(name, element[0], (), FIXED, nullable, element[1])
    if pa.types.is_fixed_size_binary(kind) and kind.byte_width:
        return Column(name, "uint8", (kind.byte_width,), FIXED, nullable, "binary")
    if pa.types.is_string(kind):
        return Column(name, "uint8", (), RAGGED, nullable, "string")
    if pa.types.is_binary(kind):
        return Column(name, "uint8", (), RAGGED, nullable, "binary")
    if pa.types.is_fixed_size_list(kind):
        return _fixed_list(name, kind, nullable)
    if pa.types.is_list(kind):
        inner = _element(kind.value_type)
        if inner is None:
            return Unsupported(f"lists of {kind.value_type} are not supported, only lists of numbers")
        return Column(name, inner[0], (), RAGGED, nullable, inner[1])
    if pa.types.is_null(kind):
        return Unsupported("every value in every shard is null")
    return Unsupported(f"type {kind} is not supported")


def _fixed_list(name: str, kind: pa.DataType, nullable: bool) -> Column | Unsupported:
    inner = deliverable(name, kind.value_type, nullable=False)
    if isinstance(inner, Unsupported) or inner.ragged:
        return Unsupported(f"fixed-size lists of {kind.value_type} are not supported, only those of numbers")
    if not kind.list_size:
        return Unsupported("fixed-size lists of no elements hold nothing")
    return Column(name, inner.dtype, (kind.list_size, *inner.shape), FIXED, nullable, inner.logical)


def column_of(name: str, type_name: str, *, nullable: bool) -> Column | Unsupported:
    """As `deliverable`, from the type's name as the manifest keeps it."""
    kind = parse_type(type_name)
    if kind is None:
        return Unsupported(f"type {type_name} is not supported")
    return deliverable(name, kind, nullable=nullable)


def parse_type(name: str) -> pa.DataType | None:
    """The Arrow type of a name that `str(plain_type(...))` gave; None where it is none that can be delivered."""
    if name.startswith("fixed_size_list<"):
        inner, size = name.removeprefix("fixed_size_list<").rsplit(">[", 1)
        item = parse_type(_item(inner))
        return None if item is None else pa.list_(item, int(size.rstrip("]")))
    if name.startswith("list<"):
        item = parse_type(_item(name.removeprefix("list<")[:-1]))
        return None if item is None else pa.list_(item)
    if name.startswith("fixed_size_binary["):
        return pa.binary(int(name.removeprefix("fixed_size_binary[").rstrip("]")))
    if name.startswith("timestamp["):
        unit, _, zone = name.removeprefix("timestamp[").rstrip("]").partition(", tz=")
        return pa.timestamp(unit, zone or None)
    if name in _ALIASES:
        return _ALIASES[name]
    try:
        return pa.type_for_alias(name)
    except ValueError:
        return None


def _item(text: str) -> str:
    """'item: int32' -> 'int32'."""
    return text.split(": ", 1)[1]
