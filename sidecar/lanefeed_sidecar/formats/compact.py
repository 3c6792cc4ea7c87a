"""Thrift's compact protocol, as much of it as Parquet's page headers and footers need. Bytes are untrusted.

Called by `whole_lists`. Reads a struct into {field id: value} and passes over what it does not need; writes structs
from (id, kind, bytes). Knows nothing of Parquet. Raises ValueError, or IndexError at the bytes' end, for anything odd.
"""

from typing import Any

__all__ = ["I32", "I64", "LIST", "STRUCT", "TEXT", "integer", "items", "read_struct", "struct", "text", "unsigned"]

I32, I64, TEXT, LIST, STRUCT = 5, 6, 8, 9, 12
_TRUE, _FALSE, _BYTE, _I16, _DOUBLE, _SET, _MAP = 1, 2, 3, 4, 7, 10, 11
#: Statistics are structs in structs; nothing in a header goes deeper.
_DEPTH = 8
_STOP = b"\0"

Bytes = bytes | bytearray | memoryview


def unsigned(data: Bytes, at: int) -> tuple[int, int]:
    """(a number in groups of seven bits, where it ends)."""
    result = shift = 0
    while True:
        byte = data[at]
        at += 1
        result |= (byte & 127) << shift
        if byte < 128:
            return result, at
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than 64 bits")


def _signed(data: Bytes, at: int) -> tuple[int, int]:
    value, at = unsigned(data, at)
    return (value >> 1) ^ -(value & 1), at


def read_struct(data: Bytes, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """(fields by id, where the struct ends): integers, booleans and structs; everything else is passed over."""
    if depth > _DEPTH:
        raise ValueError("structs are nested too deeply")
    found: dict[int, Any] = {}
    number = 0
    while True:
        head = data[at]
        at += 1
        if head == 0:
            return found, at
        kind = head & 15
        if head >> 4:
            number += head >> 4
        else:
            number, at = _signed(data, at)
        if kind in (_I16, I32, I64):
            found[number], at = _signed(data, at)
        elif kind == STRUCT:
            found[number], at = read_struct(data, at, depth + 1)
        elif kind in (_TRUE, _FALSE):
            found[number] = kind == _TRUE
        else:
            at = _pass(data, at, kind, depth + 1)


def _pass(data: Bytes, at: int, kind: int, depth: int) -> int:
    """Where a value of a kind that nobody asks for ends."""
    if depth > _DEPTH:
        raise ValueError("lists are nested too deeply")
    if kind == TEXT:
        size, at = unsigned(data, at)
        at += size
    elif kind == _DOUBLE:
        at += 8
    elif kind in (_BYTE, _TRUE, _FALSE):
        at += 1
    elif kind in (_I16, I32, I64):
        at = unsigned(data, at)[1]
    elif kind == STRUCT:
        at = read_struct(data, at, depth)[1]
    elif kind in (LIST, _SET):
        head = data[at]
        count, at = (head >> 4, at + 1) if head >> 4 < 15 else unsigned(data, at + 1)
        for _ in range(count):
            at = _pass(data, at, head & 15, depth + 1)
    else:
        raise ValueError(f"a field has kind {kind}")
    if at > len(data):
        raise ValueError("a field is longer than the data")
    return at


# ---- writing ---------------------------------------------------------------------------------------------------


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def integer(value: int) -> bytes:
    """An I32 or I64, not negative."""
    return _number(value << 1)


def text(value: bytes) -> bytes:
    """A string or binary."""
    return _number(len(value)) + value


def items(kind: int, values: list[bytes]) -> bytes:
    """A list of fewer than 15 values of one kind."""
    return bytes([len(values) << 4 | kind]) + b"".join(values)


def struct(*fields: tuple[int, int, bytes]) -> bytes:
    """A struct of (id, kind, value), ids rising by less than 16 from one to the next."""
    out, before = bytearray(), 0
    for number, kind, value in fields:
        out.append((number - before) << 4 | kind)
        out += value
        before = number
    return bytes(out) + _STOP
