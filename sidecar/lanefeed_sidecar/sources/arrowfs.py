"""Stores that pyarrow.fs can read: gs, abfs, hdfs (and s3a, which goes to the same servers as s3).

The plain way: one try is one `read_at`. What these libraries hide is not seen here either: Retry-After, the range that
came, the version of each answer; page checksums and footers catch what they can (docs/adr/0010).
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.fs

from lanefeed_sidecar.errors import ConfigError
from lanefeed_sidecar.sources.names import Name
from lanefeed_sidecar.sources.objects import Attempt, ObjectInfo, ReadFailed
from lanefeed_sidecar.sources.telling import telling

__all__ = ["SCHEMES", "ArrowStore"]

SCHEMES = ("gs", "gcs", "abfs", "abfss", "hdfs", "viewfs", "s3a")
#: Of an account, by the names that Azure's own tools know. Without them: AZURE_CLIENT_ID and its like, or an identity.
_AZURE_KEYS = {"AZURE_STORAGE_KEY": "account_key", "AZURE_STORAGE_SAS_TOKEN": "sas_token"}
#: Google's client tries for 15 minutes by itself, with nothing said and nothing counted; trying again is `reads`' work.
_GS_RETRY_SECONDS = 0.5
_OPEN_FILES = 32


class ArrowStore:
    """One bucket, container or cluster; keys are paths in it."""

    def __init__(self, name: Name) -> None:
        """Raises ConfigError where the URI, or what is installed, makes no client. Asks no server."""
        self.place = name.store
        try:
            # The path of the top: what a URI of Azure or HDFS has before its first slash is no part of it.
            found, top = pyarrow.fs.FileSystem.from_uri(_uri(name))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ConfigError(f"data.uri {name}: {error}") from error
        self._fs = _with_keys(found) if name.scheme in ("abfs", "abfss") else found
        self._lock = threading.Lock()
        self._files: OrderedDict[str, Any] = OrderedDict()
        self._top, self._slash = top.strip("/"), "/" if top.startswith("/") else ""

    def _path(self, key: str) -> str:
        return self._slash + f"{self._top}/{key}".strip("/")

    def below(self, prefix: str) -> Iterator[ObjectInfo]:
        """See ObjectStore."""
        folder = prefix.rpartition("/")[0]
        selector = pyarrow.fs.FileSelector(self._path(folder), recursive=True, allow_not_found=True)
        with telling(OSError, pa.ArrowException):
            found = self._fs.get_file_info(selector)
        start = len(self._top) + 1 if self._top else 0
        for info in found:
            key = info.path.lstrip("/")[start:]
            if info.type == pyarrow.fs.FileType.File and key.startswith(prefix):
                yield ObjectInfo(key, info.size, str(info.mtime_ns or ""))

    def stat(self, key: str) -> ObjectInfo:
        """See ObjectStore."""
        with telling(OSError, pa.ArrowException):
            info = self._fs.get_file_info(self._path(key))
        if info.type != pyarrow.fs.FileType.File:
            raise ReadFailed("missing", "there is no such object")
        return ObjectInfo(key, info.size, str(info.mtime_ns or ""))

    def read(self, key: str, start: int, view: memoryview, attempt: Attempt) -> str:
        """See ObjectStore. A cancelled try ends by itself."""
        try:
            # ValueError: a file of gs whose server is away says that it is closed.
            with telling(OSError, ValueError, pa.ArrowException):
                data = self._file(key).read_at(len(view), start)
        except ReadFailed:
            with self._lock:
                self._files.pop(key, None)
            raise
        if len(data) != len(view):
            raise ReadFailed("short", f"{len(data)} of {len(view)} bytes came")
        attempt.deliver(view, data)
        return ""

    def _file(self, key: str) -> Any:
        """An object that is open for all who read it.

        Opening asks for its size; and pyarrow 26 begins to read an object of gs from its start, with the GIL held, as
        soon as anything is asked of it. Once is enough.
        """
        with self._lock:
            found = self._files.get(key)
            if found is not None:
                self._files.move_to_end(key)
                return found
        found = self._fs.open_input_file(self._path(key))
        with self._lock:
            self._files[key] = found
            while len(self._files) > _OPEN_FILES:
                # Who reads it still holds it.
                self._files.popitem(last=False)
        return found

    def refresh(self, since: float) -> bool:
        """These libraries read their credentials anew themselves."""
        return True

    def close(self) -> None:
        """See ObjectStore."""
        with self._lock:
            self._files.clear()


def _with_keys(found: Any) -> Any:
    """Azure's client with an account's key from the environment, which URIs have no safe place for."""
    keys = {field: os.environ[name] for name, field in _AZURE_KEYS.items() if os.environ.get(name)}
    if not keys:
        return found
    # What it is pickled as: the arguments that it was made with.
    make, (arguments,) = found.__reduce__()
    return make({**arguments, **keys})


def _uri(name: Name) -> str:
    """The top of the store, as pyarrow wants it."""
    scheme = {"gcs": "gs", "s3a": "s3"}.get(name.scheme, name.scheme)
    top, options = replace(name, scheme=scheme, key=""), name.options
    if scheme != "gs":
        return str(top)
    options.setdefault("retry_limit_seconds", str(_GS_RETRY_SECONDS))
    if options.pop("anonymous", "").lower() in ("true", "1"):
        top = replace(top, authority="anonymous@" + top.authority.rpartition("@")[2])
    return str(replace(top, query=urlencode(options, safe=":")))
