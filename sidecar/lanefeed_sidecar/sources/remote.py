"""Lists remote URIs as local ones are listed: an object, a folder (all below a prefix), a glob. Called by `listing`.

Stores have no folders, only keys: a URI that is an object is that object, else it is a prefix up to a slash. What is
hidden or a marker locally is so here.
"""

import fnmatch
import glob
import posixpath
import re
from collections.abc import Sequence

from lanefeed_sidecar.errors import DataError
from lanefeed_sidecar.sources.local import SUFFIXES, Listed
from lanefeed_sidecar.sources.names import Name, parse
from lanefeed_sidecar.sources.objects import ObjectInfo, ReadFailed
from lanefeed_sidecar.sources.stores import Stores, explain

__all__ = ["RemoteSource"]

_HIDDEN = (".", "_")


class RemoteSource:
    """Lists objects; remembers what the listing said of them, so that indexing need not ask again."""

    def __init__(self, stores: Stores) -> None:
        """Nothing is asked yet."""
        self._stores = stores
        #: URI -> what the listing said.
        self.known: dict[str, ObjectInfo] = {}

    def list(self, name: str) -> Listed:
        """See Source."""
        uri = parse(name)
        reads = self._stores.reads(uri)
        try:
            if not glob.has_magic(uri.key):
                found = self._plain(uri)
                if found is not None:
                    return found
                raise DataError(f"data.uri {name} does not exist in {reads.store.place}: check the name")
            return self._glob(uri)
        except ReadFailed as failed:
            raise DataError("data.uri " + explain(uri, failed, reads.store.place)) from failed

    def _plain(self, uri: Name) -> Listed | None:
        """An object of that name, or all below it."""
        reads = self._stores.reads(uri)
        if uri.key and not uri.key.endswith("/"):
            try:
                info = reads.stat(uri.key)
            except ReadFailed as failed:
                if failed.kind not in ("missing", "denied", "refused"):
                    raise
            else:
                if uri.scheme not in ("http", "https") or uri.key.endswith(SUFFIXES):
                    return self._sort_out(uri, [info], uri.key, by_suffix=False)
        prefix = uri.key.rstrip("/") + "/" if uri.key.strip("/") else ""
        below = reads.persist(lambda: list(reads.store.below(prefix)))
        return self._sort_out(uri, below, prefix, by_suffix=True) if below else None

    def _glob(self, uri: Name) -> Listed:
        reads = self._stores.reads(uri)
        prefix = _fixed(uri.key)
        pattern = re.compile(_regex(uri.key))
        everything = reads.persist(lambda: list(reads.store.below(prefix)))
        hits = [info for info in everything if pattern.fullmatch(info.key)]
        if not hits:
            raise DataError(
                f"data.uri {uri} matches no object of {reads.store.place} ({len(everything)} begin with {prefix!r}): "
                "check the pattern"
            )
        by_suffix = any(info.key.endswith(SUFFIXES) for info in hits)
        return self._sort_out(uri, hits, prefix.rpartition("/")[0], by_suffix=by_suffix)

    def _sort_out(self, uri: Name, found: Sequence[ObjectInfo], top: str, *, by_suffix: bool) -> Listed:
        kept, left = [], []
        for info in found:
            path = str(uri.at(info.key))
            reason = _reason(info, posixpath.relpath("/" + info.key, "/" + top), by_suffix)
            if reason:
                left.append((path, reason))
            else:
                kept.append(path)
                self.known[path] = info
        return sorted(set(kept)), left


def _reason(info: ObjectInfo, below: str, by_suffix: bool) -> str:
    """Why an object is no data; "" where it is."""
    if info.key.endswith("/"):
        return "a folder's marker"
    if any(part.startswith(_HIDDEN) and part not in (".", "..") for part in below.split("/")):
        return "hidden or a marker"
    if by_suffix and not info.key.endswith(SUFFIXES):
        return "not a data file by its name"
    return "" if info.size or info.key.endswith(SUFFIXES) else "empty file"


def _fixed(pattern: str) -> str:
    """What every match begins with."""
    found = re.search(r"[*?[]", pattern)
    return pattern[: found.start()] if found else pattern


def _regex(pattern: str) -> str:
    """A glob as a regular expression: `**` is any number of folders, other wildcards end at a slash."""
    parts = pattern.split("/")
    made = []
    for at, part in enumerate(parts):
        last = at == len(parts) - 1
        if part == "**":
            made.append(".*" if last else "(?:.*/)?")
            continue
        made.append(_part(part) + ("" if last else "/"))
    return "".join(made)


def _part(part: str) -> str:
    """One name between slashes; hidden names are matched only where the pattern says so, as a shell does."""
    body = fnmatch.translate(part).removeprefix("(?s:").removesuffix(r")\Z")
    body = body.replace(".*", "[^/]*") if "*" in part else body
    return ("" if part.startswith(".") else r"(?!\.)" if part[:1] in "*?[" else "") + body
