"""A local shard that is written to while a reader has it open: what was just read may be neither old nor new.

Replacing a file by rename does no harm once it is open: the open file stays what it was, and the next opening sees the
new one. Before, what was checked may be the old one and what is read the new one: so the path is looked at again once
it was opened. Writing into it changes what is read, with nothing to see where its pages have no checksums. So the
file's size and time are looked at after each read (a microsecond). The error is one that is tried again: the shard is
opened anew, and size, footer and, where the manifest has it, every byte are compared (`identity`). Called by
`reader.open_shard`.
"""

import contextlib
import errno
import os
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from lanefeed_sidecar.errors import DataError
from lanefeed_sidecar.formats.chunk import Chunk
from lanefeed_sidecar.formats.identity import REMEDY, forget_content
from lanefeed_sidecar.formats.weigh import Weight

if TYPE_CHECKING:
    from lanefeed_sidecar.formats.reader import ShardReader

__all__ = ["Unchanged", "Watched"]


class Unchanged:
    """Whether a file is what it was."""

    def __init__(self, path: str) -> None:
        """From now on. Raises DataError: it is gone."""
        self._path = path
        try:
            self._first = os.stat(path)
        except OSError as error:
            raise DataError(f"shard {path} cannot be read: {error.strerror}; {REMEDY}") from error

    def opened(self) -> None:
        """Just after opening by path: raise DataError, caused by an OSError, unless the same file is there still.

        If it is, then it was there all the time, and is what was checked and what was opened.
        """
        self.check()
        first, now = _identity(self._first), "gone"
        with contextlib.suppress(OSError):
            found = os.stat(self._path)
            if _identity(found) == first:
                return
            now = f"another file of {found.st_size} bytes"
        raise DataError(
            f"shard {self._path} was replaced while it was opened: it had {first[2]} bytes and is {now}; {REMEDY}"
        ) from _stale(self._path)

    def check(self) -> None:
        """Raise DataError, caused by an OSError, if it was written to."""
        try:
            now = os.stat(self._path)
        except OSError:
            # Removed: an open file is there until it is closed.
            return
        first = self._first
        same_file = _identity(now)[:2] == _identity(first)[:2]
        if same_file and _identity(now) != _identity(first):
            forget_content(self._path)
            raise DataError(
                f"shard {self._path} was changed in place while it was read: it had {first.st_size} bytes and has "
                f"{now.st_size}; {REMEDY}, and replace files by renaming new ones over them"
            ) from _stale(self._path)


def _identity(stat: os.stat_result) -> tuple[int, int, int, int]:
    """Which file it is, and when it was written: (device, inode, bytes, time)."""
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def _stale(path: str) -> OSError:
    return OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)


class Watched:
    """A reader of a local file whose chunks were read from a file that stayed what it was."""

    def __init__(self, reader: "ShardReader", file: Unchanged) -> None:
        """`file` was looked at before the reader was opened."""
        self._reader, self._file = reader, file

    def read(self, row_group: int) -> Chunk:
        """See ShardReader."""
        try:
            return self._reader.read(row_group)
        finally:
            # After an error too: a page that was written half is no damage of the shard.
            self._file.check()

    def weigh(self, row_group: int, most: int) -> Weight:
        """See ShardReader."""
        try:
            return self._reader.weigh(row_group, most)
        finally:
            # It opens the file a second time.
            self._file.opened()

    def stream(self, row_group: int, batch_rows: int) -> Iterator[Chunk]:
        """See ShardReader."""
        chunks = self._reader.stream(row_group, batch_rows)
        # It opens the file a second time, for the first chunk.
        check = self._file.opened
        try:
            for chunk in chunks:
                check()
                check = self._file.check
                yield chunk
        except DataError:
            check()
            raise
        finally:
            if isinstance(chunks, Generator):
                chunks.close()

    def close(self) -> None:
        """See ShardReader."""
        self._reader.close()
