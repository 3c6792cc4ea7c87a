"""Readers of shards that lie in stores: the footer and the chunks of the wanted columns, by a few ranged reads.

Called by the pipeline through `RemoteShards`: fetch threads `fetch` the row groups that are needed next, decode
threads `open` readers, which take what was fetched. A shard is read in the one version that the manifest pins.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from lanefeed_core.layout import Column
from lanefeed_core.manifest import Manifest, Shard
from lanefeed_sidecar.errors import DataError, SidecarError
from lanefeed_sidecar.formats.chunk import Chunk
from lanefeed_sidecar.formats.footer import FooterError, footer_bytes
from lanefeed_sidecar.formats.identity import REMEDY
from lanefeed_sidecar.formats.packed import packed, stored_columns
from lanefeed_sidecar.formats.ranges import Held, RangeFile, column_ranges
from lanefeed_sidecar.formats.reader import DECODE_ERRORS, ArrowReader, ParquetReader, ShardReader
from lanefeed_sidecar.formats.weigh import Weight
from lanefeed_sidecar.sources.names import join
from lanefeed_sidecar.sources.reads import Counters, Settings
from lanefeed_sidecar.sources.stores import RemoteObject, Stores

__all__ = ["RemoteFooter", "RemoteShards", "content_digest", "open_alone", "read_footer"]

#: Read at once from the end of a file: most footers are smaller.
TAIL_BYTES = 64 << 10
#: Footers that are kept, parsed.
_FOOTERS = 256
_BLOCK = 32 << 20
_FOOTER_TRIES = 3


@dataclass(frozen=True, slots=True)
class RemoteFooter:
    """The end of a remote file: its footer, and whatever came with it. `kind`: "parquet" or "arrow"."""

    kind: str
    size: int
    version: str
    held: Held
    fingerprint: str

    def file(self, remote: RemoteObject) -> RangeFile:
        """The object as a file whose footer costs no further read."""
        return RangeFile(remote, self.size, self.version, [self.held])


def read_footer(remote: RemoteObject, size: int, version: str) -> RemoteFooter:
    """One read, or two where the footer is large. Raises FooterError, DataError."""
    start = max(0, size - TAIL_BYTES)
    tail = remote.read(start, size - start, version)
    end = bytes(tail[-10:])
    kind = "parquet" if end.endswith(b"PAR1") else "arrow" if end.endswith(b"ARROW1") else ""
    if not kind:
        raise FooterError("it does not end like a Parquet or an Arrow file" if size else "it is empty")
    length, after = footer_bytes(end, size, kind)
    first = size - after - length
    if first < start:
        tail = memoryview(bytes(remote.read(first, start - first, version)) + bytes(tail))
        start = first
    found = str(xxhash.xxh3_128_hexdigest(tail[first - start : first - start + length]))
    return RemoteFooter(kind, size, version, (start, tail), found)


def content_digest(remote: RemoteObject, size: int, version: str) -> str:
    """xxh3-64 of the whole object, 16 hex digits."""
    digest = xxhash.xxh3_64()
    for start in range(0, size, _BLOCK):
        digest.update(remote.read(start, min(_BLOCK, size - start), version))
    return str(digest.hexdigest())


@dataclass(frozen=True, slots=True)
class _Opened:
    """A shard whose identity was checked."""

    remote: RemoteObject
    footer: RemoteFooter
    metadata: pq.FileMetaData | None


class RemoteShards:
    """All shards of a manifest. Thread safe; readers belong to one thread each."""

    def __init__(
        self,
        manifest: Manifest,
        columns: tuple[Column, ...],
        counters: Counters | None = None,
        settings: Settings | None = None,
    ) -> None:
        """Asks nothing yet."""
        self._manifest, self._columns = manifest, stored_columns(manifest, columns)
        self._stores = Stores(counters, settings)
        self._lock = threading.Lock()
        self._opened: OrderedDict[int, _Opened] = OrderedDict()
        self._verified: set[int] = set()
        self._fetched: dict[tuple[int, int], list[Held] | SidecarError] = {}

    # ---- fetch threads -----------------------------------------------------------------------------------------

    @property
    def ahead(self) -> bool:
        """Whether row groups can be fetched before they are decoded: an Arrow file does not say where they lie."""
        return self._manifest.format == "parquet"

    def cost(self, shard: int, group: int) -> int:
        """Bytes that fetching the row group takes, about: its share of the file."""
        about = self._manifest.shards[shard]
        return int(about.size * about.row_groups[group] / max(1, about.rows))

    def fetch(self, shard: int, group: int) -> None:
        """Read the row group's column chunks and hold them until a reader takes them; an error is held too."""
        found: list[Held] | SidecarError
        try:
            found = self._read(shard, group)
        except SidecarError as error:
            found = error
        with self._lock:
            self._fetched[shard, group] = found

    def forget(self, shard: int, group: int) -> None:
        """Nobody takes it any more."""
        with self._lock:
            self._fetched.pop((shard, group), None)

    def _read(self, shard: int, group: int) -> list[Held]:
        opened = self._open(shard)
        if opened.metadata is None:
            return []
        ranges = column_ranges(opened.metadata, group, self._columns)
        size = opened.footer.size
        for start, length in ranges:
            if start < 0 or length < 0 or start + length > size:
                raise DataError(
                    f"shard {opened.remote.name}, row group {group} cannot be read: its footer says bytes {start} to "
                    f"{start + length} and it has {size}; {REMEDY}"
                )
        # What came with the footer is there already: small files are one read.
        ranges = [(start, length) for start, length in ranges if start < opened.footer.held[0]]
        views = opened.remote.read_all(ranges, opened.footer.version)
        return [(start, view) for (start, _), view in zip(ranges, views, strict=True)]

    # ---- decode threads ----------------------------------------------------------------------------------------

    def take(self, shard: int, group: int) -> list[Held]:
        """The row group's bytes, read now if they were not fetched. Raises DataError."""
        with self._lock:
            found = self._fetched.pop((shard, group), None)
        if isinstance(found, SidecarError):
            raise found
        return found if found is not None else self._read(shard, group)

    def open(self, manifest: Manifest, shard: int, columns: tuple[Column, ...]) -> ShardReader:
        """A reader of one shard; what `formats.open_shard` is for local ones."""
        return packed(self.open_stored(manifest, shard, stored_columns(manifest, columns)), manifest, shard)

    def open_stored(self, manifest: Manifest, shard: int, columns: tuple[Column, ...]) -> ShardReader:
        """A reader of one shard's own rows; what `reader.open_shard` is for local ones."""
        opened = self._open(shard)
        rows = manifest.shards[shard].file_rows
        file = opened.footer.file(opened.remote)
        path = str(opened.remote.name)
        source = pa.PythonFile(file, mode="r")

        def again() -> pa.NativeFile:
            return pa.PythonFile(opened.footer.file(opened.remote), mode="r")

        try:
            if opened.metadata is None:
                return ArrowReader(path, rows, columns, source)
            reader = ParquetReader(path, rows, columns, source, opened.metadata, file.read_at, again)
            return _Reader(reader, file, self, shard)
        except DECODE_ERRORS as error:
            raise DataError(f"shard {path} cannot be opened: {error}; {REMEDY}") from error

    def _open(self, shard: int) -> _Opened:
        with self._lock:
            opened = self._opened.pop(shard, None)
            if opened is not None:
                self._opened[shard] = opened
                return opened
        about = self._manifest.shards[shard]
        remote = self._stores.object(join(self._manifest.root, about.path))
        opened = _identify(remote, about, self._manifest.format)
        self._check_content(shard, opened)
        with self._lock:
            self._opened[shard] = opened
            while len(self._opened) > _FOOTERS:
                self._opened.popitem(last=False)
        return opened

    def _check_content(self, shard: int, opened: _Opened) -> None:
        wanted = self._manifest.shards[shard].content
        if not wanted or shard in self._verified:
            return
        found = content_digest(opened.remote, opened.footer.size, opened.footer.version)
        if found != wanted:
            raise DataError(
                f"shard {opened.remote.name} is corrupt: its digest is {found} and the manifest says {wanted}; {REMEDY}"
            )
        self._verified.add(shard)

    def close(self) -> None:
        """Cut all reads."""
        self._stores.close()
        with self._lock:
            self._fetched.clear()
            self._opened.clear()


