"""Waiting on a word of shared memory, across processes: Linux's futex, which Python has no name for.

Used by the `arena` rooms of sidecar and trainer for the board (docs/protocol.md). The core waits here and nowhere else:
both need it and neither may import the other. The kernel compares the word and sleeps in one go, so a change
before the sleep is no lost wake-up; every wait ends by itself all the same.
"""

import ctypes
import platform
import sys
from functools import cache

__all__ = ["Futex", "available"]

_WAIT, _WAKE = 0, 1
_EVERYBODY = 0x7FFFFFFF
#: Number of the system call, by machine.
_CALLS = {"x86_64": 202, "aarch64": 98}


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_ARGUMENTS = (ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(_Timespec))


@cache
def _functions() -> tuple[object, object, int] | None:
    """The call that lets other threads run, the one that does not (it returns at once), its number; None: not here."""
    number = _CALLS.get(platform.machine())
    if sys.platform != "linux" or number is None or sys.byteorder != "little" or ctypes.sizeof(ctypes.c_long) != 8:
        return None
    try:
        waits, returns = ctypes.CDLL(None).syscall, ctypes.PyDLL(None).syscall
    except (OSError, AttributeError):
        return None
    for function in (waits, returns):
        function.argtypes, function.restype = _ARGUMENTS, ctypes.c_long
    word = ctypes.c_uint32(0)
    # A sandbox may refuse the call.
    return (waits, returns, number) if returns(number, ctypes.addressof(word), _WAKE, 1, None) == 0 else None


def available() -> bool:
    """Whether this machine has it: Linux on x86-64 or arm64, with the call allowed."""
    return _functions() is not None


class Futex:
    """The u32 at `offset` of writable shared memory. Keeps the memory alive."""

    def __init__(self, memory: memoryview, offset: int) -> None:
        """`memory` must be shared between the processes; raises OSError where there is no futex."""
        found = _functions()
        if found is None:
            raise OSError("this machine has no futex that Lanefeed knows")
        self._waits, self._returns, self._number = found
        self._word = ctypes.c_uint32.from_buffer(memory, offset)
        self._address = ctypes.addressof(self._word)
        #: Read by the kernel as a call begins; one thread waits here at a time.
        self._time = _Timespec(0, 0)
        self._seconds = 0.0
        self._time_at = ctypes.byref(self._time)

    def wait(self, seen: int, seconds: float) -> None:
        """Return when the word is not `seen`, was woken, or the time is over; perhaps sooner. Holds no GIL."""
        if seconds != self._seconds:
            self._seconds, self._time.seconds = seconds, int(seconds)
            self._time.nanoseconds = int((seconds - int(seconds)) * 1e9)
        self._waits(self._number, self._address, _WAIT, seen, self._time_at)  # type: ignore[operator]

    def wake(self) -> None:
        """Wake whoever waits; about a microsecond, also where nobody does."""
        self._returns(self._number, self._address, _WAKE, _EVERYBODY, None)  # type: ignore[operator]
