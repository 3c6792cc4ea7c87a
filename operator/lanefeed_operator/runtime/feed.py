"""What watches and listings bring: into the View and what metrics and logs remember, and a look at the jobs concerned.

Called by the shell for each event and by the resync for whole listings. A job's own change is looked at at once; that
of a child, of which many change together, after a moment in which the rest of them can come in.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from lanefeed_operator.kube.api import JOBS, PODS, STJS, Kind, Object
from lanefeed_operator.render.constants import MANAGED_BY
from lanefeed_operator.runtime.decisions import Decisions
from lanefeed_operator.runtime.facts import JobFacts
from lanefeed_operator.runtime.workers import JobKey

__all__ = ["CHILD_SECONDS", "SELECTOR", "Feed", "Store", "selector"]

log = logging.getLogger(__name__)

#: Server-side selector of Jobs and Pods.
SELECTOR = ",".join(f"{name}={value}" for name, value in MANAGED_BY.items())
#: How long a child's change waits for those of its siblings.
CHILD_SECONDS = 0.1


def selector(kind: Kind) -> str:
    """What is asked of the API server of this kind: of Jobs and Pods, ours alone."""
    return SELECTOR if kind in (JOBS, PODS) else ""


class Store(Protocol):
    """The View, as far as it is fed. Each call returns the jobs that it matters to."""

    def put(self, kind: Kind, obj: Object) -> tuple[JobKey, ...]:
        """An object was seen."""

    def remove(self, kind: Kind, obj: Object) -> tuple[JobKey, ...]:
        """An object is gone."""

    def stamp(self) -> int:
        """A mark of this moment."""

    def replace(self, kind: Kind, objects: Iterable[Object], since: int, *, namespace: str = "") -> tuple[JobKey, ...]:
        """A whole listing that began at the mark `since`."""

    def keys(self) -> list[JobKey]:
        """Every job."""


class Feed:
    """See the module. Thread safe."""

    def __init__(
        self,
        view: Store,
        facts: JobFacts,
        decisions: Decisions,
        wake: Callable[[JobKey, float], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`wake(key, delay)` asks for a look at a job."""
        self.view = view
        self._facts, self._decisions, self._wake, self._clock = facts, decisions, wake, clock

    def seen(self, kind: Kind, obj: Object) -> None:
        """An object exists, or has changed."""
        keys = self.view.put(kind, obj)
        if kind == STJS:
            self._note(obj)
        self._look(kind, keys)

    def gone(self, kind: Kind, obj: Object) -> None:
        """An object was deleted."""
        keys = self.view.remove(kind, obj)
        if kind == STJS:
            self._facts.forget(obj["metadata"]["uid"])
            self._decisions.forget(obj["metadata"]["uid"])
        self._look(kind, keys)

    def listed(self, kind: Kind, objects: Iterable[Object], since: int, namespace: str = "") -> int:
        """A whole listing; how many jobs it matters to."""
        alive: set[str] = set()
        keys = self.view.replace(kind, self._noted(kind, objects, alive), since, namespace=namespace)
        if kind == STJS:
            for uid in self._facts.keep(alive, namespace):
                self._decisions.forget(uid)
        self._look(kind, keys)
        return len(keys)

    def _noted(self, kind: Kind, objects: Iterable[Object], alive: set[str]) -> Iterator[Object]:
        for obj in objects:
            if kind == STJS:
                alive.add(obj["metadata"]["uid"])
                self._note(obj)
            yield obj

    def _note(self, job: Object) -> None:
        """For metrics and logs; a status that somebody filled with nonsense must harm no other job."""
        try:
            self._facts.note(job, self._clock())
            self._decisions.seen(job)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            meta = job.get("metadata") or {}
            name = f"{meta.get('namespace')}/{meta.get('name')}"
            log.warning("job %s: its status cannot be read, metrics leave it out: %r", name, error, extra={"job": name})

    def _look(self, kind: Kind, keys: Iterable[JobKey]) -> None:
        for key in keys:
            self._wake(key, 0.0 if kind == STJS else CHILD_SECONDS)