def _identify(remote: RemoteObject, shard: Shard, kind: str) -> _Opened:
    """Read the footer and compare it with the manifest's. Raises DataError."""
    # Only these say with each answer which version it is of; of others the size is asked for.
    says_versions = remote.name.scheme in ("s3", "http", "https")
    size = shard.size if says_versions else remote.stat().size
    if size != shard.size:
        raise _replaced(remote, f"it has {size} bytes and had {shard.size}")
    version = shard.etag if says_versions else ""
    footer = _whole_footer(remote, shard, kind, size, version)
    if kind != "parquet":
        return _Opened(remote, footer, None)
    try:
        return _Opened(remote, footer, pq.read_metadata(pa.PythonFile(footer.file(remote), mode="r")))
    except DECODE_ERRORS as error:
        raise DataError(f"shard {remote.name} cannot be opened: {error}; {REMEDY}") from error


def _whole_footer(remote: RemoteObject, shard: Shard, kind: str, size: int, version: str) -> RemoteFooter:
    """The footer, if it is the manifest's. Raises DataError."""
    for left in range(_FOOTER_TRIES - 1, -1, -1):
        try:
            footer = read_footer(remote, size, version)
            if (footer.kind, footer.fingerprint) == (kind, shard.fingerprint):
                return footer
            what = f"its footer is {footer.fingerprint} and was {shard.fingerprint}"
        except FooterError as error:
            what = str(error)
        if not version or not left:
            break
        # The store says that it is the version that was indexed: then what came was damaged on its way.
        remote.damaged()
    raise _replaced(remote, what)


