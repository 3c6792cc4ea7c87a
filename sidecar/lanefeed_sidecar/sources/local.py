"""Files of this machine: a path, a folder (with all below it) or a glob. Called by `listing`.

A name that begins with "." or "_" is hidden, files and folders alike (`_SUCCESS`, `_metadata`, `_temporary/`,
`.ipynb_checkpoints/`), but only below what the user wrote: a dataset may lie in `~/.cache`.
"""

import glob
import os
from collections.abc import Iterator

from lanefeed_sidecar.errors import DataError

__all__ = ["SUFFIXES", "Listed", "LocalSource"]

#: What a folder is searched for, and a glob where it finds any; a file named by itself may have any name.
SUFFIXES = (".parquet", ".pq", ".arrow", ".feather", ".ipc")

_HIDDEN = (".", "_")
#: Files, and what was left out with the reason.
Listed = tuple[list[str], list[tuple[str, str]]]


class LocalSource:
    """Lists local files; relative names start at `base`."""

    def __init__(self, base: str) -> None:
        """`base`: an absolute path."""
        self._base = base

    def list(self, name: str) -> Listed:
        """See Source."""
        path = os.path.normpath(os.path.join(self._base, os.path.expanduser(name)))
        if os.path.isfile(path):
            return [path], []
        if os.path.isdir(path):
            return _sort_out(_walk(path), path, by_suffix=True)
        if glob.has_magic(name):
            return self._glob(name)
        raise DataError(f"data.uri {name} does not exist {self._where(path)}: check the path")

    def _glob(self, name: str) -> Listed:
        pattern = os.path.expanduser(name)
        hits = [os.path.join(self._base, hit) for hit in glob.glob(pattern, root_dir=self._base, recursive=True)]
        files = [os.path.normpath(hit) for hit in hits if not os.path.isdir(hit)]
        if not files:
            files = [file for hit in hits for file in _walk(os.path.normpath(hit))]
        fixed = _fixed_part(os.path.join(self._base, pattern))
        if not files:
            raise DataError(f"data.uri {name} matches no file {self._where(fixed)}: check the pattern")
        # "part-*" of files without suffixes is data; "data/*" with a README among Parquet files is not.
        by_suffix = any(hit.endswith(SUFFIXES) for hit in files)
        return _sort_out(iter(files), fixed, by_suffix=by_suffix)

    def _where(self, path: str) -> str:
        """Where it was looked for, in words."""
        return f"(current folder {self._base}; the nearest folder that exists is {_nearest(path)})"


def _walk(top: str) -> Iterator[str]:
    """All files below a folder. Links to folders are followed, each folder is visited once."""
    seen: set[str] = set()
    for folder, subfolders, names in os.walk(top, followlinks=True, onerror=_unreadable):
        subfolders[:] = sorted(s for s in subfolders if not s.startswith(_HIDDEN))
        real = os.path.realpath(folder)
        if real in seen:
            subfolders.clear()
            continue
        seen.add(real)
        yield from (os.path.join(folder, name) for name in names)


def _unreadable(error: OSError) -> None:
    raise DataError(f"folder {error.filename} cannot be listed: {error.strerror}; make it readable") from error


def _sort_out(paths: Iterator[str], top: str, *, by_suffix: bool) -> Listed:
    """Files that are data, and the others with the reason; hidden is what is hidden below `top`."""
    kept, left = [], []
    for path in paths:
        reason = _reason(path, os.path.relpath(path, top), by_suffix)
        if reason:
            left.append((path, reason))
        else:
            kept.append(path)
    return sorted(set(kept)), left


def _reason(path: str, below: str, by_suffix: bool) -> str:
    """Why a file that was found is not data; "" where it is."""
    if any(part.startswith(_HIDDEN) and part != ".." for part in below.split(os.sep)):
        return "hidden or a marker"
    if by_suffix and not path.endswith(SUFFIXES):
        return "not a data file by its name"
    if not os.path.exists(path):
        raise DataError(
            f"{path} is a link to {os.path.realpath(path)}, which does not exist: restore it or remove the link"
        )
    if not os.path.isfile(path):
        return "not a regular file"
    # An empty file with a shard's name is one that somebody failed to write: the indexer refuses it by policy.
    return "" if path.endswith(SUFFIXES) or os.path.getsize(path) else "empty file"


def _fixed_part(pattern: str) -> str:
    """The folder in which a glob begins to search."""
    parts = []
    for part in os.path.dirname(pattern).split(os.sep):
        if glob.has_magic(part):
            break
        parts.append(part)
    return os.path.normpath(os.sep.join(parts) or os.sep)


def _nearest(path: str) -> str:
    """The deepest folder on the way to `path`, an absolute path, that exists."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path
