"""What a decode thread is given to do: made by the store, done by `decode`."""

from collections.abc import Callable
from dataclasses import dataclass

from lanefeed_sidecar.formats.chunk import Chunk
from lanefeed_sidecar.pipeline.pieces import RowGroupKey
from lanefeed_sidecar.pipeline.window import Window

__all__ = ["Fits", "Task"]

#: Whether somebody takes the work on a row group.
Fits = Callable[[RowGroupKey], bool]


@dataclass(slots=True)
class Task:
    """Decode a row group (or take the kept `chunk`) and scatter it into `windows`."""

    group: RowGroupKey
    windows: list[Window]
    chunk: Chunk | None
    #: Bytes that it was given of the budget.
    size: int = 0
    #: Whoever had it did not find it where they looked.
    given_back: bool = False
