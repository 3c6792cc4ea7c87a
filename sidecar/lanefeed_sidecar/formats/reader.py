"""Readers of one shard: Parquet and Arrow IPC from local files; `remote` opens the same readers over ranges.

Called by the pipeline's decode threads through `open_shard`, which checks that the file is still the one that the
manifest lists. A reader belongs to one thread (pyarrow's ParquetFile is not safe to share). Every error names the
file, the row group and what to do. What a file declares of itself is checked against the manifest, never trusted.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from lanefeed_core.layout import Column
from lanefeed_core.manifest import Manifest
from lanefeed_sidecar.errors import DataError
from lanefeed_sidecar.formats.blocks import Blocks
from lanefeed_sidecar.formats.chunk import Block, Chunk, ChunkColumn, FixedChunk
from lanefeed_sidecar.formats.convert import Converter, ConvertError, convert, converter
from lanefeed_sidecar.formats.flow import BUFFER_BYTES, pieces
from lanefeed_sidecar.formats.identity import REMEDY, check_content, check_identity
from lanefeed_sidecar.formats.unchanged import Unchanged, Watched
from lanefeed_sidecar.formats.weigh import Weigher, Weight, dictionary_columns
from lanefeed_sidecar.formats.whole_lists import ReadAt, WholeLists
from lanefeed_sidecar.sources.names import is_remote, join

__all__ = ["DECODE_ERRORS", "ArrowReader", "ParquetReader", "ShardReader", "open_shard"]

#: What decoding untrusted bytes may raise: Arrow's own, its OSErrors, and NumPy's about sizes that do not fit.
DECODE_ERRORS = (pa.ArrowException, OSError, ConvertError, ValueError)


class ShardReader(Protocol):
    """Decodes one shard's row groups. Used by one thread. Methods raise DataError."""

    def read(self, row_group: int) -> Chunk:
        """The whole row group."""
        ...

    def weigh(self, row_group: int, most: int) -> Weight:
        """What the row group decodes to, without decoding it; an error where one page takes more than `most` bytes."""
        ...

    def stream(self, row_group: int, batch_rows: int) -> Iterator[Chunk]:
        """The row group in pieces of at most `batch_rows` rows, so that memory is bounded whatever it decodes to.

        It may be left where it is, outlive the reader, and be gone on with from another thread.
        """
        ...

    def close(self) -> None:
        """Close the file; chunks that were read stay valid."""
        ...


def open_shard(manifest: Manifest, shard_index: int, columns: tuple[Column, ...]) -> ShardReader:
    """Open a shard of the manifest for the given columns of the file: where documents are packed, see `packed`.

    Raises DataError if it is gone, replaced, or its content digest is wrong.
    """
    shard = manifest.shards[shard_index]
    path = join(manifest.root, shard.path)
    if is_remote(path):
        # Not for local data: it takes what HTTP takes.
        from lanefeed_sidecar.formats.remote import open_alone

        return open_alone(manifest, shard_index, columns)
    file = Unchanged(path)
    check_identity(path, shard, manifest.format)
    check_content(path, shard)
    kind = ArrowReader if manifest.format == "arrow" else ParquetReader
    try:
        reader = kind(path, shard.file_rows, columns)
    except DECODE_ERRORS as error:
        # A file that is being written anew just now is not damaged.
        file.opened()
        raise DataError(f"shard {path} cannot be opened: {error}; {REMEDY}") from error
    try:
        file.opened()
    except DataError:
        reader.close()
        raise
    return Watched(reader, file)


class _Columns:
    """Where the delivered columns lie in a shard's schema, and how each is converted."""

    def __init__(self, schema: pa.Schema, columns: tuple[Column, ...]) -> None:
        self.columns = columns
        self._places = [_place(schema, column.name) for column in columns]
        self._converters: list[Converter] = []
        for column, (top, child) in zip(columns, self._places, strict=True):
            kind = schema.field(top).type
            self._converters.append(converter(column, kind.field(child).type if child else kind))
        self._blocks = Blocks(schema, columns)
        self._steps: list[tuple[Column, int, str, Converter]] | None = None
        #: The names of the tables that the steps are for, and where each is: not all are read in the same way.
        self._steps_of: tuple[str, ...] = ()
        self._at: dict[str, int] = {}
        self.tops = [name for name in schema.names if any(name == top for top, _ in self._places)]

    def chunk(
        self, table: pa.Table | pa.RecordBatch, rows: int, known: Mapping[str, ChunkColumn] | None = None
    ) -> Chunk:
        """The delivered columns of a decoded table of `rows` rows, but for those that are `known` and not in it."""
        known = known or {}
        names = tuple(table.schema.names)
        if self._steps is None or self._steps_of != names:
            self._at = at = {name: index for index, name in enumerate(names)}
            self._steps = [
                (column, at.get(top, -1), child, convert_piece)
                for column, (top, child), convert_piece in zip(
                    self.columns, self._places, self._converters, strict=True
                )
            ]
            self._steps_of = names
        blocks = self._take_blocks(table, rows)
        flat = {start + i: values for start, block in blocks.items() for i, values in enumerate(block)}
        made: list[ChunkColumn] = []
        for number, (column, index, child, convert_piece) in enumerate(self._steps):
            if column.name in known:
                made.append(known[column.name])
                continue
            if number in flat:
                made.append(FixedChunk(flat[number]))
                continue
            array = table.column(index)
            if child:
                # Flattening a struct gives its own nulls to its fields.
                array = array.flatten()[array.type.get_field_index(child)]
            made.append(convert(column, convert_piece, array, rows))
        return Chunk(rows, made, blocks)

    def _take_blocks(self, table: pa.Table | pa.RecordBatch, rows: int) -> dict[int, Block]:
        if isinstance(table, pa.Table):
            batches = table.to_batches()
            if len(batches) != 1:
                return {}
            table = batches[0]
        return self._blocks.read(table, self._at) if table.num_rows == rows else {}


