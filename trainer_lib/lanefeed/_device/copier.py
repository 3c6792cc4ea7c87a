"""The interface of devices, and the policy over it that is the same for all: what is copied when, what is kept until.

`Stream` gives each host frame to a `FrameCopier` one frame before it is needed. The contract, tested on the CPU with a
device that delays, reorders and lies in wait (tests/unit/trainer): the source is kept until the copy is done, and
nobody reads the target before.
"""

from collections import deque
from collections.abc import Hashable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lanefeed._arena.mapping import Arena

__all__ = ["Copy", "Device", "FrameCopier"]


class Copy(Protocol):
    """One copy under way, from host to device."""

    @property
    def target(self) -> Any:
        """The device's buffer, uint8 [n], in its own kind of tensor."""

    def done(self) -> bool:
        """Whether the source is no longer read."""

    def join(self) -> None:
        """Block until the source is no longer read."""

    def order(self) -> None:
        """From here on work on the current stream comes after the copy; may block or only order streams."""


class Device(Protocol):
    """Where frames go."""

    def register(self, arena: Arena) -> None:
        """A new arena may be copied from (pin it, if the device can); called before its first frame."""

    def copy(self, source: NDArray[np.uint8]) -> Copy:
        """Start to copy `source`, uint8 [n]. Does not wait. The caller keeps `source` as it is until `done`.

        Where it raises, it may be asked again.
        """

    def current(self) -> Hashable:
        """Which stream the caller's work goes to now; always the same where a device has no such thing."""

    def cut(self, target: Any, offset: int, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> Any:
        """A view of a target buffer: `shape` elements of `dtype` from byte `offset` on."""


class FrameCopier:
    """Keeps the sources of copies under way. Not thread-safe: the loader's thread calls it."""

    def __init__(self, device: Device) -> None:
        """Nothing under way."""
        self.device = device
        self._under_way: deque[tuple[Copy, NDArray[np.uint8]]] = deque()

    def submit(self, source: NDArray[np.uint8]) -> Copy:
        """Start to copy; `source` (and so its slot) is kept until the copy is done."""
        self.poll()
        copy = self.device.copy(source)
        self._under_way.append((copy, source))
        return copy

    def poll(self) -> None:
        """Let go of the sources of finished copies, in whatever order they finish."""
        if self._under_way:
            self._under_way = deque(pair for pair in self._under_way if not pair[0].done())

    def drain(self) -> None:
        """Wait for all copies: before waiting for frames, so that no slot is held by a copy that nobody asks for."""
        while self._under_way:
            self._under_way[0][0].join()
            self._under_way.popleft()

    def __len__(self) -> int:
        return len(self._under_way)
