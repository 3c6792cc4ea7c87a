"""Is a file still the shard that the manifest lists? Size, footer and, where the manifest has it, every byte.

Called by `open_shard`, in its thread (xxhash lets go of the GIL). A file whose time changed but not its size and footer
is accepted: datasets are copied. The footer is compared always, it costs microseconds and sees rot that times do not.
"""

import os
import threading
import time

import xxhash

from lanefeed_core.manifest import Shard
from lanefeed_sidecar.errors import DataError
from lanefeed_sidecar.formats.footer import FooterError, fingerprint

__all__ = ["REMEDY", "check_content", "check_identity", "content_digest", "forget_content"]

REMEDY = "restore the file, or make a new manifest with `lanefeed index` and start a new job"

_BLOCK = 1 << 20

#: Shards whose content was checked in this process; they are immutable.
_verified: set[tuple[str, str, int, int, int, int]] = set()
_verified_lock = threading.Lock()


def check_identity(path: str, shard: Shard, kind: str) -> None:
    """Raise DataError if the file is gone or is not the one of the manifest, by size and footer."""
    try:
        stat = os.stat(path)
        if stat.st_size != shard.size:
            raise _replaced(path, f"it has {stat.st_size} bytes and had {shard.size}", shard, stat)
        found = fingerprint(path, kind)
    except OSError as error:
        raise DataError(f"shard {path} cannot be read: {error.strerror}; {REMEDY}") from error
    except FooterError as error:
        raise _replaced(path, str(error), shard, stat) from error
    if found != shard.fingerprint:
        raise _replaced(path, f"its footer is {found} and was {shard.fingerprint}", shard, stat)


def _replaced(path: str, what: str, shard: Shard, stat: os.stat_result) -> DataError:
    if str(stat.st_mtime_ns) == shard.etag:
        return DataError(f"shard {path} is damaged: {what}, and its time did not change; {REMEDY}")
    times = f"written {_when(str(stat.st_mtime_ns))}, in the manifest {_when(shard.etag)}"
    return DataError(f"shard {path} was replaced since the manifest was made: {what} ({times}); {REMEDY}")


def _when(etag: str) -> str:
    if not etag.isdigit():
        return etag or "unknown"
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(int(etag) // 10**9))


def check_content(path: str, shard: Shard) -> None:
    """Compare xxh3-64 of the whole file with the manifest's; nothing where it has none.

    Once per process, and again where the file is another one, or was written to, since.
    """
    if not shard.content:
        return
    try:
        stat = os.stat(path)
        key = (path, shard.content, stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
        with _verified_lock:
            if key in _verified:
                return
        digest = content_digest(path)
    except OSError as error:
        raise DataError(f"shard {path} cannot be read: {error.strerror}; {REMEDY}") from error
    if digest != shard.content:
        raise DataError(
            f"shard {path} is corrupt: its digest is {digest} and the manifest says {shard.content}; {REMEDY}"
        )
    with _verified_lock:
        _verified.add(key)


def forget_content(path: str) -> None:
    """The file was written to: what is known of its bytes is known no more."""
    with _verified_lock:
        _verified.difference_update([known for known in _verified if known[0] == path])


def content_digest(path: str) -> str:
    """xxh3-64 of the whole file, 16 hex digits; the buffer is small enough to stay in the L2 cache."""
    digest = xxhash.xxh3_64()
    buffer = bytearray(_BLOCK)
    view = memoryview(buffer)
    with open(path, "rb", buffering=0) as file:
        while size := file.readinto(buffer):
            digest.update(view[:size])
    return str(digest.hexdigest())
