"""The footer of a shard: what the indexer and the identity check hash and read, without decoding any data."""

import os
import struct

import xxhash

__all__ = ["FooterError", "fingerprint", "footer_bytes", "has_page_checksum", "page_has_checksum", "sniff"]

_PARQUET = b"PAR1"
_ARROW = b"ARROW1"


class FooterError(Exception):
    """The file has no whole footer; the text says why, without the file's name."""


def sniff(path: str) -> str:
    """ "parquet" or "arrow" by the first bytes, "" for anything else."""
    with open(path, "rb") as file:
        head = file.read(6)
    if head[:4] == _PARQUET:
        return "parquet"
    return "arrow" if head == _ARROW else ""


def fingerprint(path: str, kind: str) -> str:
    """xxh3-128 of the footer in 32 hex digits. Raises FooterError if there is no whole footer."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - 10))
        length, tail = footer_bytes(file.read(10), size, kind)
        file.seek(size - tail - length)
        return str(xxhash.xxh3_128_hexdigest(file.read(length)))


def footer_bytes(end: bytes, size: int, kind: str) -> tuple[int, int]:
    """(bytes of the footer, bytes that follow it) by the last bytes of a file of `size` bytes. Raises FooterError."""
    tail_size, magic = (8, _PARQUET) if kind == "parquet" else (10, _ARROW)
    if size < tail_size + 4:
        raise FooterError(f"it has only {size} bytes")
    tail = end[-tail_size:]
    if tail[4:] != magic:
        raise FooterError(f"it does not end like a {kind} file (truncated, or not {kind})")
    length = struct.unpack("<I", tail[:4])[0]
    if length + tail_size > size:
        raise FooterError(f"its footer says {length} bytes and the file has {size} (truncated or corrupt)")
    return length, tail_size


def has_page_checksum(path: str, offset: int) -> bool | None:
    """Whether the Parquet page whose header begins at `offset` carries a CRC; None if the header cannot be read."""
    with open(path, "rb") as file:
        file.seek(offset)
        return page_has_checksum(file.read(32))


def page_has_checksum(head: bytes) -> bool | None:
    """Of the first 32 bytes of a page: whether it carries a CRC.

    The header is a Thrift struct in the compact protocol: type, uncompressed size, compressed size (all i32, always
    there), then the optional CRC as field 4.
    """
    at = 0
    for _ in range(3):
        if at >= len(head) or head[at] != 0x15:
            return None
        at += 1
        while at < len(head) and head[at] & 0x80:
            at += 1
        at += 1
    return head[at] == 0x15 if at < len(head) else None
