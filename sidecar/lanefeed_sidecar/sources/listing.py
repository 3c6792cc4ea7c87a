"""Lists the shards that URIs name: files, folders, globs, and lists of them.

Called by the indexer, through `list_shards` only. What a scheme needs is behind `Source`: `local` lists files of this
machine, `remote` objects of stores. The listing is sorted and free of hidden files, markers and folders, so that the
same dataset gives the same manifest everywhere. It opens no file.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import unquote

from lanefeed_sidecar.errors import DataError
from lanefeed_sidecar.sources import names
from lanefeed_sidecar.sources.local import Listed, LocalSource
from lanefeed_sidecar.sources.objects import ObjectInfo
from lanefeed_sidecar.sources.remote import RemoteSource
from lanefeed_sidecar.sources.stores import Stores

__all__ = ["Found", "Source", "list_shards"]


@dataclass(frozen=True, slots=True)
class Found:
    """Files found, absolute and sorted, with the folder that they have in common ("" where there is none)."""

    root: str
    paths: tuple[str, ...]
    #: Files that were left out, with the reason.
    skipped: tuple[tuple[str, str], ...]
    #: Of remote files what the store said of them.
    known: dict[str, ObjectInfo] = field(default_factory=dict)


class Source(Protocol):
    """Where files of one scheme are listed."""

    def list(self, name: str) -> Listed:
        """(files, what was left out and why) that one URI without its scheme names. Raises DataError for none."""
        ...


def list_shards(uris: Sequence[str], *, base: str | None = None, stores: Stores | None = None) -> Found:
    """List the files of all `uris`; relative ones start at `base` (default: the current folder).

    Raises DataError where a URI names nothing or a file is named twice, ConfigError where no store can be had.
    """
    if not uris:
        raise DataError("data.uri is empty: name at least one file, folder or glob")
    if stores is not None:
        return _list(uris, base, stores)
    own = Stores()
    try:
        return _list(uris, base, own)
    finally:
        own.close()


def _list(uris: Sequence[str], base: str | None, stores: Stores) -> Found:
    paths: list[str] = []
    skipped: list[tuple[str, str]] = []
    remote = RemoteSource(stores)
    for uri in uris:
        source, name = _source(uri, os.path.abspath(base or os.getcwd()), remote)
        found, left = source.list(name)
        if not found:
            raise DataError(f"data.uri {uri} names no data file ({_why(left)}): check the path")
        paths += found
        skipped += left
    _refuse_twice(paths)
    paths.sort()
    return Found(names.common_root(paths), tuple(paths), tuple(sorted(set(skipped))), remote.known)


def _source(uri: str, base: str, remote: Source) -> tuple[Source, str]:
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return LocalSource(base), uri
    if scheme == "file":
        host, slash, path = rest.partition("/")
        if host not in ("", "localhost") or not slash:
            raise DataError(f"data.uri {uri}: a file URI names an absolute path on this machine, as file:///data/train")
        return LocalSource(base), "/" + unquote(path)
    return remote, uri


def _refuse_twice(paths: list[str]) -> None:
    seen: dict[str, str] = {}
    for path in paths:
        real = path if names.is_remote(path) else os.path.realpath(path)
        if real in seen:
            other = "" if seen[real] == path else f" (also as {seen[real]})"
            raise DataError(f"{path} is named twice in data.uri{other}: its samples would be used twice; name it once")
        seen[real] = path


def _why(skipped: list[tuple[str, str]]) -> str:
    if not skipped:
        return "there is no file"
    more = f"; and {len(skipped) - 3} more" if len(skipped) > 3 else ""
    return "; ".join(f"{os.path.basename(p)}: {reason}" for p, reason in skipped[:3]) + more
