"""Lists the shards that URIs name: files, folders, globs, and lists of them.

Called by the indexer. The listing is sorted and free of hidden files, markers and folders, so that the same dataset gives
the same manifest everywhere. It opens no file.
"""

import glob
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lanefeed_sidecar.errors import DataError

__all__ = ["SUFFIXES", "Found", "list_shards"]

#: What a folder or a glob is searched for; a file named by itself may have any name.
SUFFIXES = (".parquet", ".pq", ".arrow", ".feather", ".ipc")


@dataclass(frozen=True, slots=True)
class Found:
    """Files found, absolute and sorted, with the folder that they have in common."""

    root: str
    paths: tuple[str, ...]
    #: Files that were left out, with the reason.
    skipped: tuple[tuple[str, str], ...]


def list_shards(uris: Sequence[str], *, base: str | None = None) -> Found:
    """List the files of all `uris`; relative ones start at `base` (default: the current folder).

    Raises DataError where a URI names nothing, a scheme is not supported, or a file is named twice.
    """
    base = base or os.getcwd()
    paths: list[str] = []
    skipped: list[tuple[str, str]] = []
    for uri in uris:
        found, left = _one(_local(uri), base)
        paths += found
        skipped += left
    _refuse_twice(paths)
    paths.sort()
    if not paths:
        raise DataError(f"data.uri {', '.join(uris)} names no data file ({_why(skipped)}): check the path")
    root = os.path.dirname(paths[0]) if len(paths) == 1 else os.path.commonpath([os.path.dirname(p) for p in paths])
    return Found(root, tuple(paths), tuple(skipped))


def _local(uri: str) -> str:
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return uri
    if scheme == "file":
        return rest
    raise DataError(f"data.uri {uri}: {scheme} is not supported in this version; mount the data, or name local files")


def _one(uri: str, base: str) -> tuple[list[str], list[tuple[str, str]]]:
    path = os.path.join(base, os.path.expanduser(uri))
    if os.path.isfile(path):
        return [os.path.normpath(path)], []
    if os.path.isdir(path):
        return _keep(os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    if glob.has_magic(path):
        hits = [p for p in glob.glob(path, recursive=True) if not os.path.isdir(p)]
        kept, left = _keep(hits, suffixes=False)
        if kept:
            return kept, left
        raise DataError(f"data.uri {uri} matches no file (looked in {_nearest(path)}): check the pattern")
    raise DataError(f"data.uri {uri} does not exist ({path}; the nearest folder is {_nearest(path)}): check the path")


def _keep(paths: Iterable[str], *, suffixes: bool = True) -> tuple[list[str], list[tuple[str, str]]]:
    kept, left = [], []
    for path in map(os.path.normpath, paths):
        name = os.path.basename(path)
        if name.startswith((".", "_")) or "/." in path.replace("/./", "/"):
            left.append((path, "hidden or a marker"))
        elif suffixes and not name.endswith(SUFFIXES):
            left.append((path, "not a data file by its name"))
        elif os.path.getsize(path) == 0:
            left.append((path, "empty file"))
        else:
            kept.append(path)
    return kept, left


def _refuse_twice(paths: list[str]) -> None:
    seen: set[str] = set()
    for path in paths:
        real = os.path.realpath(path)
        if real in seen:
            raise DataError(f"{path} is named twice in data.uri: its samples would be used twice; name it once")
        seen.add(real)


def _nearest(path: str) -> str:
    """The deepest folder on the way to `path` that exists."""
    while path and not os.path.isdir(path):
        parent = os.path.dirname(path)
        if parent == path:
            return path
        path = parent
    return path or os.getcwd()


def _why(skipped: list[tuple[str, str]]) -> str:
    if not skipped:
        return "there is no file"
    return "; ".join(f"{os.path.basename(p)}: {reason}" for p, reason in skipped[:3])
