"""Stores that pyarrow.fs or fsspec can read: gs, abfs, hdfs, hf and whatever fsspec knows.

The plain way: one try is one `read_at`. What these libraries hide is not seen here either: Retry-After, the range that
came, the version of each answer; page checksums and footers catch what they can (docs/adr/0009).
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.fs

from lanefeed_sidecar.errors import ConfigError
from lanefeed_sidecar.sources.names import Name
from lanefeed_sidecar.sources.objects import Attempt, ObjectInfo, ReadFailed

__all__ = ["ArrowStore"]

_ARROW = ("gs", "gcs", "abfs", "abfss", "hdfs", "viewfs", "s3a")
#: What an error's text says -> kind; the first that is found counts.
_KINDS = (
    ("expired", r"expired ?token|token.{0,20}expired"),
    ("denied", r"\b40[13]\b|access.?denied|permission.?denied|forbidden|unauthori[sz]ed|no_such_access|credential"),
    ("throttled", r"\b(429|503)\b|slow.?down|throttl|too many requests"),
    ("missing", r"\b404\b|not.?found|no such|does not exist"),
    ("timeout", r"time(d)? ?out|deadline"),
    ("connect", r"could ?n.t (connect|resolve)|connection refused|network_connection|name or service"),
    ("server", r"\b50[024]\b|internal.?error|unavailable"),
    ("reset", r"reset|broken pipe|closed|disconnect"),
)


class ArrowStore:
    """One file system; keys are paths without their scheme, the bucket first."""

    def __init__(self, name: Name) -> None:
        """Raises ConfigError where nothing here can read the scheme."""
        self.place = name.store
        self._bucket = name.authority
        self._fs = _file_system(name)

    def _path(self, key: str) -> str:
        return f"{self._bucket}/{key}".strip("/")

    def below(self, prefix: str) -> Iterator[ObjectInfo]:
        """See ObjectStore."""
        folder = prefix.rpartition("/")[0]
        selector = pyarrow.fs.FileSelector(self._path(folder), recursive=True, allow_not_found=True)
        with _failures():
            found = self._fs.get_file_info(selector)
        start = len(self._bucket) + 1 if self._bucket else 0
        for info in found:
            key = info.path.lstrip("/")[start:]
            if info.type == pyarrow.fs.FileType.File and key.startswith(prefix):
                yield ObjectInfo(key, info.size, str(info.mtime_ns or ""))

    def stat(self, key: str) -> ObjectInfo:
        """See ObjectStore."""
        with _failures():
            info = self._fs.get_file_info(self._path(key))
        if info.type != pyarrow.fs.FileType.File:
            raise ReadFailed("missing", "there is no such object")
        return ObjectInfo(key, info.size, str(info.mtime_ns or ""))

    def read(self, key: str, start: int, view: memoryview, attempt: Attempt) -> str:
        """See ObjectStore. A cancelled try ends by itself."""
        with _failures(), self._fs.open_input_file(self._path(key)) as file:
            data = file.read_at(len(view), start)
        if len(data) != len(view):
            raise ReadFailed("short", f"{len(data)} of {len(view)} bytes came")
        attempt.deliver(view, data)
        return ""

    def refresh(self, since: float) -> bool:
        """These libraries read their credentials anew themselves."""
        return True

    def close(self) -> None:
        """Nothing is held."""


def _file_system(name: Name) -> Any:
    if name.scheme in _ARROW:
        scheme = {"gcs": "gs", "s3a": "s3"}.get(name.scheme, name.scheme)
        try:
            return pyarrow.fs.FileSystem.from_uri(str(Name(scheme, name.authority, name.key, name.query)))[0]
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ConfigError(f"data.uri {name}: {error}") from error
    try:
        import fsspec
    except ImportError:
        raise ConfigError(
            f"data.uri {name}: {name.scheme}:// is read through fsspec: install fsspec and its package for "
            f"{name.scheme}, or copy the data"
        ) from None
    try:
        return pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fsspec.filesystem(name.scheme, **name.options)))
    except (ImportError, ValueError, TypeError) as error:
        raise ConfigError(f"data.uri {name}: {name.scheme}:// cannot be read: {error}") from error


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """What these libraries raise, as a failure of a kind that their text tells."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        text = str(error)
        for kind, pattern in _KINDS:
            if re.search(pattern, text, re.IGNORECASE):
                raise ReadFailed(kind, text) from error
        raise ReadFailed("missing" if isinstance(error, FileNotFoundError) else "reset", text) from error
