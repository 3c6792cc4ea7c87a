"""A local shard that is written to while a reader has it open: what was just read may be neither old nor new.

Replacing a file by rename is no matter: the open file stays what it was, and the next opening sees the new one.
Writing into it changes what is read, with nothing to see where its pages have no checksums. So the file's size and
time are looked at after each read (a microsecond). The error is one that is tried again: the shard is opened anew, and
size, footer and, where the manifest has it, every byte are compared (`identity`). Called by `reader.open_shard`.
"""

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

    def check(self) -> None:
        """Raise DataError, caused by an OSError, if it was written to."""
        try:
            now = os.stat(self._path)
        except OSError:
            # Removed: an open file is there until it is closed.
            return
        first = self._first
        same_file = (now.st_dev, now.st_ino) == (first.st_dev, first.st_ino)
        if same_file and (now.st_size, now.st_mtime_ns) != (first.st_size, first.st_mtime_ns):
            forget_content(self._path)
            raise DataError(
                f"shard {self._path} was changed in place while it was read: it had {first.st_size} bytes and has "
                f"{now.st_size}; {REMEDY}, and replace files by renaming new ones over them"
            ) from OSError(errno.ESTALE, os.strerror(errno.ESTALE), self._path)


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
            self._file.check()

    def stream(self, row_group: int, batch_rows: int) -> Iterator[Chunk]:
        """See ShardReader."""
        chunks = self._reader.stream(row_group, batch_rows)
        try:
            for chunk in chunks:
                self._file.check()
                yield chunk
        except DataError:
            self._file.check()
            raise
        finally:
            if isinstance(chunks, Generator):
                chunks.close()

    def close(self) -> None:
        """See ShardReader."""
        self._reader.close()
