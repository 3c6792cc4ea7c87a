"""Readers of one shard: Parquet and Arrow IPC from local files.

`open_shard` checks that the file is still the one that the manifest lists, then gives a reader, which belongs to one
thread (pyarrow's ParquetFile is not safe to share). Every error names the file, the row group and what to do.
"""

import os
import threading
from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from lanefeed_core.layout import Column
from lanefeed_core.manifest import Manifest, Shard
from lanefeed_sidecar.errors import DataError
from lanefeed_sidecar.formats.chunk import Chunk
from lanefeed_sidecar.formats.convert import ConvertError, to_chunk
from lanefeed_sidecar.formats.footer import fingerprint

__all__ = ["ShardReader", "open_shard"]

_REMEDY = "restore the file, or make a new manifest with `lanefeed index` and start a new job"

#: Shards whose content digest was checked in this process; they are immutable.
_verified: set[tuple[str, str]] = set()
_verified_lock = threading.Lock()


class ShardReader(Protocol):
    """Decodes one shard's row groups. Used by one thread. Methods raise DataError."""

    def read(self, row_group: int) -> Chunk:
        """The whole row group."""
        ...

    def stream(self, row_group: int, batch_rows: int) -> Iterator[Chunk]:
        """The row group in pieces of at most `batch_rows` rows, so that memory is bounded whatever it decodes to."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


def open_shard(manifest: Manifest, shard_index: int, columns: tuple[Column, ...]) -> ShardReader:
    """Open a shard of the manifest for the given columns.

    Raises DataError if it is gone, replaced, or its content digest is wrong.
    """
    shard = manifest.shards[shard_index]
    path = os.path.join(manifest.root, shard.path)
    _check_identity(path, shard, manifest.format)
    _check_content(path, shard)
    try:
        if manifest.format == "arrow":
            return _ArrowReader(path, columns)
        return _ParquetReader(path, columns)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"shard {path} cannot be opened: {error}; {_REMEDY}") from error


def _check_identity(path: str, shard: Shard, kind: str) -> None:
    try:
        stat = os.stat(path)
    except OSError as error:
        raise DataError(f"shard {path} cannot be read: {error.strerror}; {_REMEDY}") from error
    if stat.st_size != shard.size:
        raise DataError(
            f"shard {path} was replaced since the manifest was made: it has {stat.st_size} bytes and had {shard.size}; "
            f"{_REMEDY}"
        )
    if str(stat.st_mtime_ns) == shard.etag:
        return
    found = fingerprint(path, kind)
    if found != shard.fingerprint:
        raise DataError(
            f"shard {path} was replaced since the manifest was made: its footer is {found} and was {shard.fingerprint}; "
            f"{_REMEDY}"
        )


def _check_content(path: str, shard: Shard) -> None:
    """Compare xxh3 of the whole file once per process, where the manifest has it."""
    if not shard.content:
        return
    with _verified_lock:
        if (path, shard.content) in _verified:
            return
    digest = xxhash.xxh3_64()
    with open(path, "rb") as file:
        while block := file.read(4 << 20):
            digest.update(block)
    if digest.hexdigest() != shard.content:
        raise DataError(
            f"shard {path} is corrupt: its digest is {digest.hexdigest()} and the manifest says {shard.content}; {_REMEDY}"
        )
    with _verified_lock:
        _verified.add((path, shard.content))


class _ParquetReader:
    """One Parquet file, memory-mapped, page checksums verified where the file has them."""

    def __init__(self, path: str, columns: tuple[Column, ...]) -> None:
        self._path = path
        self._columns = columns
        self._file = pq.ParquetFile(path, memory_map=True, page_checksum_verification=True)
        tops = {c.name.partition(".")[0] for c in columns}
        names = self._file.schema_arrow.names
        self._flatten = [c.name for c in columns if c.name not in names]
        self._wanted = [n for n in names if n in tops]

    def read(self, row_group: int) -> Chunk:
        """See ShardReader."""
        rows = self._file.metadata.row_group(row_group).num_rows
        try:
            table = self._file.read_row_group(row_group, columns=self._wanted, use_threads=False)
            return self._chunk(table, rows)
        except (pa.ArrowException, OSError, ConvertError, UnicodeDecodeError) as error:
            raise self._error(row_group, error) from error

    def stream(self, row_group: int, batch_rows: int) -> Iterator[Chunk]:
        """See ShardReader."""
        batches = self._file.iter_batches(batch_rows, row_groups=[row_group], columns=self._wanted, use_threads=False)
        while True:
            try:
                batch = next(batches, None)
                if batch is None:
                    return
                chunk = self._chunk(pa.Table.from_batches([batch]), batch.num_rows)
            except (pa.ArrowException, OSError, ConvertError, UnicodeDecodeError) as error:
                raise self._error(row_group, error) from error
            yield chunk

    def _chunk(self, table: pa.Table, rows: int) -> Chunk:
        if self._flatten:
            table = table.flatten()
        return to_chunk(self._columns, [table.column(c.name) for c in self._columns], rows)

    def _error(self, row_group: int, error: Exception) -> DataError:
        return DataError(f"shard {self._path}, row group {row_group} cannot be decoded: {error}; {_REMEDY}")

    def close(self) -> None:
        """See ShardReader."""
        self._file.close()


class _ArrowReader:
    """One Arrow IPC file; its record batches are the row groups. Batches are validated: files are untrusted."""

    def __init__(self, path: str, columns: tuple[Column, ...]) -> None:
        self._path = path
        self._columns = columns
        self._map = pa.memory_map(path)
        self._file = pa.ipc.open_file(self._map)

    def read(self, row_group: int) -> Chunk:
        """See ShardReader."""
        try:
            batch = self._file.get_batch(row_group)
            batch.validate(full=True)
            table = pa.Table.from_batches([batch])
            if any(c.name not in table.column_names for c in self._columns):
                table = table.flatten()
            return to_chunk(self._columns, [table.column(c.name) for c in self._columns], batch.num_rows)
        except (pa.ArrowException, OSError, ConvertError, UnicodeDecodeError) as error:
            raise DataError(f"shard {self._path}, batch {row_group} cannot be decoded: {error}; {_REMEDY}") from error

    def stream(self, row_group: int, batch_rows: int) -> Iterator[Chunk]:
        """See ShardReader; a mapped batch costs no memory, so it comes whole."""
        del batch_rows
        yield self.read(row_group)

    def close(self) -> None:
        """See ShardReader."""
        self._map.close()
