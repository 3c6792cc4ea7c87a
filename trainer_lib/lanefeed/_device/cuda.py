"""CUDA: whole frames go over on a side stream, from pinned memory.

The arena is registered as pinned once; where the driver refuses (no rights, another platform), frames go through
pinned staging buffers instead, one copy on the host more. Batches are views of the frame's device buffer; the caching
allocator keeps the buffer until the consumer's stream is done with it.
"""

import logging
import weakref
from collections import deque
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lanefeed._arena.mapping import Arena
from lanefeed._tensors import torch_dtype
from lanefeed.errors import UsageError

__all__ = ["CudaCopy", "CudaDevice", "usable"]

log = logging.getLogger("lanefeed")

#: cudaHostRegisterDefault.
_REGISTER_DEFAULT = 0


class CudaCopy:
    """One frame on its way; `keep` holds the staging buffer, if there is one, until the copy is done."""

    def __init__(self, target: torch.Tensor, event: torch.cuda.Event, keep: Any) -> None:
        """`event` was recorded on the side stream after the copy."""
        self.target = target
        self._event = event
        self._keep = keep

    def done(self) -> bool:
        """Whether the copy is finished."""
        if not self._event.query():
            return False
        self._keep = None
        return True

    def join(self) -> None:
        """Block until it is."""
        self._event.synchronize()
        self._keep = None

    def order(self) -> None:
        """The current stream waits for the copy; the buffer is not reused before the current stream is done with it."""
        current = torch.cuda.current_stream(self.target.device)
        current.wait_event(self._event)
        self.target.record_stream(current)


class CudaDevice:
    """A CUDA device, "cuda" or "cuda:N"."""

    def __init__(self, device: str) -> None:
        """Raises what torch raises where there is no such device: `usable` says it in words."""
        self.device = torch.device(device)
        if self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self._stream = torch.cuda.Stream(self.device)
        self._staging: deque[tuple[torch.cuda.Event, torch.Tensor]] = deque()
        #: Addresses of mappings: each attach makes a new one, also of the same session.
        self._pinned: set[int] = set()

    def register(self, arena: Arena) -> None:
        """Pin the arena's memory; unpinned when the last view of the arena dies, before the memory is unmapped."""
        address = arena.root.ctypes.data
        if address in self._pinned:
            return
        runtime = torch.cuda.cudart()
        with torch.cuda.device(self.device):
            code = int(runtime.cudaHostRegister(address, arena.root.nbytes, _REGISTER_DEFAULT))
        if code:
            log.warning(
                "the arena cannot be pinned (cudaHostRegister: error %d): frames go through staging buffers", code
            )
            return
        self._pinned.add(address)
        weakref.finalize(arena.root, _unpin, self._pinned, address, runtime).atexit = False

    def copy(self, source: NDArray[np.uint8]) -> CudaCopy:
        """Copy on the side stream; the target belongs to that stream until `order`."""
        host, keep = torch.from_numpy(source), None
        if not host.is_pinned():
            keep = self._stage(len(source))
            host = keep[: len(source)].copy_(host)
        event = torch.cuda.Event()
        with torch.cuda.stream(self._stream):
            target = torch.empty(len(source), dtype=torch.uint8, device=self.device)
            target.copy_(host, non_blocking=True)
            event.record(self._stream)
        if keep is not None:
            self._staging.append((event, keep))
        return CudaCopy(target, event, keep)

    def _stage(self, nbytes: int) -> torch.Tensor:
        """A pinned buffer of at least `nbytes` whose former copy is done, or a new one."""
        if self._staging and self._staging[0][0].query():
            _, buffer = self._staging.popleft()
            if buffer.numel() >= nbytes:
                return buffer
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def current(self) -> int:
        """The handle of the device's current stream."""
        return int(torch.cuda.current_stream(self.device).cuda_stream)

    def cut(self, target: torch.Tensor, offset: int, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> torch.Tensor:
        """A view of the frame's buffer on the device."""
        count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return target[offset : offset + count].view(torch_dtype(dtype.name)).view(shape)


def usable(name: str) -> str:
    """`name`, if torch sees that device. Raises UsageError with what was asked for and what is there."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"device is {name!r}, which is no device's name: write 'cpu', 'cuda' or 'cuda:0'") from None
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        built = torch.version.cuda or torch.version.hip
        why = (
            f"is built for CUDA {built} and finds no GPU that it can use: look at nvidia-smi, the driver and "
            "CUDA_VISIBLE_DEVICES"
            if built
            else "is built without CUDA: install one that has it"
        )
        raise UsageError(f"device is {name!r}, and torch {torch.__version__} {why}, or use device='cpu'")
    if (device.index or 0) >= count:
        names = ", ".join(repr(f"cuda:{index}") for index in range(count))
        raise UsageError(
            f"device is {name!r}, and torch sees {count} GPU{'s' if count > 1 else ''}: use {names}, or look at "
            "CUDA_VISIBLE_DEVICES"
        )
    return name


def _unpin(pinned: set[int], address: int, runtime: Any) -> None:
    """The memory is unmapped after this, and another mapping may come to lie at its address."""
    pinned.discard(address)
    runtime.cudaHostUnregister(address)