def _place(schema: pa.Schema, name: str) -> tuple[str, str]:
    """(column, field of it or "") for a delivered column; "a.b" is field b of struct a, or a column of that name."""
    if schema.get_field_index(name) >= 0:
        return name, ""
    for field in schema:
        child = name.removeprefix(f"{field.name}.")
        if child != name and pa.types.is_struct(field.type) and field.type.get_field_index(child) >= 0:
            return field.name, child
    raise ConvertError(f"column {name} is not in this shard, which has {', '.join(schema.names)}")


class ParquetReader:
    """One Parquet file, page checksums verified where the file has them.

    Read, not mapped: decoding is as fast, no page of the file counts as this process's memory, and a file that is cut
    short under us is an error instead of a SIGBUS. Not pre-buffered: an open reader would keep a row group's bytes.
    """

    def __init__(
        self,
        path: str,
        row_groups: tuple[int, ...],
        columns: tuple[Column, ...],
        source: pa.NativeFile | None = None,
        metadata: pq.FileMetaData | None = None,
        reads: ReadAt | None = None,
        reopen: Callable[[], pa.NativeFile] | None = None,
    ) -> None:
        """`source` and `reads`: where `path` can be read, if it is no local file; `metadata`: its footer, if known.

        `reopen`: such a source once more, for what reads beside this reader.
        """
        self._path, self._source, self._reopen, self._reads = path, source, reopen, reads
        self._wanted = columns
        self._rows = row_groups
        self._weigher: Weigher | None = None
        #: Bytes that a page may take.
        self._most = 1 << 62
        self._fd = -1
        self._file = pq.ParquetFile(
            source or path, metadata=metadata, memory_map=False, pre_buffer=False, page_checksum_verification=True
        )
        try:
            self._columns = _Columns(self._file.schema_arrow, columns)
        except ConvertError:
            self._file.close()
            raise
        # Leaves are selected by path, which for "a.b" is one field of a struct; None reads all without a look-up.
        everything = len(columns) == len(self._file.schema_arrow) and all("." not in c.name for c in columns)
        self._names = None if everything else [c.name for c in columns]
        self._lists = WholeLists(self._file, columns, path, reads)

    def read(self, row_group: int) -> Chunk:
        """See ShardReader."""
        rows = self._rows[row_group]
        try:
            lists = self._read_lists(row_group, rows)
            if len(lists) == len(self._columns.columns):
                return Chunk(rows, list(lists.values()))
            names = self._names
            self._check_lists(row_group, rows, lists.keys())
            if lists:
                names = [c.name for c in self._columns.columns if c.name not in lists]
            table = self._file.read_row_group(row_group, columns=names, use_threads=False)
            return self._columns.chunk(table, rows, lists)
        except DECODE_ERRORS as error:
            raise self._error(row_group, error) from error

    def _read_lists(self, row_group: int, rows: int) -> dict[str, ChunkColumn]:
        """Columns that could be read without their levels, in the order of delivery."""
        found: dict[str, ChunkColumn] = {}
        for column in self._columns.columns if rows else ():
            if column.name in self._lists.names:
                values = self._lists.read(column, row_group, rows)
                if values is not None:
                    found[column.name] = values
        return found

    def weigh(self, row_group: int, most: int) -> Weight:
        """See ShardReader. Fixed lists read without levels are bounded there, and weighed when they are not."""
        self._most = most
        return self._weigh(row_group, self._lists.bounded)

    def _weigh(self, row_group: int, passed: Set[str] = frozenset()) -> Weight:
        try:
            if self._weigher is None:
                self._weigher = Weigher(
                    self._file, self._wanted, self._reads or self._read_local, lambda: self._again(self._source)
                )
            return self._weigher.weigh(row_group, self._most, passed)
        except (*DECODE_ERRORS, IndexError) as error:
            raise self._error(row_group, error) from error

    def _check_lists(self, row_group: int, rows: int, found: Set[str]) -> None:
        """Lists that were thought to be of one length and are not may be of any."""
        left = {c.name: rows * c.row_bytes for c in self._wanted if c.name in self._lists.bounded - found}
        if left and self._weigh(row_group, {c.name for c in self._wanted} - left.keys()).nbytes > sum(left.values()):
            raise self._error(row_group, f"the lists of {', '.join(left)} are longer than their type says")

    def _read_local(self, at: int, into: memoryview) -> int:
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return os.preadv(self._fd, [into], at)

    def _again(self, source: pa.NativeFile | None) -> pq.ParquetFile:
        """The same file, read through a small buffer, strings as dictionaries. ConvertError: it is another one."""
        file = pq.ParquetFile(
            source or self._path,
            read_dictionary=dictionary_columns(self._file.schema),
            memory_map=False,
            pre_buffer=False,
            buffer_size=BUFFER_BYTES,
            page_checksum_verification=True,
        )
        if not file.metadata.equals(self._file.metadata):
            file.close()
            raise ConvertError("the file was replaced while it was read")
        return file

    def stream(self, row_group: int, batch_rows: int) -> Iterator[Chunk]:
        """See ShardReader."""
        rows = left = self._rows[row_group]
        if self._lists.bounded:
            self._weigh(row_group)
        try:
            file = self._again(self._reopen() if self._reopen else None)
            columns = _Columns(file.schema_arrow, self._wanted)
            batches = pieces(file, row_group, batch_rows, self._names)
        except DECODE_ERRORS as error:
            raise self._error(row_group, error) from error
        while True:
            try:
                batch = next(batches, None)
                if batch is None:
                    break
                left -= batch.num_rows
                chunk = columns.chunk(batch, batch.num_rows)
            except DECODE_ERRORS as error:
                raise self._error(row_group, error) from error
            yield chunk
        if left:
            raise self._error(row_group, f"it has {rows - left} rows and should have {left} more")

    def _error(self, row_group: int, error: Exception | str) -> DataError:
        return DataError(f"shard {self._path}, row group {row_group} cannot be decoded: {error}; {REMEDY}")

    def close(self) -> None:
        """See ShardReader."""
        self._file.close()
        self._lists.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class ArrowReader:
    """One Arrow IPC file; its record batches are the row groups. Batches are validated: files are untrusted."""

    def __init__(
        self,
        path: str,
        row_groups: tuple[int, ...],
        columns: tuple[Column, ...],
        source: pa.NativeFile | None = None,
    ) -> None:
        """`source`: where `path` can be read, if it is no local file."""
        self._path = path
        self._rows = row_groups
        self._map = source or pa.memory_map(path)
        try:
            self._file = pa.ipc.open_file(self._map, options=pa.ipc.IpcReadOptions(use_threads=False))
            schema = self._file.schema
            self._columns = _Columns(schema, columns)
            wanted = [i for i, name in enumerate(schema.names) if name in self._columns.tops]
            if len(wanted) < len(schema):
                # Other columns are not decompressed. Only for a part, as it makes Arrow copy what it would map.
                options = pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=False)
                self._file = pa.ipc.open_file(self._map, options=options)
        except DECODE_ERRORS:
            self._map.close()
            raise

    def read(self, row_group: int) -> Chunk:
        """See ShardReader."""
        try:
            batch = self._batch(row_group)
            return self._columns.chunk(batch, batch.num_rows)
        except DECODE_ERRORS as error:
            raise self._error(row_group, error) from error

    def weigh(self, row_group: int, most: int) -> Weight:
        """See ShardReader. A record batch is mapped, and its sizes are those that the indexer saw."""
        return Weight(0, 0)

    def stream(self, row_group: int, batch_rows: int) -> Iterator[Chunk]:
        """See ShardReader. A mapped batch costs no memory, a compressed one is decompressed whole."""
        try:
            batch = self._batch(row_group)
            for start in range(0, batch.num_rows, batch_rows):
                piece = batch.slice(start, batch_rows)
                yield self._columns.chunk(piece, piece.num_rows)
        except DECODE_ERRORS as error:
            raise self._error(row_group, error) from error

    def _batch(self, row_group: int) -> pa.RecordBatch:
        batch = self._file.get_batch(row_group)
        if batch.num_rows != self._rows[row_group]:
            raise ConvertError(f"it has {batch.num_rows} rows and should have {self._rows[row_group]}")
        batch.validate(full=True)
        return batch

    def _error(self, row_group: int, error: Exception) -> DataError:
        return DataError(f"shard {self._path}, record batch {row_group} cannot be decoded: {error}; {REMEDY}")

    def close(self) -> None:
        """See ShardReader."""
        self._map.close()
