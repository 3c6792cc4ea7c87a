"""What a row group of a Parquet file decodes to, found out before any memory is taken for it.

A footer cannot be believed: it says encoded sizes (a column of one repeated string is a few bytes), and whoever made
the file may lie. Here the pages' own headers are walked, which is what the decoder goes by: a page that would
decompress to more than is allowed is an error, list columns are as large as their pages' values, and of strings that
are stored as a dictionary the numbers of the dictionary's entries are read, not the strings. Called once for each row
group by the decode threads, through `reader`; it takes a few microseconds a page. Rows of flat columns take what their
type takes: of these only pages that could be bombs are looked at. Of lists that are large together the longest one is
found by the pages' levels: a billion numbers in one row may be a few bytes.
"""

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lanefeed_core.layout import Column
from lanefeed_sidecar.formats import compact, levels
from lanefeed_sidecar.formats.convert import ConvertError
from lanefeed_sidecar.formats.types import PHYSICAL_BYTES
from lanefeed_sidecar.formats.whole_lists import ReadAt

__all__ = ["Weigher", "Weight", "dictionary_columns", "string_lengths"]

#: What a byte may decompress to, at most; of other codecs anything.
_RATIOS = {"UNCOMPRESSED": 1, "SNAPPY": 22, "LZ4": 256, "LZ4_RAW": 256, "GZIP": 1033}
_ANY = 1 << 20
#: PageType and Encoding in parquet.thrift.
_DICTIONARY_PAGE, _DATA_V2 = 2, 3
_BY_DICTIONARY = (2, 8)
#: First bytes of a page that are read for its header; more where statistics hold long strings.
_HEADER_BYTES = 512
_LONGEST_HEADER = 1 << 20
#: Strings are not measured where they cannot be larger than this.
_SMALL_BYTES = 4 << 20
_MEASURED_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Weight:
    """Bytes that a row group's ragged columns decode to, and those of its largest pages, one for each column."""

    nbytes: int
    pages: int


@dataclass(slots=True)
class _Leaf:
    """A leaf column that is delivered."""

    index: int
    column: Column
    physical: str
    path: str
    #: Deepest repetition level; 0: no list.
    most_repeated: int

    @property
    def repeated(self) -> bool:
        """Whether it is in a list."""
        return self.most_repeated > 0


@dataclass(frozen=True, slots=True)
class _Page:
    """A page whose header was read: where its body begins, its sizes, and what the header says of its values."""

    kind: object
    at: int
    packed: int
    unpacked: int
    data: dict[int, Any] | None


@dataclass(slots=True)
class _Walk:
    """Sums over a column chunk's pages."""

    largest: int = 0
    dictionary: int = 0
    values: int = 0
    #: Values that are numbers of dictionary entries, and bytes of pages that hold values themselves.
    coded: int = 0
    plain: int = 0


