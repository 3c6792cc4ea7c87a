"""Reads one remote shard's footer, mostly by one ranged read. Called by `build` in threads; `scan` is for local files.

A store that cannot be reached is no bad shard: it ends the indexing with its own words, whatever the policy.
"""

import zlib

import pyarrow as pa
import pyarrow.parquet as pq

from lanefeed_core.manifest import Shard
from lanefeed_sidecar.formats.footer import page_has_checksum
from lanefeed_sidecar.formats.ranges import RangeFile
from lanefeed_sidecar.formats.remote import content_digest, read_footer
from lanefeed_sidecar.index.scan import SCAN_ERRORS, Scanned, bad_shard, scan_arrow, scan_parquet
from lanefeed_sidecar.sources.objects import ObjectInfo
from lanefeed_sidecar.sources.stores import Stores

__all__ = ["REMOTE_THREADS", "remote_digest", "scan_remote"]

#: Footers of a store are waited for, not computed.
REMOTE_THREADS = 32
#: One file of so many is asked whether its pages carry checksums: it is a read of its own.
_ASKED = 16


def scan_remote(path: str, stores: Stores, known: ObjectInfo | None) -> Scanned:
    """Read the footer of an object. Raises BadShard, DataError where the store does not give it."""
    remote = stores.object(path)
    if known is None or known.size < 0:
        known = remote.stat()
    try:
        footer = read_footer(remote, known.size, known.version if remote.name.scheme in ("s3", "http", "https") else "")
        shard = Shard(path, known.size, (), (), known.version, footer.fingerprint)
        file = footer.file(remote)
        with pa.PythonFile(file, mode="r") as source:
            if footer.kind == "arrow":
                return scan_arrow(path, shard, pa.ipc.open_file(source))
            start = footer.held[0]
            with pq.ParquetFile(source) as parquet:
                return scan_parquet(path, shard, parquet, lambda offset: _checksum(path, file, offset, offset >= start))
    except SCAN_ERRORS as error:
        raise bad_shard(path, known.size, error) from error


def _checksum(path: str, file: RangeFile, offset: int, held: bool) -> bool | None:
    if not held and zlib.crc32(path.encode()) % _ASKED:
        return None
    file.seek(offset)
    return page_has_checksum(file.read(32))


def remote_digest(shard: Shard, stores: Stores) -> str:
    """xxh3-64 of the whole object. Raises DataError."""
    return content_digest(stores.object(shard.path), shard.size, shard.etag)
