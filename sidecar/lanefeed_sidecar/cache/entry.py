"""One decoded row group as a file: a digest, a description, and the columns' bytes as they lie in memory.

    0   8 bytes  MAGIC
    8   u64      bytes of the body
    16  u64      xxh3-64 of the body
    64  body:    u64 bytes of the description, the description (JSON), then each buffer at a multiple of 64

Written whole under another name, then renamed; a crash at any byte leaves a file that nobody opens or whose digest is
wrong. Read, not mapped: a file that another process cuts short must not be a SIGBUS (docs/adr/0006). Not Arrow IPC:
73 columns cost Arrow as much to describe as their bytes to read.
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from lanefeed_core.layout import Column
from lanefeed_sidecar.cache.form import ALIGN, EntryError, Form, form_of, likely_form
from lanefeed_sidecar.formats.chunk import Chunk, ChunkColumn, RaggedChunk

__all__ = ["EntryError", "chunk_bytes", "read_entry", "write_entry"]

MAGIC = b"LFCACHE1"
HEAD = 64
_PAD = bytes(ALIGN)
#: Most descriptions are no longer.
_DESCRIPTION = 4096
#: What one writev takes on Linux.
_IOV_MAX = 1024


def chunk_bytes(chunk: Chunk) -> int:
    """Bytes of the file, about."""
    return HEAD + 4096 + chunk.nbytes + 64 * 4 * len(chunk.columns)


def _arrays(chunk: Chunk) -> list[NDArray[Any]]:
    found: list[NDArray[Any]] = []
    for column in chunk.columns:
        found.append(column.values)
        if isinstance(column, RaggedChunk):
            found.append(column.offsets)
        if column.validity is not None:
            found.append(column.validity)
    return found


def write_entry(fd: int, chunk: Chunk) -> int:
    """Write the entry into an empty file; its bytes. Raises OSError (a full disk)."""
    arrays = [np.ascontiguousarray(array) for array in _arrays(chunk)]
    about = json.dumps({"rows": chunk.rows, "columns": [_describe(column) for column in chunk.columns]}).encode()
    parts: list[Any] = [len(about).to_bytes(8, "little"), about]
    at = 8 + len(about)
    for array in arrays:
        gap = -at % ALIGN
        parts.append(_PAD[:gap])
        raw = array.reshape(-1).view(np.uint8)
        parts.append(raw.data if raw.nbytes else b"")
        at += gap + raw.nbytes
    digest = xxhash.xxh3_64()
    for part in parts:
        digest.update(part)
    head = MAGIC + at.to_bytes(8, "little") + digest.intdigest().to_bytes(8, "little")
    _write_all(fd, [head.ljust(HEAD, b"\0"), *(part for part in parts if len(part))])
    return HEAD + at


def _write_all(fd: int, parts: Sequence[Any]) -> None:
    left = [memoryview(part).cast("B") for part in parts]
    while left:
        _pass(left, os.writev(fd, left[:_IOV_MAX]))


def _pass(left: list[memoryview], count: int) -> None:
    """The first `count` bytes of what is left are done."""
    while left and count >= len(left[0]):
        count -= len(left.pop(0))
    if count:
        left[0] = left[0][count:]


def _describe(column: ChunkColumn) -> list[Any]:
    """dtype, row shape (None: ragged), elements, whether there is validity."""
    shape = None if isinstance(column, RaggedChunk) else list(column.values.shape[1:])
    return [column.values.dtype.str, shape, int(column.values.size), column.validity is not None]


def read_entry(
    fd: int,
    size: int,
    columns: Sequence[Column],
    rows: int,
    limit: int,
    into: Mapping[int, NDArray[Any]] | None = None,
) -> Chunk:
    """The chunk of an open file of `size` bytes, at most `limit`. Raises EntryError, OSError.

    `into`: memory for the values of columns of fixed shape, [rows, *shape]; they are read to there, also what turns out
    to be damaged.

    Few calls for much: in each the thread lets go of the GIL, and has to wait until another one does the same.
    """
    if not HEAD + 8 <= size <= limit:
        raise EntryError(f"it has {size} bytes")
    form = likely_form(columns, rows) or _read_form(fd, size, columns, rows)
    # Arrow's allocator keeps its pages: touching fresh memory would cost more than reading.
    body = np.frombuffer(pa.allocate_buffer(size - HEAD), np.uint8)
    if not _read_body(fd, form, body, into or {}):
        # Its description is not the usual one.
        form = _read_form(fd, size, columns, rows)
        if not _read_body(fd, form, body, into or {}):
            raise EntryError("it was written to while it was read")
    chunk = form.chunk(body)
    for column, made in zip(columns, chunk.columns, strict=True):
        if isinstance(made, RaggedChunk):
            _check_offsets(column, made)
    for index, values in (into or {}).items():
        chunk.columns[index].values = values
    return chunk


def _read_form(fd: int, size: int, columns: Sequence[Column], rows: int) -> Form:
    """Read the description alone."""
    start = os.pread(fd, _DESCRIPTION, HEAD)
    described = 8 + int.from_bytes(start[:8], "little")
    if described > size - HEAD:
        raise EntryError("its description is longer than the file")
    if described > len(start):
        start = os.pread(fd, described, HEAD)
    form = form_of(start[8:described], columns, rows)
    if form.end > size - HEAD:
        raise EntryError("a column is longer than the file")
    return form


def _read_body(fd: int, form: Form, body: NDArray[np.uint8], into: Mapping[int, NDArray[Any]]) -> bool:
    """Read the file of this form, and check it; False where its description is another one."""
    if form.end > len(body):
        return False
    head, view, at = memoryview(bytearray(HEAD)), body.data, 0
    parts = [head]
    for index, values in sorted(into.items()):
        place = form.parts[index]
        parts += (view[at : place.values], _bytes(values))
        at = place.values + place.nbytes
    parts.append(view[at:])
    _read_all(fd, parts)
    if head[:8] != MAGIC or int.from_bytes(head[8:16], "little") != len(body):
        raise EntryError("its header is not that of an entry of this version")
    described = 8 + len(form.description)
    if int.from_bytes(view[:8], "little") != len(form.description) or view[8:described] != form.description:
        return False
    digest = xxhash.xxh3_64()
    for part in parts[1:]:
        digest.update(part)
    if digest.intdigest() != int.from_bytes(head[16:24], "little"):
        raise EntryError("its digest is wrong")
    return True


def _read_all(fd: int, parts: Sequence[memoryview]) -> None:
    """Fill all parts from the file's beginning on."""
    left, at = [part for part in parts if len(part)], 0
    while left:
        got = os.preadv(fd, left[:_IOV_MAX], at)
        if not got:
            raise EntryError("it ends too early")
        at += got
        _pass(left, got)


def _bytes(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data if array.nbytes else memoryview(b"")


def _check_offsets(column: Column, made: RaggedChunk) -> None:
    offsets = made.offsets
    if offsets[0] != 0 or offsets[-1] != len(made.values) or (np.diff(offsets) < 0).any():
        raise EntryError(f"the offsets of column {column.name} do not fit its values")
