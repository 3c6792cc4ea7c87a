"""Runs scenarios side by side: most of them wait for the cluster's own delays, so several cost little more than one.

A scenario is a test function of the cluster, decorated with `@scenario(group)`. Those of one group run side by side:
`calm` leaves the cluster alone, `nodes` takes away node3, which `calm` does not use; both at the same time. `control`,
which takes away what all jobs need, comes after them, one at a time. pytest waits for each in its order.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from e2e.cluster import Cluster

__all__ = ["Scenarios", "scenario"]

Run = Callable[[Cluster], None]

#: How many scenarios of a group run at a time.
WIDTH = {"calm": 4, "nodes": 1, "control": 1}
#: For all that come before it, and itself.
SECONDS = 2400

_registered: dict[str, tuple[str, Run]] = {}


def scenario(group: str) -> Callable[[Run], Callable[["Scenarios"], None]]:
    """Make a scenario of a function; what it gives is the test that asks for its result."""
    assert group in WIDTH, group

    def register(run: Run) -> Callable[[Scenarios], None]:
        name = run.__name__
        assert name not in _registered, name
        _registered[name] = (group, run)

        # No functools.wraps: pytest would look for the arguments of what is wrapped.
        @pytest.mark.scenario(name)
        @pytest.mark.timeout(SECONDS + 60)
        def test(results: Scenarios) -> None:
            results.result(name)

        test.__name__, test.__doc__, test.__module__ = name, run.__doc__, run.__module__
        return test

    return register


class Scenarios:
    """The scenarios of a session: started once, each gives its result to its test."""

    def __init__(self, cluster: Cluster, wanted: list[str]) -> None:
        """Begin; `wanted`: names."""
        self._results: dict[str, Future[None]] = {name: Future() for name in wanted}
        self._cluster = cluster
        self._thread = threading.Thread(target=self._run, name="scenarios", daemon=True)
        self._thread.start()

    def result(self, name: str) -> None:
        """Wait for a scenario; raises what it raised."""
        self._results[name].result(timeout=SECONDS)

    def join(self, seconds: float) -> None:
        """Wait until all have ended."""
        self._thread.join(seconds)

    def _run(self) -> None:
        for pool in [self._group(group) for group in ("calm", "nodes")]:
            pool.shutdown(wait=True)
        self._group("control").shutdown(wait=True)

    def _group(self, group: str) -> ThreadPoolExecutor:
        pool = ThreadPoolExecutor(WIDTH[group], thread_name_prefix=group)
        for name, future in self._results.items():
            if _registered[name][0] == group:
                pool.submit(self._one, _registered[name][1], future)
        return pool

    def _one(self, run: Run, future: "Future[None]") -> None:
        try:
            run(self._cluster)
        except BaseException as error:
            # The edge of a thread: the test raises it again.
            future.set_exception(error)
        else:
            future.set_result(None)
