"""Puts a loader together: what `connect`, `open` and `lanefeed.testing` share."""

import importlib.util
from collections.abc import Callable
from typing import Any

from lanefeed._arena.mapping import Arena
from lanefeed._client.feed import Feed
from lanefeed._device.copier import Device, FrameCopier
from lanefeed._loader import Loader
from lanefeed._stream import Stream
from lanefeed.errors import UsageError
from lanefeed_core.cursor import SavedState

__all__ = ["STALL_SECONDS", "TENSORS", "copier_for", "make_loader", "register_with", "wrapper"]

TENSORS = ("torch", "numpy")
#: How long a silent sidecar is waited for while the trainer needs a batch.
STALL_SECONDS = 120.0


def wrapper(tensors: str | None) -> Callable[[Any], Any] | None:
    """What makes tensors of arrays: None for NumPy. With `tensors=None`, torch if it is installed."""
    if tensors is None:
        tensors = "torch" if importlib.util.find_spec("torch") else "numpy"
    if tensors not in TENSORS:
        raise UsageError(
            f"tensors is {tensors!r}: it must be one of {', '.join(TENSORS)}, or None for what is installed"
        )
    if tensors == "numpy":
        return None
    try:
        from lanefeed._tensors import to_tensor
    except ModuleNotFoundError:
        raise UsageError("tensors='torch' needs torch: install it, or connect with tensors='numpy'") from None
    return to_tensor


def copier_for(device: "str | Device | None", wrap: Callable[[Any], Any] | None) -> FrameCopier | None:
    """The copier for `device`: None for the host ("cpu"), CUDA, or any object that is a Device. Raises UsageError."""
    name = device if isinstance(device, str) else getattr(device, "type", None)
    if device is None or name == "cpu":
        return None
    if wrap is None:
        raise UsageError(f"device={device!r} needs tensors='torch'")
    if not isinstance(device, str) and hasattr(device, "cut"):
        return FrameCopier(device)
    if name is not None and str(device).startswith("cuda"):
        from lanefeed._device.cuda import CudaDevice, usable

        return FrameCopier(CudaDevice(usable(str(device))))
    raise UsageError(
        f"device {device!r} is not supported: use 'cpu' or 'cuda:N', and move batches yourself by batch.to()"
    )


def register_with(copier: FrameCopier | None) -> Callable[[Arena], None] | None:
    """Whom a feed tells of new arenas."""
    return copier.device.register if copier else None


def make_loader(
    feed: Feed,
    *,
    rank: int,
    world: int,
    wrap: Callable[[Any], Any] | None,
    copier: FrameCopier | None = None,
    stall_seconds: float = STALL_SECONDS,
    lookahead: str = "auto",
    adopt: Callable[[SavedState], bool] | None = None,
    reset: Callable[[], bool] | None = None,
    release: Callable[[], None] | None = None,
) -> Loader:
    """A loader over a feed."""
    stream = Stream(feed, world=world, wrap=wrap, copier=copier, stall_seconds=stall_seconds, lookahead=lookahead)
    return Loader(feed, stream, rank=rank, world=world, adopt=adopt, reset=reset, release=release)
