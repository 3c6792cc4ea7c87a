"""What every scenario does around its own part: make the job, keep what a reader needs if it fails, remove it."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from e2e.cluster import ROOT, Cluster
from e2e.job import Job

__all__ = ["LOGS", "job", "took"]

#: What a failed scenario leaves, and the times that were measured. Not committed.
LOGS = ROOT / ".e2e"
_lock = threading.Lock()


@contextmanager
def job(cluster: Cluster, name: str, *more: Any, **spec: Any) -> Iterator[Job]:
    """A job that is not applied yet; arguments as of Job."""
    made = Job(cluster, name, *more, **spec)
    try:
        yield made
    except BaseException:
        made.collect(LOGS / name)
        raise
    finally:
        made.remove()
        _tell(made)


def _tell(made: Job) -> None:
    """Where the scenario's time went, into .e2e/timeline.txt."""
    made.timeline.append((time.time(), "removed"))
    steps = [f"{after - before:6.1f} s  {what}\n" for (before, _), (after, what) in pairwise(made.timeline)]
    with _lock:
        LOGS.mkdir(exist_ok=True)
        with (LOGS / "timeline.txt").open("a") as file:
            file.write(f"{made.name}\n{''.join(steps)}")


def took(what: str, seconds: float, limit: float, *, room: float = 1.0) -> None:
    """Write a measured time into .e2e/times.json; fails where it is above what the design promises (G9).

    `room`: times of the promise that are let pass, where scenarios run side by side and the machine is slow.
    """
    with _lock:
        LOGS.mkdir(exist_ok=True)
        file = LOGS / "times.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        known[what] = {"seconds": round(seconds, 2), "limit": limit}
        file.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    assert seconds <= limit * room, f"{what} took {seconds:.1f} s, {limit:.0f} are promised"
