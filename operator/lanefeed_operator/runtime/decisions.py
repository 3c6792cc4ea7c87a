"""One log line for each decision about a job: what was decided, for which plan, and why.

Everything that is decided is written into the status before it is done, so the lines are the differences between one
written status and the next. Told by `guard.GuardedApi` of every write and by the feed of what it lists; progress alone
makes no line. Decides nothing.
"""

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lanefeed_operator.kube.api import Object

__all__ = ["Decisions", "Line", "lines"]

log = logging.getLogger(__name__)

#: status.restarts -> how a person says it.
_COUNTS = {
    "failures": "program failures",
    "disruptions": "disruptions",
    "interrupted": "runs that ended before their stream",
    "lost": "pods lost with their nodes",
}
#: That nothing is wrong yet is no decision.
_QUIET_AT_FIRST = ("Degraded", "Stopping", "Suspended")
_PLAN = ("generation", "replicas", "ranksPerReplica", "start", "reason")


@dataclass(frozen=True, slots=True)
class Line:
    """One decision. `word` is what a log store filters by."""

    word: str
    text: str
    bad: bool = False


@dataclass(frozen=True, slots=True)
class _Known:
    """The parts of a status that decisions show in."""

    state: str
    plan: dict[str, Any]
    cursor: tuple[int, str]
    stop: tuple[int, str]
    conditions: dict[str, tuple[str, str]]
    counts: dict[str, int]
    fenced: frozenset[str]


def _known(status: Object) -> _Known:
    plan, cursor, stop = (status.get(name) or {} for name in ("plan", "cursor", "stop"))
    counts = status.get("restarts") or {}
    return _Known(
        state=status.get("state") or "Pending",
        plan={"generation": 0} | {key: plan[key] for key in _PLAN if key in plan},
        cursor=(cursor.get("totalStep", 0), cursor.get("commit", "")),
        stop=(stop.get("step", 0), stop.get("reason", "")),
        conditions={c["type"]: (c["status"], c["reason"]) for c in status.get("conditions") or ()},
        counts={name: counts.get(name, 0) for name in _COUNTS},
        fenced=frozenset(plan.get("fenced") or ()),
    )


def lines(before: Object, after: Object) -> list[Line]:
    """What was decided between two statuses, as they are written. Pure."""
    return list(_lines(_known(before), _known(after), after))


def _lines(old: _Known, new: _Known, status: Object) -> Iterator[Line]:
    for name, text in _COUNTS.items():
        if new.counts[name] > old.counts[name]:
            why = (status.get("restarts") or {}).get("lastReason", "")
            yield Line("Counted", f"{text} {old.counts[name]} -> {new.counts[name]} ({why})", bad=True)
    for uid in sorted(new.fenced - old.fenced):
        yield Line("Fence", f"pod {uid} is fenced: its reports are refused from now on", bad=True)
    if new.cursor != old.cursor:
        yield Line("Commit", f"commit of step {new.cursor[0]} ({new.cursor[1] or 'no name'})")
    if new.stop != old.stop and new.stop[0]:
        yield Line("Stop", f"ranks are to leave at step {new.stop[0]} ({new.stop[1]})")
    if new.plan["generation"] > old.plan["generation"]:
        p = new.plan
        text = f"{p.get('replicas')} pods x {p.get('ranksPerReplica')} ranks from step {p.get('start')}"
        yield Line("Plan", f"{text} ({p.get('reason')})")
    for condition in status.get("conditions") or ():
        kind, before = condition["type"], old.conditions.get(condition["type"])
        if before is None and kind in _QUIET_AT_FIRST and condition["status"] == "False":
            continue
        if new.conditions[kind] != before:
            text = f"{kind}={condition['status']} {condition['reason']}: {condition.get('message', '')}"
            yield Line(condition["reason"], text, bad=_bad(condition))
    if new.state != old.state:
        yield Line("State", f"{old.state} -> {new.state}", bad=new.state == "Failed")


def _bad(condition: Object) -> bool:
    wrong = {"SpecValid": "False", "DatasetReady": "False", "Degraded": "True", "Failed": "True", "Proven": "False"}
    return wrong.get(condition["type"]) == condition["status"]


class Decisions:
    """Remembers the last status of each job and logs what changed. Thread safe."""

    def __init__(self) -> None:
        """Nothing seen yet."""
        self._lock = threading.Lock()
        self._last: dict[str, _Known] = {}

    def seen(self, job: Object) -> None:
        """A ShardedTrainingJob as somebody (a former operator) left it: no line."""
        with self._lock:
            self._last.setdefault(job["metadata"]["uid"], _known(job.get("status") or {}))

    def wrote(self, job: Object) -> None:
        """This operator wrote the job's status."""
        meta, status = job["metadata"], job.get("status") or {}
        new = _known(status)
        with self._lock:
            old = self._last.get(meta["uid"]) or _known({})
            self._last[meta["uid"]] = new
        key, plan = f"{meta['namespace']}/{meta['name']}", new.plan["generation"]
        for line in _lines(old, new, status):
            more = {"job": key, "plan_generation": plan, "decision": line.word}
            level = logging.WARNING if line.bad else logging.INFO
            log.log(level, "job %s plan %d: %s", key, plan, line.text, extra=more)

    def forget(self, uid: str) -> None:
        """The job is gone."""
        with self._lock:
            self._last.pop(uid, None)
