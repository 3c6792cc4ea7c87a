"""Stores that fsspec has a package for and pyarrow has not: hf, ftp, sftp, webdav, ...

One try is one `cat_file`. Instances are each thread's own (a session of ftp or sftp is for one thread), made when they
are first used, and made anew after a failure: a connection that is gone does not come back by itself.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from lanefeed_sidecar.errors import ConfigError
from lanefeed_sidecar.sources.names import Name
from lanefeed_sidecar.sources.objects import Attempt, ObjectInfo, ReadFailed
from lanefeed_sidecar.sources.telling import telling

__all__ = ["PluginStore"]

#: Where packages put what changes when an object changes.
_VERSIONS = ("ETag", "etag", "sha256", "mtime", "modify", "LastModified", "last_modified", "created")


class PluginStore:
    """What one scheme and authority name; keys are paths in it."""

    def __init__(self, name: Name) -> None:
        """Raises ConfigError where nothing here can read the scheme. Connects to nobody."""
        try:
            import fsspec
        except ImportError:
            raise ConfigError(
                f"data.uri {name}: {name.scheme}:// is read through fsspec: install fsspec and its package for "
                f"{name.scheme}, or copy the data"
            ) from None
        try:
            fsspec.get_filesystem_class(name.scheme)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"data.uri {name}: {name.scheme}:// cannot be read: {error}") from error
        self.place, self._name = name.store, name
        self._own = threading.local()

    @contextlib.contextmanager
    def _session(self) -> Iterator[tuple[Any, str]]:
        """This thread's file system and the path of its top."""
        try:
            # These are other people's packages, each with errors of its own (ftplib.Error is a plain Exception).
            with telling(Exception):
                if getattr(self._own, "found", None) is None:
                    self._own.found = self._connect()
                yield self._own.found
        except ReadFailed as failed:
            if failed.kind != "missing":
                self._own.found = None
            raise

    def _connect(self) -> tuple[Any, str]:
        import fsspec.core

        url = f"{self._name.scheme}://{self._name.authority}/"
        try:
            found, top = fsspec.core.url_to_fs(url, skip_instance_cache=True, **self._name.options)
        except TypeError as error:
            raise ReadFailed("refused", f"an option is not known: {error}") from error
        return found, str(top).rstrip("/")

    def below(self, prefix: str) -> Iterator[ObjectInfo]:
        """See ObjectStore."""
        folder = prefix.rpartition("/")[0]
        with self._session() as (system, top):
            try:
                found = system.find(f"{top}/{folder}".rstrip("/") or "/", detail=True)
            except FileNotFoundError:
                found = {}
        start = len(top.strip("/")) + 1 if top.strip("/") else 0
        for path, info in sorted(found.items()):
            key = path.lstrip("/")[start:]
            if info.get("type") == "file" and key.startswith(prefix):
                yield _info(key, info)

    def stat(self, key: str) -> ObjectInfo:
        """See ObjectStore."""
        with self._session() as (system, top):
            info = system.info(f"{top}/{key}")
            if info.get("type") != "file":
                raise ReadFailed("missing", "there is no such object")
            return _info(key, info)

    def read(self, key: str, start: int, view: memoryview, attempt: Attempt) -> str:
        """See ObjectStore. A cancelled try ends by itself."""
        with self._session() as (system, top):
            data = system.cat_file(f"{top}/{key}", start=start, end=start + len(view))
        if len(data) != len(view):
            raise ReadFailed("short", f"{len(data)} of {len(view)} bytes came")
        attempt.deliver(view, data)
        return ""

    def refresh(self, since: float) -> bool:
        """A failure has ended the session already; the next one reads credentials anew."""
        return True

    def close(self) -> None:
        """Sessions end with their threads."""


def _info(key: str, info: dict[str, Any]) -> ObjectInfo:
    version = next((str(info[one]) for one in _VERSIONS if info.get(one)), "")
    return ObjectInfo(key, int(info.get("size") or 0), version)
