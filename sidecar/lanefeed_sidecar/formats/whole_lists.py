"""Lists without Parquet's levels: the same values for 0.55 of the CPU (docs/performance.md).

A Parquet list column stores two small numbers for every value: where lists begin, and what is null. For lists of one
length without nulls they say nothing, for long lists of any length little, and decoding them is nearly half of the
work. Here each page is unpacked, its levels are checked to be those of whole lists, or to say where lists begin
(`levels`), and its values go, with new headers, into a small Parquet file in memory whose one column is flat and
required; Arrow decodes that one. Any page that is not as expected, and the row group goes the ordinary way: this module
gives None, never an error and never a guess. Called by `reader`, one object a thread.
"""

import os
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lanefeed_core.layout import Column
from lanefeed_sidecar.formats import compact as c
from lanefeed_sidecar.formats import levels
from lanefeed_sidecar.formats.chunk import ChunkColumn, FixedChunk, RaggedChunk

__all__ = ["ReadAt", "WholeLists"]

#: Fill a writable buffer from an offset of the file; the bytes that came.
ReadAt = Callable[[int, memoryview], int]

#: NumPy dtype -> Parquet's physical type (Type in parquet.thrift), where the bits are the same.
_TYPES = {"int32": 1, "uint32": 1, "int64": 2, "uint64": 2, "float32": 4, "float64": 5}
_ARROW_NAMES = {"float32": "float", "float64": "double"}
_PHYSICAL = {1: "INT32", 2: "INT64", 4: "FLOAT", 5: "DOUBLE"}
_DTYPES = {1: "int32", 2: "int64", 4: "float32", 5: "float64"}
#: Codecs whose bytes say how long the page is: where Arrow is told more than that, it fills up with whatever is there.
_CODECS = {"ZSTD": "zstd", "SNAPPY": "snappy", "GZIP": "gzip"}
#: PageType in parquet.thrift.
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_RLE = 3
_MAGIC = b"PAR1"
#: What a chunk may decompress to, over what its values take: levels, dictionary and headers.
_SLACK_BYTES = 1 << 20
#: Lists of any length that are shorter on average go the ordinary way: finding where each begins would take longer.
_SHORT = 32


class _Ordinary(Exception):
    """This row group is to be read in the ordinary way."""


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column that may be read so: its leaf in the file, and what its levels are when nothing is missing."""

    index: int
    kind: int
    #: Values of a list; 0: any number.
    size: int
    most: int


@dataclass(slots=True)
class _Pages:
    """The pieces of the file in memory, as they are collected."""

    parts: list[bytes | memoryview]
    at: int = len(_MAGIC)
    values: int = 0
    dictionary: int = 0
    first_data: int = 0
    #: Lists that are yet to begin, and where those of each page began, of lists of any length.
    left: int = 0
    starts: list[NDArray[np.int64]] = field(default_factory=list)

    def add(self, header: bytes, body: memoryview) -> None:
        """One page."""
        self.parts += [header, body]
        self.at += len(header) + len(body)


class _Scratch(threading.local):
    """A thread's buffers: a pair for every shard that is opened would be fresh memory for each."""

    def __init__(self) -> None:
        self.raw, self.joined = bytearray(), bytearray()


_SCRATCH = _Scratch()
#: Larger ones are not kept once a shard is closed.
_KEPT_BYTES = 16 << 20


