"""A frame on a device: whatever stream looks at it waits for its copy first."""

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from lanefeed._arena.frame import Cut, Frame, Layout
from lanefeed._device.copier import Copy, Device
from lanefeed_core.proto import lanefeed_pb2 as pb

__all__ = ["DeviceFrame", "device_frame"]


class DeviceFrame(Frame):
    """A frame whose values may have been made ahead, for a stream that is not the one that now gets them."""

    __slots__ = ("_order",)

    def __init__(
        self, message: pb.Frame, layout: Layout, cut: Cut, host: Cut, world: int, order: Callable[[], None]
    ) -> None:
        """As `Frame`; `order` makes the current stream wait for the copy, and `cut` calls it too."""
        super().__init__(message, layout, cut, host, world)
        self._order = order

    def value(self, name: str, step: int) -> Any:
        """As for any frame."""
        self._order()
        return super().value(name, step)

    def values(self, step: int) -> list[Any]:
        """As for any frame."""
        self._order()
        return super().values(step)


def device_frame(message: pb.Frame, layout: Layout, device: Device, copy: Copy, host: Cut, world: int) -> DeviceFrame:
    """The frame that `copy` brings to `device`; `host` cuts its ids. The copy is ordered once for each stream."""
    # Nothing here knows the frame: a cycle would keep the device's buffer until the collector runs.
    target = copy.target
    ordered: set[Hashable] = set()

    def order() -> None:
        current = device.current()
        if current not in ordered:
            copy.order()
            ordered.add(current)

    def cut(offset: int, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> Any:
        order()
        return device.cut(target, offset, dtype, shape)

    return DeviceFrame(message, layout, cut, host, world, order)
