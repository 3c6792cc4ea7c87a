"""A device for CPU tests that is as bad as a device may be: copies end late and out of order, and read until the end.

A copy takes its bytes only when it ends. So a slot that is released too early shows: the bytes are others by then.
"""

import threading
from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lanefeed._arena.mapping import Arena
from lanefeed._tensors import torch_dtype


class FakeCopy:
    """Ends when the device says so, or at `join`."""

    def __init__(self, device: "FakeDevice", source: NDArray[np.uint8]) -> None:
        self._device = device
        self._source: NDArray[np.uint8] | None = source
        self._ended = threading.Event()
        #: Streams that wait for it.
        self.ordered: list[Hashable] = []
        # Poison: whoever reads before the copy has ended sees it.
        self.target = torch.full((len(source),), 0xAB, dtype=torch.uint8)

    def end(self) -> None:
        """Move the bytes, now."""
        if self._source is not None:
            self.target.copy_(torch.from_numpy(self._source.copy()))
            self._source = None
        self._ended.set()

    def done(self) -> bool:
        """As the interface says."""
        self._device.tick()
        return self._ended.is_set()

    def join(self) -> None:
        """As the interface says."""
        self._device.joins += 1
        self.end()

    def order(self) -> None:
        """Ordering does not wait: the copy goes on, and its source must be kept."""
        self.ordered.append(self._device.stream)


class FakeDevice:
    """Ends, every few looks, the newest copy first."""

    def __init__(self, patience: int = 5) -> None:
        self.copies: list[FakeCopy] = []
        self.registered: list[str] = []
        self.patience, self.looks, self.joins = patience, 0, 0
        #: The current stream; tests set it.
        self.stream: Hashable = "default"
        #: What the next copies raise, first one first; None: nothing.
        self.failures: list[Exception | None] = []

    def tick(self) -> None:
        """A look at any copy: time passes."""
        self.looks += 1
        if self.looks % self.patience == 0:
            for copy in reversed(self.copies):
                if not copy._ended.is_set():
                    copy.end()
                    return

    def register(self, arena: Arena) -> None:
        """As the interface says."""
        self.registered.append(arena.session)

    def copy(self, source: NDArray[np.uint8]) -> FakeCopy:
        """As the interface says."""
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        self.copies.append(FakeCopy(self, source))
        return self.copies[-1]

    def current(self) -> Hashable:
        """As the interface says."""
        return self.stream

    def cut(self, target: Any, offset: int, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> Any:
        """The consumer's work: it comes after the copy, if that was ordered."""
        copy = next(copy for copy in self.copies if copy.target is target)
        assert self.stream in copy.ordered, "a frame was looked at before its copy was ordered"
        copy.end()
        count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return target[offset : offset + count].view(torch_dtype(dtype.name)).view(shape)
