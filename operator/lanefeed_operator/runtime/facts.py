"""What metrics say of each job, read from its status as it is written: no second truth.

Fed with every ShardedTrainingJob that is seen, asked at each scrape. What a status does not hold is remembered here,
per job, and goes with the job: when its cursor last moved, and which restarts were counted already. Decides nothing.
"""

import threading
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from lanefeed_operator.api.status import from_time

__all__ = ["KNOWN_STATES", "JobFacts", "Seen"]

#: Shown with 0 where no job is in them, so that graphs have no gaps; see reconcile.states.
KNOWN_STATES = (
    "Pending",
    "Indexing",
    "Queued",
    "Starting",
    "Running",
    "Resizing",
    "Suspending",
    "Restarting",
    "Suspended",
    "Complete",
    "Failed",
)
#: Counters of status.restarts that make lanefeed_operator_restarts_total.
RESTARTS = ("failures", "disruptions", "resizes", "suspends", "interrupted", "lost")


@dataclass(frozen=True, slots=True)
class Seen:
    """One job as metrics show it. None: not to be shown now."""

    namespace: str
    name: str
    state: str
    plan_generation: int
    #: Seconds since the last commit, or since the plan began; only while it runs.
    commit_age: float | None
    #: Restarts that the index that failed most may still use; only until the job is over.
    budget_left: int | None


@dataclass(slots=True)
class _Job:
    namespace: str
    name: str
    version: int = 0
    state: str = "Pending"
    plan_generation: int = 0
    planned: float = 0.0
    budget_left: int = 0
    step: int = 0
    moved: float = 0.0
    counted: dict[str, int] = field(default_factory=dict)


class JobFacts:
    """See the module. Thread safe."""

    def __init__(self) -> None:
        """Nothing seen yet."""
        self._lock = threading.Lock()
        self._jobs: dict[str, _Job] = {}
        self._restarts: Counter[str] = Counter()

    def note(self, obj: dict[str, Any], now: float) -> None:
        """Take in a ShardedTrainingJob as the API server wrote it. `now`: seconds since 1970."""
        meta, status = obj["metadata"], obj.get("status") or {}
        version = _number(meta.get("resourceVersion"))
        with self._lock:
            job = self._jobs.get(meta["uid"])
            if job is None:
                job = self._jobs[meta["uid"]] = _Job(meta["namespace"], meta["name"])
                self._first(job, status, now)
            if version < job.version:
                return
            job.version = version
            self._take(job, obj.get("spec") or {}, status, now)

    def forget(self, uid: str) -> None:
        """The job is gone."""
        with self._lock:
            self._jobs.pop(uid, None)

    def keep(self, uids: Set[str], namespace: str) -> list[str]:
        """Of a namespace ("": of all) only these jobs exist; those that were forgotten."""
        with self._lock:
            gone = [uid for uid, job in self._jobs.items() if namespace in ("", job.namespace) and uid not in uids]
            for uid in gone:
                del self._jobs[uid]
        return gone

    def all(self, now: float) -> list[Seen]:
        """Every job, as of now."""
        with self._lock:
            return [_seen(job, now) for job in self._jobs.values()]

    def restarts(self) -> dict[str, int]:
        """Restarts by reason since this process began."""
        with self._lock:
            return {reason: self._restarts[reason] for reason in RESTARTS}

    # ---- inside ------------------------------------------------------------------------------------------------

    @staticmethod
    def _first(job: _Job, status: dict[str, Any], now: float) -> None:
        """What happened before our time is not counted; a commit of before our time is as old as our time."""
        job.step = (status.get("cursor") or {}).get("totalStep", 0)
        job.moved = now if job.step else 0.0
        job.counted = _counts(status)

    def _take(self, job: _Job, spec: dict[str, Any], status: dict[str, Any], now: float) -> None:
        plan = status.get("plan") or {}
        job.state = status.get("state") or "Pending"
        job.plan_generation = status.get("planGeneration", 0)
        job.planned = _time(plan.get("time"))
        job.budget_left = max(0, spec.get("maxRestarts", 3) - max((plan.get("failures") or {}).values(), default=0))
        step = (status.get("cursor") or {}).get("totalStep", 0)
        if step != job.step:
            job.step, job.moved = step, now
        for name, count in _counts(status).items():
            self._restarts[name] += max(0, count - job.counted[name])
            job.counted[name] = max(count, job.counted[name])


def _seen(job: _Job, now: float) -> Seen:
    age = max(0.0, now - max(job.moved, job.planned))
    over = job.state in ("Complete", "Failed")
    return Seen(
        namespace=job.namespace,
        name=job.name,
        state=job.state,
        plan_generation=job.plan_generation,
        commit_age=age if job.state == "Running" else None,
        budget_left=None if over else job.budget_left,
    )


def _time(text: Any) -> float:
    """Seconds since 1970; 0 where somebody wrote no time there."""
    try:
        return from_time(text or "")
    except (ValueError, TypeError):
        return 0.0


def _counts(status: dict[str, Any]) -> dict[str, int]:
    return {name: (status.get("restarts") or {}).get(name, 0) for name in RESTARTS}


def _number(version: Any) -> int:
    return int(version) if isinstance(version, str) and version.isascii() and version.isdigit() else 0
