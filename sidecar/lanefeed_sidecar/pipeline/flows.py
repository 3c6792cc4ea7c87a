"""Huge row groups, decoded in pieces: where each reading stands, so that the next window goes on instead of anew.

A window of a lane follows its last one in the row group, so a reading that is left where the window ended needs no
row twice. Lanes that share a row group read at places of their own, each with a reading of its own: it passes over the
rows before its place once, which costs decoding them (Parquet has no way in). Where memory does not allow that many
readings one pass serves all windows that wait, and each later pass begins at the row group's start. Called by the
decode threads; a row group is in the hands of one thread at a time (`Store`).
"""

import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from lanefeed_sidecar.formats import Chunk
from lanefeed_sidecar.pipeline.pieces import Piece, RowGroupKey

__all__ = ["Flow", "Flows", "ranges"]


@dataclass(slots=True, eq=False)
class Flow:
    """A reading of a row group that stands before row `at`, the first of `chunk` if there is one."""

    chunks: Iterator[Chunk]
    #: Bytes that it holds while it is left alone, about.
    nbytes: int
    at: int = 0
    chunk: Chunk | None = None
    #: Rows that were decoded.
    read: int = 0

    def until(self, low: int, high: int) -> Iterator[tuple[int, Chunk]]:
        """(first row, chunk) of all chunks with rows of [low, high); the last one is kept if it has more."""
        while self.at < high:
            if self.chunk is None:
                self.chunk = next(self.chunks, None)
                if self.chunk is None:
                    return
                self.read += self.chunk.rows
            end = self.at + self.chunk.rows
            if end > low:
                yield self.at, self.chunk
            if end > high:
                return
            self.at, self.chunk = end, None

    def close(self) -> None:
        """Let go of the file."""
        self.chunk = None
        if isinstance(self.chunks, Generator):
            self.chunks.close()


class Flows:
    """Readings that wait to be gone on with, within a budget. Thread safe."""

    def __init__(self, budget: int, held: Callable[[int], None]) -> None:
        """`held`: told how many bytes they hold, whenever that changes."""
        self._budget, self._held = budget, held
        self._lock = threading.Lock()
        #: The one that was left last comes last; several may stand at one place, for as many readers.
        self._waiting: list[tuple[RowGroupKey, Flow]] = []
        self._bytes = 0

    def room(self, nbytes: int) -> int:
        """How many readings that hold `nbytes` may wait; one always may."""
        return max(1, self._budget // max(1, nbytes))

    def take(self, group: RowGroupKey, low: int) -> Flow | None:
        """The reading to get rows from `low` on from: the nearest that stands at it or before it.

        It may be another reader's, who then begins anew: that costs no more than beginning anew here. Ranks whose
        distance changes leave readings behind, and a limit on the gap made each such change a pass from the start.
        """
        with self._lock:
            places = [(flow.at, n) for n, (of, flow) in enumerate(self._waiting) if of == group and flow.at <= low]
            if not places:
                return None
            _, flow = self._waiting.pop(max(places)[1])
            self._count(-flow.nbytes)
            return flow

    def leave(self, group: RowGroupKey, flow: Flow) -> None:
        """Keep it for the next window; those that were left longest ago make room."""
        gone = []
        with self._lock:
            self._waiting.append((group, flow))
            self._count(flow.nbytes)
            while self._bytes > self._budget and len(self._waiting) > 1:
                gone.append(self._waiting.pop(0)[1])
                self._count(-gone[-1].nbytes)
        for one in gone:
            one.close()

    def _count(self, change: int) -> None:
        self._bytes += change
        self._held(self._bytes)

    def keep(self, wanted: Callable[[RowGroupKey], bool]) -> None:
        """Close readings of row groups that nobody wants any more."""
        with self._lock:
            gone = [flow for group, flow in self._waiting if not wanted(group)]
            if gone:
                self._waiting = [(group, flow) for group, flow in self._waiting if flow not in gone]
                self._count(-sum(flow.nbytes for flow in gone))
        for flow in gone:
            flow.close()

    def close(self) -> None:
        """Close all."""
        self.keep(lambda _: False)


def ranges(pieces: list[Piece], rows: int, most: int) -> list[tuple[int, int]]:
    """The rows [low, high) that the pieces of a row group need, in order; at most `most` ranges.

    Ranges with fewer than `rows` rows between them are one; where there are more than allowed, all are one.
    """
    found: list[tuple[int, int]] = []
    for low, high in sorted(_bounds(piece) for piece in pieces):
        if found and low <= found[-1][1] + rows:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found if len(found) <= most else [(found[0][0], found[-1][1])]


def _bounds(piece: Piece) -> tuple[int, int]:
    if isinstance(piece.source, slice):
        return piece.source.start, piece.source.stop
    return int(piece.source.min()), int(piece.source.max()) + 1