def _grown(buffer: bytearray, size: int) -> bytearray:
    """The buffer, or a larger one with some room: row groups of one size are stored in sizes that differ a little."""
    return buffer if len(buffer) >= size else bytearray(size + size // 8)


class WholeLists:
    """Reads the columns of one file that can be read so. Used by one thread."""

    def __init__(
        self, file: pq.ParquetFile, columns: tuple[Column, ...], path: str, reads: ReadAt | None = None
    ) -> None:
        """`reads`: of a file that is not local. A local one is opened once more, if it has such columns: OSError."""
        self._file = file
        self._leaves = {column.name: leaf for column in columns if (leaf := _leaf(file, column)) is not None}
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if self._leaves and reads is None else -1
        self._read_at = reads or self._read_local

    def _read_local(self, at: int, into: memoryview) -> int:
        return os.preadv(self._fd, [into], at)

    def close(self) -> None:
        """Close what was opened here; chunks that were read stay valid."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if max(len(_SCRATCH.raw), len(_SCRATCH.joined)) > _KEPT_BYTES:
            _SCRATCH.raw, _SCRATCH.joined = bytearray(), bytearray()

    @property
    def names(self) -> frozenset[str]:
        """Columns that may be read here, if their pages are as expected."""
        return frozenset(self._leaves)

    @property
    def bounded(self) -> frozenset[str]:
        """Those of which a row group's number of values is known: whoever reads them need not weigh them."""
        return frozenset(name for name, leaf in self._leaves.items() if leaf.size)

    def read(self, column: Column, row_group: int, rows: int) -> ChunkColumn | None:
        """The column of a row group; None where it must be read in the ordinary way. Raises OSError."""
        leaf = self._leaves[column.name]
        try:
            pages = self._pages(leaf, row_group, rows)
            flat = self._decode(leaf, pages)
        except (_Ordinary, ValueError, IndexError, KeyError, pa.ArrowException):
            return None
        if len(flat) != pages.values or flat.null_count:
            return None
        values = flat.to_numpy().view(column.dtype)
        if leaf.size:
            return FixedChunk(values.reshape(rows, *column.shape))
        offsets = np.concatenate([*pages.starts, np.array([len(values)])])
        return RaggedChunk(values, offsets) if len(offsets) == rows + 1 and not offsets[0] else None

    # ---- pages -------------------------------------------------------------------------------------------------

    def _pages(self, leaf: _Leaf, row_group: int, rows: int) -> _Pages:
        meta = self._file.metadata.row_group(row_group).column(leaf.index)
        total = rows * leaf.size if leaf.size else meta.num_values
        codec = _CODECS.get(meta.compression)
        if meta.num_values != total or (codec is None and meta.compression != "UNCOMPRESSED"):
            raise _Ordinary
        if not leaf.size and total < _SHORT * rows:
            raise _Ordinary
        start = meta.data_page_offset
        if meta.has_dictionary_page and meta.dictionary_page_offset:
            start = min(start, meta.dictionary_page_offset)
        data = self._chunk(start, meta.total_compressed_size)
        room = total * np.dtype(_DTYPES[leaf.kind]).itemsize * 2 + _SLACK_BYTES
        unpack = _unpacker(codec)
        pages, at = _Pages([_MAGIC], left=rows), 0
        while pages.values < total:
            header, at = c.read_struct(data, at)
            body = data[at : at + header[3]]
            at += header[3]
            room -= header[2]
            if len(body) != header[3] or header[2] < 0 or room < 0 or not _intact(header, body):
                raise _Ordinary
            self._page(leaf, pages, header, body, unpack, total)
        return pages

    def _chunk(self, start: int, size: int) -> memoryview:
        """The column chunk's bytes, in a buffer that is used again."""
        if start < len(_MAGIC) or not 0 < size < 1 << 31:
            raise _Ordinary
        _SCRATCH.raw = _grown(_SCRATCH.raw, size)
        view, got = memoryview(_SCRATCH.raw)[:size], 0
        while got < size:
            more = self._read_at(start + got, view[got:])
            if not more:
                raise _Ordinary
            got += more
        return view

    def _page(
        self,
        leaf: _Leaf,
        pages: _Pages,
        header: dict[int, object],
        body: memoryview,
        unpack: Callable[[memoryview, int], memoryview],
        total: int,
    ) -> None:
        kind, size = header[1], _int(header[2])
        if kind == _DICTIONARY:
            about = _fields(header[7])
            plain = unpack(body, size)
            pages.dictionary = pages.at
            pages.add(_dictionary_header(len(plain), about[1], about[2]), plain)
            return
        if kind == _DATA:
            about = _fields(header[5])
            count, encoding = about[1], about[2]
            if about[3] != _RLE or about[4] != _RLE:
                raise _Ordinary
            plain = unpack(body, size)
            repetition, at = _prefixed(plain, 0)
            definition, at = _prefixed(plain, at)
            values = plain[at:]
        elif kind == _DATA_V2:
            about = _fields(header[8])
            count, encoding = about[1], about[4]
            split, end = about[6], about[6] + about[5]
            if min(about[5], about[6]) < 0 or end > len(body):
                raise _Ordinary
            repetition, definition = bytes(body[:split]), bytes(body[split:end])
            packed = body[end:]
            values = unpack(packed, size - end) if about.get(7, True) else packed
        else:
            raise _Ordinary
        if not 0 < count <= total - pages.values:
            raise _Ordinary
        if not levels.all_present(definition, count, leaf.most) or not _lists(leaf, pages, repetition, count):
            raise _Ordinary
        pages.first_data = pages.first_data or pages.at
        pages.add(_data_header(len(values), count, encoding), values)
        pages.values += count

    # ---- decoding ----------------------------------------------------------------------------------------------

    def _decode(self, leaf: _Leaf, pages: _Pages) -> pa.Array:
        """Put the pieces together and have Arrow decode them."""
        end = _footer(leaf.kind, pages)
        parts = [*pages.parts, end, len(end).to_bytes(4, "little"), _MAGIC]
        size = sum(map(len, parts))
        _SCRATCH.joined = _grown(_SCRATCH.joined, size)
        view, at = memoryview(_SCRATCH.joined), 0
        for part in parts:
            view[at : at + len(part)] = part
            at += len(part)
        # Decoding copies, so that the buffer can be used again.
        file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(view[:size])))
        column = file.read_row_group(0, use_threads=False).column(0)
        if column.num_chunks != 1:
            raise _Ordinary
        return column.chunk(0)


def _lists(leaf: _Leaf, pages: _Pages, repetition: bytes, count: int) -> bool:
    """Whether the next `count` values are of whole lists; of lists of any length it is noted where they begin."""
    if leaf.size:
        return levels.whole_lists(repetition, count, pages.values % leaf.size, leaf.size)
    found = levels.starts(repetition, count, pages.left)
    if found is None:
        return False
    pages.left -= len(found)
    pages.starts.append(np.array(found, np.int64) + pages.values)
    return True


