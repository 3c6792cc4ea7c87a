"""Buffers of windows that were read, for those that come: touching fresh memory costs more than the copies.

Made by the store, used by `window`; the store says how much may wait (docs/performance.md). No windows here.
"""

import logging
import math
import threading

import numpy as np
from numpy.typing import NDArray

from lanefeed_core.layout import Column
from lanefeed_sidecar.pipeline.plan import plan_of
from lanefeed_sidecar.pipeline.slabs import HUGE_PAGE, Block, Slabs, wide

__all__ = ["BufferPool"]

log = logging.getLogger(__name__)

Array = NDArray[np.generic]

#: Blocks of slabs beyond what the budget holds. They cost addresses.
_SPARE_BLOCKS = 4


class BufferPool:
    """Reuses window buffers of the same dtype and row shape; keeps at most `limit_bytes`. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        """Empty."""
        self._lock = threading.Lock()
        self._free: dict[tuple[str, tuple[int, ...]], list[Array]] = {}
        self._bytes = 0
        self._limit = limit_bytes
        self._slabs: Slabs | None = None
        self._refused = False

    def block(self, columns: tuple[Column, ...], rows: int) -> Block | None:
        """A block of `rows` rows for the wide ones of a stream's columns.

        None where there are none or all blocks are in use: the window then has buffers as for other columns.
        """
        with self._lock:
            if self._slabs is None and not self._refused:
                self._slabs = self._reserve(columns, rows)
            return self._slabs.take() if self._slabs is not None and self._slabs.rows == rows else None

    def _reserve(self, columns: tuple[Column, ...], rows: int) -> Slabs | None:
        found = wide(columns)
        if not found or not rows:
            return None
        # Windows in use and waiting are bounded by the budget, but for the few that are needed right now.
        count = 2 * self._limit // (rows * plan_of(columns).row_bytes) + _SPARE_BLOCKS
        try:
            return Slabs(found, rows, count)
        except OSError as error:
            self._refused = True
            log.warning("no addresses for %d windows of wide columns (%s): each has memory of its own", count, error)
            return None

    def give_block(self, block: Block) -> None:
        """Take a block back that nobody reads any more."""
        with self._lock:
            block.slabs.give(block)
            while block.slabs.nbytes + self._bytes > self._limit and block.slabs.free():
                pass

    def take(self, dtype: str, shape: tuple[int, ...]) -> Array:
        """An array of the shape, contents undefined."""
        with self._lock:
            free = self._free.get((dtype, shape))
            if free:
                # The one given back last: its pages and cache lines are the warmest.
                buffer = free.pop()
                self._bytes -= buffer.nbytes
                return buffer
        return _fresh(dtype, shape)

    def give(self, buffer: Array) -> None:
        """Take a buffer back that nobody reads any more."""
        with self._lock:
            if self._bytes + buffer.nbytes <= self._limit:
                self._free.setdefault((buffer.dtype.name, buffer.shape), []).append(buffer)
                self._bytes += buffer.nbytes

    @property
    def nbytes(self) -> int:
        """Bytes that wait for reuse."""
        with self._lock:
            return self._bytes + (self._slabs.nbytes if self._slabs is not None else 0)

    def trim(self, nbytes: int) -> None:
        """Free buffers until at most `nbytes` wait."""
        with self._lock:
            slabs = self._slabs
            while slabs is not None and self._bytes + slabs.nbytes > max(0, nbytes) and slabs.free():
                pass
            while self._bytes > max(0, nbytes):
                key = next(key for key, free in self._free.items() if free)
                self._bytes -= self._free[key].pop(0).nbytes


def _fresh(dtype: str, shape: tuple[int, ...]) -> Array:
    """An uninitialised array that begins at a huge page's edge where it is large.

    NumPy asks for huge pages for large arrays; without the alignment the ends of each are small pages, which cost as
    much time as the rest together.
    """
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    if nbytes < HUGE_PAGE:
        return np.empty(shape, dtype=dtype)
    raw = np.empty(nbytes + HUGE_PAGE, dtype=np.uint8)
    skip = -raw.ctypes.data % HUGE_PAGE
    return raw[skip : skip + nbytes].view(dtype).reshape(shape)