class Weigher:
    """Weighs the row groups of one file. Used by one thread."""

    def __init__(
        self, file: pq.ParquetFile, columns: tuple[Column, ...], read_at: ReadAt, again: Callable[[], pq.ParquetFile]
    ) -> None:
        """`read_at`: bytes of the file; `again`: the file opened once more, strings as dictionaries."""
        self._file, self._read_at, self._again = file, read_at, again
        self._leaves = []
        for index in range(len(file.schema)):
            leaf = file.schema.column(index)
            column = next((c for c in columns if leaf.path == c.name or leaf.path.startswith(f"{c.name}.")), None)
            if column is not None:
                self._leaves.append(_Leaf(index, column, leaf.physical_type, leaf.path, leaf.max_repetition_level))

    def weigh(self, row_group: int, most: int, passed: Set[str] = frozenset()) -> Weight:
        """Of the columns but for those that are `passed` over.

        Raises ConvertError where a page decompresses to more than `most` bytes; OSError, ValueError, IndexError.
        """
        total = pages = 0
        group = self._file.metadata.row_group(row_group)
        for leaf in self._leaves:
            if leaf.column.name in passed:
                continue
            about = group.column(leaf.index)
            text = leaf.physical == "BYTE_ARRAY"
            bomb = _RATIOS.get(about.compression, _ANY) * about.total_compressed_size > most
            if not (text or leaf.repeated or bomb):
                pages += min(about.total_uncompressed_size, most)
                continue
            walk = self._walk(leaf, about, most)
            pages += walk.largest + walk.dictionary
            if text:
                total += walk.plain + self._coded(leaf, row_group, walk)
            elif leaf.repeated:
                nbytes = walk.values * PHYSICAL_BYTES.get(leaf.physical, leaf.column.itemsize)
                if nbytes > most:
                    self._check_longest(leaf, about, most)
                total += nbytes
        return Weight(total, pages)

    def _check_longest(self, leaf: _Leaf, about: pq.ColumnChunkMetaData, most: int) -> None:
        """No row may have more than `most` bytes: a decoder makes a row at a time, at least."""
        codec = None if about.compression == "UNCOMPRESSED" else pa.Codec(about.compression.lower())
        found = carried = 0
        for page in self._pages(leaf, about, most):
            if page.kind == _DICTIONARY_PAGE or page.data is None:
                continue
            raw = bytearray(page.packed)
            body: bytes | memoryview = memoryview(raw)[: self._read_at(page.at, memoryview(raw))]
            if page.kind == _DATA_V2:
                repetition = bytes(body[: int(page.data.get(6, 0))])
            else:
                if codec is not None:
                    body = memoryview(codec.decompress(body, page.unpacked))
                repetition = bytes(body[4 : 4 + int.from_bytes(body[:4], "little")])
            longest, carried = levels.longest(
                repetition, int(page.data.get(1, 0)), leaf.most_repeated.bit_length(), carried
            )
            found = max(found, longest)
        nbytes = found * PHYSICAL_BYTES.get(leaf.physical, leaf.column.itemsize)
        if nbytes > most:
            raise ConvertError(
                f"column {leaf.column.name} has a row of {found} numbers, which take {nbytes} bytes, and "
                f"sidecar.readAheadBytes allows {most} for one: raise it, or leave the column out with data.columns"
            )

    def _walk(self, leaf: _Leaf, about: pq.ColumnChunkMetaData, most: int) -> _Walk:
        found = _Walk()
        for page in self._pages(leaf, about, most):
            if page.kind == _DICTIONARY_PAGE:
                found.dictionary = page.unpacked
                continue
            found.largest = max(found.largest, page.unpacked)
            if page.data is None:
                continue
            count, encoding = int(page.data.get(1, 0)), int(page.data.get(4 if page.kind == _DATA_V2 else 2, 0))
            found.values += max(0, count)
            if encoding in _BY_DICTIONARY:
                found.coded += max(0, count)
            else:
                found.plain += page.unpacked
        return found

    def _pages(self, leaf: _Leaf, about: pq.ColumnChunkMetaData, most: int) -> Iterator[_Page]:
        at, values = about.data_page_offset, 0
        if about.has_dictionary_page and about.dictionary_page_offset:
            at = min(at, about.dictionary_page_offset)
        end = at + about.total_compressed_size
        while at < end and values < about.num_values:
            header, size = self._header(at, end)
            kind, packed, unpacked = header.get(1), header.get(3), header.get(2)
            if not isinstance(packed, int) or not isinstance(unpacked, int) or min(packed, unpacked) < 0:
                raise ConvertError(f"column {leaf.column.name} has a page without sizes at byte {at}")
            if unpacked > most:
                raise ConvertError(
                    f"column {leaf.column.name} has a page at byte {at} that decompresses to {unpacked} bytes, and "
                    f"sidecar.readAheadBytes allows {most} for one: write pages of about 1 MiB, or raise it"
                )
            data = header.get(8 if kind == _DATA_V2 else 5)
            page = _Page(
                kind, at + size, min(packed, end - at - size), unpacked, data if isinstance(data, dict) else None
            )
            values += max(0, int(page.data.get(1, 0))) if page.data and kind != _DICTIONARY_PAGE else 0
            at += size + packed
            yield page

    def _header(self, at: int, stop: int) -> tuple[dict[int, object], int]:
        """(fields, bytes) of the page header at `at`, in a column chunk that ends at `stop`: nothing beyond is read."""
        size = min(_HEADER_BYTES, stop - at)
        while True:
            raw = bytearray(size)
            got = self._read_at(at, memoryview(raw))
            try:
                header, end = compact.read_struct(memoryview(raw)[:got], 0)
                return header, end
            except (IndexError, ValueError):
                if got < size or size >= min(_LONGEST_HEADER, stop - at):
                    raise
                size = min(16 * size, stop - at)

    def _coded(self, leaf: _Leaf, row_group: int, walk: _Walk) -> int:
        """Bytes of the strings that are numbers of dictionary entries."""
        bound = walk.coded * walk.dictionary
        if bound <= _SMALL_BYTES:
            return bound
        with self._again() as file:
            total = rows = 0
            # Pages that hold strings themselves follow those with numbers, and are counted already.
            for batch in file.iter_batches(
                _MEASURED_ROWS, row_groups=[row_group], columns=[leaf.path], use_threads=False
            ):
                if rows >= walk.coded:
                    break
                array = batch.column(0)
                if pa.types.is_struct(array.type):
                    array = array.flatten()[0]
                total += int(string_lengths(array)[: walk.coded - rows].sum())
                rows += batch.num_rows
            return total


def dictionary_columns(schema: pq.ParquetSchema) -> list[str]:
    """Paths of the string and binary columns, for pq.ParquetFile's `read_dictionary`."""
    leaves = (schema.column(index) for index in range(len(schema)))
    return [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY" and not leaf.max_repetition_level]


def string_lengths(array: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Bytes of each row of a string column read as a dictionary; nulls have none."""
    if not pa.types.is_dictionary(array.type):
        return np.zeros(len(array), np.int64)
    entries = array.dictionary.cast(pa.large_binary())
    offsets = np.frombuffer(entries.buffers()[1], np.int64)[entries.offset : entries.offset + len(entries) + 1]
    lengths = np.append(np.diff(offsets), 0)
    numbers = array.indices.fill_null(len(entries)).to_numpy(zero_copy_only=False)
    if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) <= len(entries):
        raise ConvertError(f"an entry of the dictionary does not exist (there are {len(entries)})")
    found: np.ndarray[tuple[int], np.dtype[np.int64]] = lengths[numbers].astype(np.int64)
    return found
