"""Readers of shards with image columns: what they read stays encoded until a row is put in its place.

Wraps the readers of `reader` and `remote`, which read the column as the binary one that it is in the file; `delivery`
puts it around them. Adds to every error which shard, row group and row it was, and what to do.
"""

from collections.abc import Generator, Iterator, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from lanefeed_sidecar.errors import DataError
from lanefeed_sidecar.formats.chunk import Chunk, Lazy, RaggedChunk
from lanefeed_sidecar.formats.images import ImageDecodeError, ImageDecoder
from lanefeed_sidecar.formats.reader import ShardReader
from lanefeed_sidecar.formats.weigh import Weight

__all__ = ["ImageReader"]


class ImageReader:
    """One shard, some of whose columns are images."""

    def __init__(self, reader: ShardReader, path: str, decoders: Mapping[int, ImageDecoder]) -> None:
        """`decoders` by the index of their column; `path` for messages."""
        self._reader, self._path, self._decoders = reader, path, decoders

    def read(self, row_group: int) -> Chunk:
        """See ShardReader."""
        return self._lazy(self._reader.read(row_group), row_group, 0)

    def weigh(self, row_group: int, most: int) -> Weight:
        """See ShardReader. Of what is in the file: pixels are made in windows, which are counted as what they hold."""
        return self._reader.weigh(row_group, most)

    def stream(self, row_group: int, batch_rows: int) -> Iterator[Chunk]:
        """See ShardReader."""
        chunks = self._reader.stream(row_group, batch_rows)
        first = 0
        try:
            for chunk in chunks:
                yield self._lazy(chunk, row_group, first)
                first += chunk.rows
        finally:
            if isinstance(chunks, Generator):
                chunks.close()

    def _lazy(self, chunk: Chunk, row_group: int, first: int) -> Chunk:
        for index, decoder in self._decoders.items():
            column = chunk.columns[index]
            if isinstance(column, RaggedChunk):
                make = partial(self._make, decoder, column, row_group, first)
                chunk.lazy[index] = Lazy(decoder.spec.shape, make)
        return chunk

    def _make(
        self,
        decoder: ImageDecoder,
        column: RaggedChunk,
        row_group: int,
        first: int,
        row: int,
        out: NDArray[np.uint8],
    ) -> None:
        data = column.values[column.offsets[row] : column.offsets[row + 1]].tobytes()
        try:
            decoder.decode(data, out)
        except ImageDecodeError as error:
            raise DataError(
                f"shard {self._path}, row group {row_group}, row {first + row}: the image in column "
                f"{decoder.spec.column} cannot be delivered: {error}; repair the row or leave it out, make a new "
                "manifest with `lanefeed index` and start a new job"
            ) from None

    def close(self) -> None:
        """See ShardReader."""
        self._reader.close()
