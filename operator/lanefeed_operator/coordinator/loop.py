"""The one event loop of the process that report services run on, in a thread of its own.

gRPC's asyncio servers want one loop in a process; it is started when the first is made and lives as long as the
process. Whoever uses it leaves nothing on it. Used by `service` alone.
"""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["call"]

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def call(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """Run `work` on the loop and wait for what it returns. Raises TimeoutError after `seconds`."""
    future = asyncio.run_coroutine_threadsafe(work, _running())
    try:
        return future.result(seconds)
    except TimeoutError:
        future.cancel()
        raise


def _running() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="reports", daemon=True).start()
        return _loop
