"""Threads for reads that may hang."""

import subprocess
import sys
import threading
from concurrent.futures import CancelledError

import pytest

from lanefeed_sidecar.sources.pool import DaemonPool


def test_work_runs_side_by_side_in_few_threads() -> None:
    pool, gate, seen = DaemonPool(3, "t"), threading.Event(), set()

    def work() -> None:
        seen.add(threading.current_thread().name)
        gate.wait(60)

    waiting = [pool.submit(work) for _ in range(9)]
    gate.set()
    for future in waiting:
        future.result(60)
    for _ in range(20):
        pool.submit(work).result(60)
    assert len(seen) <= 3
    with pytest.raises(AttributeError):
        pool.submit(lambda: setattr(None, "x", 1)).result(60)
    pool.close()


def _wait(gate: threading.Event, begun: threading.Event) -> None:
    begun.set()
    gate.wait(60)


def test_what_waits_is_cancelled_by_close() -> None:
    pool, gate, begun = DaemonPool(1, "t"), threading.Event(), threading.Event()
    running = pool.submit(_wait, gate, begun)
    assert begun.wait(60)
    waiting = pool.submit(lambda: None)
    pool.close()
    with pytest.raises(CancelledError):
        waiting.result(60)
    with pytest.raises(CancelledError):
        pool.submit(lambda: None).result(60)
    gate.set()
    running.result(60)


def test_a_read_that_hangs_keeps_no_process_alive() -> None:
    code = (
        "import time; from lanefeed_sidecar.sources.pool import DaemonPool; "
        "DaemonPool(1, 't').submit(time.sleep, 600); time.sleep(0.2)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