def _leaf(file: pq.ParquetFile, column: Column) -> _Leaf | None:
    """Where the column lies, if it is a list of plain numbers."""
    kind = _TYPES.get(column.dtype)
    if kind is None or column.logical:
        return None
    if not column.ragged and (len(column.shape) != 1 or not column.shape[0]):
        return None
    schema = file.schema_arrow
    at = schema.get_field_index(column.name)
    if at < 0 or not _is_list(schema.field(at).type, column):
        return None
    if str(schema.field(at).type.value_type) != _ARROW_NAMES.get(column.dtype, column.dtype):
        return None
    leaves = [i for i in range(len(file.schema)) if file.schema.column(i).path.split(".")[0] == column.name]
    if len(leaves) != 1:
        return None
    found = file.schema.column(leaves[0])
    if found.physical_type != _PHYSICAL[kind] or found.max_repetition_level != 1:
        return None
    return _Leaf(leaves[0], kind, 0 if column.ragged else column.shape[0], found.max_definition_level)


def _is_list(kind: pa.DataType, column: Column) -> bool:
    if column.ragged:
        return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
    return bool(pa.types.is_fixed_size_list(kind))


def _unpacker(codec: str | None) -> Callable[[memoryview, int], memoryview]:
    if codec is None:
        return lambda data, size: data if len(data) == size else _refuse()
    known = pa.Codec(codec)

    def unpack(data: memoryview, size: int) -> memoryview:
        if not size:
            return data[:0]
        if codec == "snappy" and c.unsigned(data, 0)[0] != size:
            raise _Ordinary
        if codec == "gzip" and int.from_bytes(data[-4:], "little") != size:
            raise _Ordinary
        # Zstandard's own check is both ways.
        return memoryview(known.decompress(data, size)).cast("B")

    return unpack


def _refuse() -> memoryview:
    raise _Ordinary


def _intact(header: dict[int, object], body: memoryview) -> bool:
    """Whether the page's checksum is right; True where it has none."""
    return 4 not in header or zlib.crc32(body) == _int(header[4]) & 0xFFFFFFFF


def _prefixed(data: memoryview, at: int) -> tuple[bytes, int]:
    """Levels of a page of version 1: their length, then they."""
    size = int.from_bytes(data[at : at + 4], "little")
    end = at + 4 + size
    if end > len(data):
        raise _Ordinary
    return bytes(data[at + 4 : end]), end


def _int(value: object) -> int:
    if not isinstance(value, int):
        raise _Ordinary
    return value


def _fields(value: object) -> dict[int, int]:
    if not isinstance(value, dict):
        raise _Ordinary
    return value


# ---- the file in memory (parquet.thrift) -----------------------------------------------------------------------


def _dictionary_header(size: int, count: int, encoding: int) -> bytes:
    about = c.struct((1, c.I32, c.integer(count)), (2, c.I32, c.integer(encoding)))
    return _header(_DICTIONARY, size, (7, c.STRUCT, about))


def _data_header(size: int, count: int, encoding: int) -> bytes:
    numbers = (count, encoding, _RLE, _RLE)
    about = c.struct(*((number + 1, c.I32, c.integer(value)) for number, value in enumerate(numbers)))
    return _header(_DATA, size, (5, c.STRUCT, about))


def _header(kind: int, size: int, about: tuple[int, int, bytes]) -> bytes:
    return c.struct((1, c.I32, c.integer(kind)), (2, c.I32, c.integer(size)), (3, c.I32, c.integer(size)), about)


def _footer(kind: int, pages: _Pages) -> bytes:
    """FileMetaData of one row group with one required column."""
    body = pages.at - len(_MAGIC)
    root = c.struct((4, c.TEXT, c.text(b"r")), (5, c.I32, c.integer(1)))
    leaf = c.struct((1, c.I32, c.integer(kind)), (3, c.I32, c.integer(0)), (4, c.TEXT, c.text(b"x")))
    fields = [
        (1, c.I32, c.integer(kind)),
        (2, c.LIST, c.items(c.I32, [c.integer(_RLE)])),
        (3, c.LIST, c.items(c.TEXT, [c.text(b"x")])),
        (4, c.I32, c.integer(0)),
        (5, c.I64, c.integer(pages.values)),
        (6, c.I64, c.integer(body)),
        (7, c.I64, c.integer(body)),
        (9, c.I64, c.integer(pages.first_data)),
    ]
    if pages.dictionary:
        fields.append((11, c.I64, c.integer(pages.dictionary)))
    column = c.struct((2, c.I64, c.integer(len(_MAGIC))), (3, c.STRUCT, c.struct(*fields)))
    group = c.struct(
        (1, c.LIST, c.items(c.STRUCT, [column])), (2, c.I64, c.integer(body)), (3, c.I64, c.integer(pages.values))
    )
    return c.struct(
        (1, c.I32, c.integer(1)),
        (2, c.LIST, c.items(c.STRUCT, [root, leaf])),
        (3, c.I64, c.integer(pages.values)),
        (4, c.LIST, c.items(c.STRUCT, [group])),
    )
