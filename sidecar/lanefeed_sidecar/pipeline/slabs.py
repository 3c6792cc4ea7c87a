"""Memory of wide columns' windows: a block for each window, and all blocks of a column in one array.

So the rows of a whole frame are gathered from all of its windows by one call for each column (`gather`), and what is
read from the decoded cache goes to its place at once. Called by `window.BufferPool`, which has the lock. Only addresses
are reserved; memory is taken when a block is written first and given back by `Slabs.free`. No order of rows here.
"""

import math
import mmap
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lanefeed_core.layout import Column
from lanefeed_sidecar.pipeline.plan import Run, plan_of

__all__ = ["HUGE_PAGE", "WIDE_BYTES", "Block", "Slabs", "is_wide", "wide"]

Array = NDArray[np.generic]

#: Rows of so many bytes are copied at the speed of memory wherever they lie; shorter ones are shuffled in the cache.
WIDE_BYTES = 512

#: Bytes at whose multiples large memory begins.
HUGE_PAGE = 2 << 20
#: Addresses are not memory: what is reserved may be more than the machine has. Python names it from 3.13 on.
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


def is_wide(run: Run) -> bool:
    """Whether the columns of a run lie in slabs."""
    return not run.ragged and run.row_bytes >= WIDE_BYTES


def wide(columns: tuple[Column, ...]) -> dict[int, Column]:
    """The columns, by index, that lie in slabs."""
    return {index: columns[index] for run in plan_of(columns).runs if is_wide(run) for index in run.columns}


class Slabs:
    """Blocks 0..count-1 of `rows` rows for each of `columns`. The caller excludes other threads, but for `Block`."""

    def __init__(self, columns: Mapping[int, Column], rows: int, count: int) -> None:
        """Nothing is taken yet. Raises OSError where the system gives no addresses."""
        self.rows = rows
        self._maps: dict[int, mmap.mmap] = {}
        self.arrays: dict[int, Array] = {}
        self._sizes: dict[int, int] = {}
        self._skips: dict[int, int] = {}
        for index, column in columns.items():
            shape = (count * rows, *column.shape)
            size = math.prod(shape) * column.itemsize
            memory = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
            raw = np.frombuffer(memory, np.uint8)
            skip = -raw.ctypes.data % HUGE_PAGE
            _advise(memory, "MADV_HUGEPAGE", 0, len(memory))
            self._maps[index], self._skips[index] = memory, skip
            self._sizes[index] = rows * column.row_bytes
            self.arrays[index] = raw[skip : skip + size].view(column.dtype).reshape(shape)
        #: Bytes of one block of all columns.
        self.block_bytes = sum(self._sizes.values())
        self._fresh = list(reversed(range(count)))
        #: Blocks that nobody uses and that hold memory, the one given back last at the end: its pages are the warmest.
        self._warm: list[int] = []
        #: Blocks of windows that ended without giving theirs back (`Block.__del__`).
        self.lost: deque[int] = deque()

    @property
    def nbytes(self) -> int:
        """Memory that waits for reuse."""
        return (len(self._warm) + len(self.lost)) * self.block_bytes

    def take(self) -> "Block | None":
        """A block, contents undefined; None where all are in use."""
        while self.lost:
            self._warm.append(self.lost.popleft())
        if not (self._warm or self._fresh):
            return None
        return Block(self, (self._warm or self._fresh).pop())

    def give(self, block: "Block") -> None:
        """Nobody reads or writes it any more."""
        block.given = True
        self._warm.append(block.number)

    def free(self) -> bool:
        """Give the memory of one unused block back to the system; False where none holds any."""
        while self.lost:
            self._warm.append(self.lost.popleft())
        if not self._warm:
            return False
        number = self._warm.pop(0)
        for index, memory in self._maps.items():
            start = self._skips[index] + number * self._sizes[index]
            first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
            length = (start + self._sizes[index]) // mmap.PAGESIZE * mmap.PAGESIZE - first
            if length > 0:
                _advise(memory, "MADV_DONTNEED", first, length)
        self._fresh.append(number)
        return True


@dataclass(slots=True, eq=False)
class Block:
    """One window's part of the slabs. Given back to them, or found again when it dies with its window."""

    slabs: Slabs
    number: int
    given: bool = field(default=False)

    @property
    def first(self) -> int:
        """Its first row in the slabs' arrays."""
        return self.number * self.slabs.rows

    def rows(self, index: int, count: int) -> Array:
        """The first `count` rows of a column."""
        part: Array = self.slabs.arrays[index][self.first : self.first + count]
        return part

    def __del__(self) -> None:
        """A window that was dropped before it was whole: its writers are gone too, or it would still be there."""
        if not self.given:
            # Finalizers run anywhere: no lock.
            self.slabs.lost.append(self.number)


def _advise(memory: mmap.mmap, advice: str, start: int, length: int) -> None:
    if hasattr(mmap, advice):
        try:
            memory.madvise(getattr(mmap, advice), start, length)
        except OSError:
            # A kernel without huge pages, say: only speed, or memory that is kept a while, depends on it.
            pass
