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

from lanefeed_core.layout import Column, column_runs
from lanefeed_sidecar.formats.chunk import Block, Chunk, ChunkColumn, FixedChunk, RaggedChunk

__all__ = ["EntryError", "chunk_bytes", "read_entry", "write_entry"]

MAGIC = b"LFCACHE1"
HEAD = 64
ALIGN = 64
_PAD = bytes(ALIGN)
#: Read and digested at a time: half of what a core's own cache holds, usually.
_PIECE = 512 << 10
#: What one writev takes on Linux.
_IOV_MAX = 1024


class EntryError(Exception):
    """The file is no whole entry of these columns; whoever reads it removes it and decodes again."""


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
    made = _columns(raw, described, columns, rows)
    at = described
    for index in sorted(into or ()):
        values = made[index].values
        # What holds nothing has no address.
        begin = _address(values) - _address(raw) if values.nbytes else at
        file.read(view[at:begin])
        file.read(_bytes((into or {})[index]))
        at = begin + values.nbytes
    file.read(view[at:])
    if file.digest.intdigest() != int.from_bytes(head[16:24], "little"):
        raise EntryError("its digest is wrong")
    for index, column in enumerate(made):
        _check_offsets(columns[index], column)
    chunk = Chunk(rows, made, _blocks(raw, columns, made, rows))
    for index, values in (into or {}).items():
        made[index].values = values
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


def _columns(body: NDArray[np.uint8], at: int, columns: Sequence[Column], rows: int) -> list[ChunkColumn]:
    """Views of the body by the description that ends at `at`; of their bytes nothing has been read yet."""
    try:
        about = json.loads(bytes(body[8:at]))
        if about["rows"] != rows or len(about["columns"]) != len(columns):
            raise EntryError(f"it holds {about['rows']} rows of {len(about['columns'])} columns")
        taken = _Taker(body, at)
        return [_column(taken, column, rows, *entry) for column, entry in zip(columns, about["columns"], strict=True)]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise EntryError(f"its description cannot be used: {error!r}") from None


def _blocks(
    body: NDArray[np.uint8], columns: Sequence[Column], made: Sequence[ChunkColumn], rows: int
) -> dict[int, Block]:
    """Neighbouring scalar columns of one type lie one after the other in the file, and so in one block."""
    found: dict[int, Block] = {}
    for run in column_runs(columns):
        mine = [made[index].values for index in run]
        if len(run) < 2 or columns[run.start].shape or not rows or any(made[i].validity is not None for i in run):
            continue
        first, stride = mine[0], -(-mine[0].nbytes // ALIGN) * ALIGN
        start = _address(first)
        if all(_address(values) == start + i * stride for i, values in enumerate(mine)):
            strides = (stride, first.itemsize)
            found[run.start] = np.ndarray((len(run), rows), first.dtype, body, start - _address(body), strides)
    return found


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


class _Taker:
    """Hands out the body's buffers in order."""

    def __init__(self, body: NDArray[np.uint8], at: int) -> None:
        self._body, self._at = body, at

    def take(self, dtype: "np.dtype[Any]", count: int) -> NDArray[Any]:
        start = self._at + -self._at % ALIGN
        self._at = start + count * dtype.itemsize
        if count < 0 or self._at > len(self._body):
            raise EntryError("a column is longer than the file")
        return self._body[start : self._at].view(dtype)


def _column(
    taken: _Taker, column: Column, rows: int, dtype: str, shape: list[int] | None, count: int, valid: bool
) -> ChunkColumn:
    kind = np.dtype(column.dtype)
    if dtype != kind.str or (shape is None) != column.ragged or (shape is not None and tuple(shape) != column.shape):
        raise EntryError(f"column {column.name} is {dtype} {shape}")
    if shape is not None:
        if count * kind.itemsize != rows * column.row_bytes:
            raise EntryError(f"column {column.name} has {count} elements")
        values = taken.take(kind, count).reshape(rows, *column.shape)
        return FixedChunk(values, taken.take(np.dtype(np.uint8), rows) if valid else None)
    values = taken.take(kind, count)
    offsets = taken.take(np.dtype(np.int64), rows + 1)
    return RaggedChunk(values, offsets, taken.take(np.dtype(np.uint8), rows) if valid else None)


def _check_offsets(column: Column, made: ChunkColumn) -> None:
    if not isinstance(made, RaggedChunk):
        return
    offsets = made.offsets
    if offsets[0] != 0 or offsets[-1] != len(made.values) or (np.diff(offsets) < 0).any():
        raise EntryError(f"the offsets of column {column.name} do not fit its values")
