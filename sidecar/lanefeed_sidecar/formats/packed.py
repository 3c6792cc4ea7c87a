"""Readers of packed datasets: documents in, sequences out.

Wraps any reader of documents (local, remote, Parquet, Arrow) where the manifest says that they are packed; called by
`formats.open_shard` and by `remote`. What a row group gives is a function of that row group alone
(`lanefeed_core.pack`) and must be as many sequences as the indexer counted, which reads the same column by
`documents_of`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lanefeed_core.layout import Column
from lanefeed_core.manifest import Field, Manifest, Shard
from lanefeed_core.pack import Packed, Packer, pack
from lanefeed_core.packing import Packing
from lanefeed_sidecar.errors import ConfigError, DataError
from lanefeed_sidecar.formats.chunk import Chunk, ChunkColumn, FixedChunk, RaggedChunk
from lanefeed_sidecar.formats.identity import REMEDY
from lanefeed_sidecar.formats.reader import ShardReader
from lanefeed_sidecar.formats.reader import open_shard as open_stored
from lanefeed_sidecar.formats.types import Unsupported, column_of
from lanefeed_sidecar.formats.weigh import Weight
from lanefeed_sidecar.sources.names import join

__all__ = ["document_column", "documents_of", "open_shard", "packed", "packed_columns", "stored_columns"]


def open_shard(manifest: Manifest, shard_index: int, columns: tuple[Column, ...]) -> ShardReader:
    """Open a shard for the given columns as delivered: its rows, or the sequences that its documents are packed into.

    Raises DataError if it is gone, replaced, or its content digest is wrong.
    """
    return packed(open_stored(manifest, shard_index, stored_columns(manifest, columns)), manifest, shard_index)


def packed_columns(packing: Packing, selected: tuple[str, ...], images: Sequence[object] = ()) -> tuple[Column, ...]:
    """What is delivered. Raises ConfigError where other columns are asked for."""
    if images:
        raise ConfigError("data.images cannot be delivered with batching.layout Packed: leave one of them out")
    others = [name for name in selected if name != packing.column]
    if others:
        raise ConfigError(
            f"data.columns names {', '.join(others)}, which cannot be delivered with batching.layout Packed: "
            f"a sequence holds tokens of several documents; leave data.columns out ({packing.column!r} is packed)"
        )
    return packing.columns()


def stored_columns(manifest: Manifest, columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """The columns that are read from files so that `columns` can be delivered."""
    return columns if manifest.packing is None else (document_column(manifest.fields, manifest.packing),)


def document_column(fields: tuple[Field, ...], packing: Packing) -> Column:
    """The column of documents, as it is in the files."""
    field = next((f for f in fields if f.name == packing.column), None)
    made = column_of(field.name, field.type, nullable=field.nullable) if field else None
    if made is None or isinstance(made, Unsupported):
        raise DataError(
            f"the manifest packs column {packing.column!r}, which it does not have as a list of numbers: make it again "
            "with `lanefeed index`"
        )
    return made


def packed(reader: ShardReader, manifest: Manifest, shard: int) -> ShardReader:
    """A reader that gives the manifest's samples; `reader` gives what is in the file."""
    return reader if manifest.packing is None else _PackedReader(reader, manifest, shard, manifest.packing)


def documents_of(column: ChunkColumn) -> RaggedChunk:
    """A column as documents: lists of one length are documents too, and null ones have no token."""
    if isinstance(column, RaggedChunk):
        return column
    rows = len(column.values)
    values = column.values.reshape(rows, -1)
    lengths = np.full(rows, values.shape[1] if rows else 0, np.int64)
    if column.validity is not None:
        values, lengths = values[column.validity != 0], lengths * column.validity
    return RaggedChunk(values.reshape(-1), np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]))


class _PackedReader:
    """A shard's row groups as sequences."""

    def __init__(self, reader: ShardReader, manifest: Manifest, shard: int, packing: Packing) -> None:
        """`reader`: of the documents, opened for `stored_columns`."""
        self._reader, self._packing = reader, packing
        self._shard: Shard = manifest.shards[shard]
        self._path = join(manifest.root, self._shard.path)

    def read(self, row_group: int) -> Chunk:
        """See ShardReader."""
        documents = documents_of(self._reader.read(row_group).columns[0])
        self._check_type(documents, row_group)
        made = pack(documents.values, documents.offsets, self._packing, _empty)
        self._check_count(made.count, row_group)
        return _chunk(made)

    def weigh(self, row_group: int, most: int) -> Weight:
        """See ShardReader. Both are in memory while they are packed: the documents, and the sequences made of them."""
        return self._reader.weigh(row_group, most)

    def stream(self, row_group: int, batch_rows: int) -> Iterator[Chunk]:
        """See ShardReader."""
        wanted, documents = self._shard.row_groups[row_group], self._shard.documents[row_group]
        machine, count = Packer(self._packing, _empty), 0
        none = RaggedChunk(np.zeros(0, self._packing.dtype), np.zeros(1, np.int64))
        for piece in self._reader.stream(row_group, max(1, documents * batch_rows // max(1, wanted))):
            found = documents_of(piece.columns[0])
            self._check_type(found, row_group)
            made = machine.add(found.values, found.offsets, last=False)
            del piece, found
            count += made.count
            if count > wanted:
                self._check_count(count, row_group)
            yield from _cut(made, batch_rows)
        made = machine.add(none.values, none.offsets, last=True)
        self._check_count(count + made.count, row_group)
        yield from _cut(made, batch_rows)

    def close(self) -> None:
        """See ShardReader."""
        self._reader.close()

    def _check_type(self, documents: RaggedChunk, row_group: int) -> None:
        if documents.values.dtype != np.dtype(self._packing.dtype):
            raise DataError(
                f"shard {self._path}, row group {row_group} holds tokens of {documents.values.dtype} and the manifest "
                f"says {self._packing.dtype}; {REMEDY}"
            )

    def _check_count(self, count: int, row_group: int) -> None:
        wanted = self._shard.row_groups[row_group]
        if count != wanted:
            raise DataError(
                f"shard {self._path}, row group {row_group} has documents for {count} sequences of "
                f"{self._packing.sequence_length} tokens and the manifest says {wanted}; {REMEDY}"
            )


def _empty(count: int, dtype: "np.dtype[Any]") -> NDArray[np.generic]:
    """Memory of Arrow's pool, which keeps what was let go of: NumPy's is fresh each time, and its pages cost more than
    the copy into them.
    """
    values: NDArray[np.generic] = np.frombuffer(pa.allocate_buffer(count * dtype.itemsize), dtype)
    return values


def _chunk(made: Packed) -> Chunk:
    columns: list[ChunkColumn] = [FixedChunk(made.tokens), FixedChunk(made.lengths)]
    if made.documents is not None and made.positions is not None:
        columns += [FixedChunk(made.documents), FixedChunk(made.positions)]
    return Chunk(made.count, columns)


def _cut(made: Packed, rows: int) -> Iterator[Chunk]:
    """In pieces of at most `rows` sequences."""
    for low in range(0, made.count, rows):
        part = slice(low, low + rows)
        yield _chunk(
            Packed(
                made.tokens[part],
                made.lengths[part],
                None if made.documents is None else made.documents[part],
                None if made.positions is None else made.positions[part],
            )
        )
