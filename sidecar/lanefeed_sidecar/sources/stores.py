"""Which store a URI is of, and reads of it: one `Reads` for each bucket or host, shared by all who read in a process.

Called by the listing, the indexer and readers of shards. `https` and `s3` are read by requests of our own, everything
else through pyarrow.fs or fsspec.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

from lanefeed_sidecar.errors import ConfigError, DataError
from lanefeed_sidecar.sources.names import Name, parse
from lanefeed_sidecar.sources.objects import ObjectInfo, ObjectStore, ReadFailed
from lanefeed_sidecar.sources.reads import Counters, Reads, Settings

__all__ = ["RemoteObject", "Stores", "explain", "open_store"]


T = TypeVar("T")


def open_store(name: Name) -> ObjectStore:
    """The store that holds `name`. Raises ConfigError where it cannot be had."""
    if not name.authority and name.scheme in ("s3", "http", "https", "gs", "abfs"):
        raise ConfigError(f"data.uri {name} names no bucket or host: it should look like {name.scheme}://bucket/folder")
    if ":" in name.authority.rpartition("@")[0]:
        raise ConfigError(
            f"data.uri {name.scheme}://... holds a password, and URIs are written into manifests and logs: take it "
            "out, and give it as the store's own tools find it (docs/remote-data.md)"
        )
    # Only when they are needed: what they import takes longer than a sidecar of local data takes to start.
    if name.scheme == "s3":
        from lanefeed_sidecar.sources.s3 import S3Store

        return S3Store(name)
    if name.scheme in ("http", "https"):
        from lanefeed_sidecar.sources.http import HttpStore

        return HttpStore(name)
    from lanefeed_sidecar.sources.arrowfs import SCHEMES, ArrowStore

    if name.scheme in SCHEMES:
        return ArrowStore(name)
    from lanefeed_sidecar.sources.plugins import PluginStore

    return PluginStore(name)


class RemoteObject:
    """One object that can be read."""

    def __init__(self, reads: Reads, name: Name) -> None:
        """Nothing is asked yet."""
        self._reads, self.name = reads, name

    def stat(self) -> ObjectInfo:
        """Size and version. Raises DataError."""
        return self._said(lambda: self._reads.stat(self.name.key))

    def read(self, start: int, length: int, version: str = "") -> memoryview:
        """A range. Raises DataError."""
        return self.read_all([(start, length)], version)[0]

    def read_all(self, ranges: list[tuple[int, int]], version: str = "") -> list[memoryview]:
        """Ranges (start, length) at once. Raises DataError."""
        return self._said(lambda: self._reads.read_all(self.name.key, ranges, version))

    def damaged(self) -> None:
        """What came is not what it should be, though the store calls it the right version: it is counted."""
        self._reads.count("damaged")

    def _said(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except ReadFailed as failed:
            raise DataError(explain(self.name, failed, self._reads.store.place)) from failed


class Stores:
    """The stores that a process reads from. Thread safe."""

    def __init__(self, counters: Counters | None = None, settings: Settings | None = None) -> None:
        """Opens a store at its first use."""
        self._counters, self._settings = counters, settings
        self._lock = threading.Lock()
        self._open: dict[str, Reads] = {}
        self._closed = False

    def reads(self, name: Name) -> Reads:
        """Reads of the store that holds `name`. Raises ConfigError, DataError after `close`."""
        with self._lock:
            if self._closed:
                raise DataError(f"{name} is not read: reading has ended")
            if name.store not in self._open:
                self._open[name.store] = Reads(open_store(name), self._counters, self._settings)
            return self._open[name.store]

    def object(self, uri: str) -> RemoteObject:
        """The object of that URI. Raises ConfigError."""
        name = parse(uri)
        return RemoteObject(self.reads(name), name)

    def close(self) -> None:
        """Cut all reads and close all stores."""
        with self._lock:
            self._closed = True
            for reads in self._open.values():
                reads.close()
            self._open.clear()


_WHAT_TO_DO = {
    "missing": "it does not exist: check the name, the bucket and the endpoint (AWS_ENDPOINT_URL)",
    "denied": "it may not be read with these credentials: allow to get and to list it, or give other credentials",
    "credentials": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a service account's role, or add "
    "?anonymous=true for a public bucket",
    "expired": "the credentials have ended, and those found since are no newer: give the pod new ones",
    "changed": "it was replaced since the manifest was made: restore it, or make a new manifest with `lanefeed index` "
    "and start a new job",
    "throttled": "the store takes no more requests: fewer jobs at once, or a higher limit",
    "timeout": "the store does not answer: check the network and the endpoint",
    "connect": "the store cannot be reached: check the endpoint, DNS, proxies and network policies",
    "range": "the server does not serve ranges as it should: use another server or copy the data",
}


def explain(name: Name, failed: ReadFailed, place: str) -> str:
    """What a user is told."""
    todo = _WHAT_TO_DO.get(failed.kind, "check the store")
    return f"{name} cannot be read from {place}: {failed}; {todo}"