def _replaced(remote: RemoteObject, what: str) -> DataError:
    return DataError(f"shard {remote.name} was replaced since the manifest was made: {what}; {REMEDY}")


def open_alone(manifest: Manifest, shard: int, columns: tuple[Column, ...]) -> ShardReader:
    """A reader that has its stores to itself."""
    shards = RemoteShards(manifest, columns)
    try:
        return _Alone(shards.open_stored(manifest, shard, columns), shards)
    except BaseException:
        shards.close()
        raise


class _Alone:
    """Closes the stores with the reader."""

    def __init__(self, reader: ShardReader, shards: RemoteShards) -> None:
        self.read, self.stream, self.weigh = reader.read, reader.stream, reader.weigh
        self._reader, self._shards = reader, shards

    def close(self) -> None:
        """See ShardReader."""
        self._reader.close()
        self._shards.close()


class _Reader:
    """A Parquet reader whose row groups are read whole before they are decoded."""

    def __init__(self, reader: ParquetReader, file: RangeFile, shards: RemoteShards, shard: int) -> None:
        self._reader, self._file, self._shards, self._shard = reader, file, shards, shard

        #: Row group whose bytes are held, since it was weighed.
        self._holds = -1

    def weigh(self, row_group: int, most: int) -> Weight:
        """See ShardReader. What it takes from the store is kept for `read`, which follows.

        One that is large even compressed is not weighed, as all of it would have to be held: it is streamed anyhow.
        """
        if self._shards.cost(self._shard, row_group) > most:
            return Weight(0, 0)
        self._hold(row_group)
        return self._reader.weigh(row_group, most)

    def read(self, row_group: int) -> Chunk:
        """See ShardReader."""
        self._hold(row_group)
        try:
            return self._reader.read(row_group)
        finally:
            self._holds = -1
            self._file.hold(())

    def _hold(self, row_group: int) -> None:
        if self._holds != row_group:
            self._holds = -1
            self._file.hold(self._shards.take(self._shard, row_group))
            self._holds = row_group

    def stream(self, row_group: int, batch_rows: int) -> Iterator[Chunk]:
        """See ShardReader. Too large to be held: it is read as it is decoded, a little at a time."""
        self._holds = -1
        self._file.hold(())
        return self._reader.stream(row_group, batch_rows)

    def close(self) -> None:
        """See ShardReader."""
        self._reader.close()
