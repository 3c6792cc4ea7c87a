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
from lanefeed_sidecar.cache.form import ALIGN, EntryError, form_of
from lanefeed_sidecar.formats.chunk import Chunk, ChunkColumn, RaggedChunk

__all__ = ["EntryError", "chunk_bytes", "read_entry", "write_entry"]

MAGIC = b"LFCACHE1"
HEAD = 64
_PAD = bytes(ALIGN)
#: Read and digested at a time: half of what a core's own cache holds, usually.
_PIECE = 512 << 10
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
        written = os.writev(fd, left[:_IOV_MAX])
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]


def _describe(column: ChunkColumn) -> list[Any]:
    """dtype, row shape (None: ragged), elements, whether there is validity."""
    shape = None if isinstance(column, RaggedChunk) else list(column.values.shape[1:])
    return [column.values.dtype.str, shape, int(column.values.size), column.validity is not None]


def read_entry(
    fd: int, columns: Sequence[Column], rows: int, limit: int, into: Mapping[int, NDArray[Any]] | None = None
) -> Chunk:
    """The chunk of an open file of at most `limit` bytes. Raises EntryError, OSError.

    `into`: memory for the values of columns of fixed shape, [rows, *shape]; they are read to there, also what turns out
    to be damaged.
    """
    size = os.fstat(fd).st_size
    if not HEAD + 8 <= size <= limit:
        raise EntryError(f"it has {size} bytes")
    head = os.read(fd, HEAD)
    body = int.from_bytes(head[8:16], "little")
    if head[:8] != MAGIC or body != size - HEAD:
        raise EntryError("its header is not that of an entry of this version")
    # Arrow's allocator keeps its pages: touching fresh memory would cost more than reading.
    buffer = pa.allocate_buffer(body)
    raw, file = np.frombuffer(buffer, np.uint8), _File(fd)
    view = memoryview(buffer).cast("B")
    file.read(view[:8])
    described = 8 + int.from_bytes(view[:8], "little")
    if described > body:
        raise EntryError("its description is longer than the file")
    file.read(view[8:described])
    form = form_of(bytes(view[8:described]), columns, rows)
    if form.end > body:
        raise EntryError("a column is longer than the file")
    at = described
    for index, values in sorted((into or {}).items()):
        part = form.parts[index]
        file.read(view[at : part.values])
        file.read(_bytes(values))
        at = part.values + part.nbytes
    file.read(view[at:])
    if file.digest.intdigest() != int.from_bytes(head[16:24], "little"):
        raise EntryError("its digest is wrong")
    chunk = form.chunk(raw)
    for column, made in zip(columns, chunk.columns, strict=True):
        if isinstance(made, RaggedChunk):
            _check_offsets(column, made)
    for index, values in (into or {}).items():
        chunk.columns[index].values = values
    return chunk


class _File:
    """Reads an entry from front to back and digests it piece by piece, while the piece is in the CPU's cache."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.digest = xxhash.xxh3_64()

    def read(self, target: memoryview) -> None:
        """Fill `target` with what comes next."""
        for at in range(0, len(target), _PIECE):
            piece = target[at : at + _PIECE]
            left = piece
            while left:
                got = os.readv(self._fd, [left])
                if not got:
                    raise EntryError("it ends too early")
                left = left[got:]
            self.digest.update(piece)


def _bytes(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data if array.nbytes else memoryview(b"")


def _check_offsets(column: Column, made: RaggedChunk) -> None:
    offsets = made.offsets
    if offsets[0] != 0 or offsets[-1] != len(made.values) or (np.diff(offsets) < 0).any():
        raise EntryError(f"the offsets of column {column.name} do not fit its values")
