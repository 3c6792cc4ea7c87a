"""A remote object as a file for pyarrow: reads come from ranges that are held already, or from the store.

Called by `remote` and the indexer. One thread at a time. It is a Python file, so pyarrow takes the GIL for each read;
a column chunk is one read.
"""

import io
from bisect import bisect_right
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from lanefeed_core.layout import Column
from lanefeed_sidecar.sources.stores import RemoteObject

__all__ = ["Held", "RangeFile", "coalesce", "column_ranges"]

#: (start, bytes)
Held = tuple[int, memoryview]
#: Bytes between two column chunks that are read along rather than asked for apart.
_HOLE = 256 << 10


class RangeFile:
    """Read only, of `size` bytes, one version."""

    def __init__(self, remote: RemoteObject, size: int, version: str, held: Sequence[Held] = ()) -> None:
        """`held`: sorted ranges that are there for good, such as the footer."""
        self._remote, self._size, self._version = remote, size, version
        self._always = list(held)
        self._held = self._always
        self._at = 0
        self.closed = False

    def hold(self, ranges: Sequence[Held]) -> None:
        """Serve reads from these ranges too, until the next call."""
        self._held = sorted([*self._always, *ranges], key=lambda one: one[0]) if ranges else self._always

    def read_buffer(self, size: int = -1) -> pa.Buffer:
        """What pyarrow calls: the next bytes, not copied where they are held."""
        size = max(0, min(size if size >= 0 else self._size, self._size - self._at))
        start, self._at = self._at, self._at + size
        if not size:
            return pa.py_buffer(b"")
        index = bisect_right(self._held, start, key=lambda one: one[0]) - 1
        if index >= 0:
            first, view = self._held[index]
            if start + size <= first + len(view):
                return pa.py_buffer(view[start - first : start - first + size])
        return pa.py_buffer(self._remote.read(start, size, self._version))

    def read_at(self, start: int, into: memoryview) -> int:
        """Fill a buffer with the bytes from `start`; how many came. For readers that are not pyarrow's."""
        self._at = start
        data = memoryview(self.read_buffer(len(into))).cast("B")
        into[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        return self.read_buffer(size).to_pybytes()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """See io.IOBase."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """See io.IOBase."""
        return self._at

    def readable(self) -> bool:
        """See io.IOBase."""
        return True

    def seekable(self) -> bool:
        """See io.IOBase."""
        return True

    def writable(self) -> bool:
        """See io.IOBase."""
        return False

    def close(self) -> None:
        """See io.IOBase."""
        self.closed = True
        self._held = self._always = []


def column_ranges(metadata: pq.FileMetaData, group: int, columns: Sequence[Column]) -> list[tuple[int, int]]:
    """(start, length) of the chunks of the delivered columns in a row group, coalesced."""
    wanted = [column.name for column in columns]
    found = []
    about = metadata.row_group(group)
    for index in range(about.num_columns):
        chunk = about.column(index)
        path = chunk.path_in_schema
        if not any(path == name or path.startswith(f"{name}.") for name in wanted):
            continue
        start, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
        if dictionary and 0 < dictionary < start:
            start = dictionary
        found.append((start, chunk.total_compressed_size))
    return coalesce(found)


def coalesce(ranges: list[tuple[int, int]], hole: int = _HOLE) -> list[tuple[int, int]]:
    """Ranges joined where at most `hole` bytes lie between them."""
    made: list[tuple[int, int]] = []
    for start, length in sorted(ranges):
        if made and start <= made[-1][0] + made[-1][1] + hole:
            first = made[-1][0]
            made[-1] = (first, max(made[-1][1], start + length - first))
        else:
            made.append((start, length))
    return made
