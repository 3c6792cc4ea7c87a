"""Events for `kubectl describe`: one for each change that a person wants to see, none while nothing changes.

Called by the controller after a status was written. Never in the way: an event that cannot be made is logged and
forgotten. Names follow from what happened, so that one change makes one event, whoever tells of it again.
"""

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from lanefeed_operator.api.spec import API_VERSION, KIND
from lanefeed_operator.api.status import Condition, Status
from lanefeed_operator.kube.api import EVENTS, AlreadyExists, ApiError, KubeApi, Object
from lanefeed_operator.reconcile.conditions import (
    COMPLETE,
    DATASET_READY,
    DEGRADED,
    FAILED,
    NOT_CONNECTED,
    PROVEN,
    RUNNING,
    SPEC_VALID,
    STOPPING,
    SUSPENDED,
    clip,
)
from lanefeed_operator.runtime.ending import is_ending

__all__ = ["Note", "changes", "tell"]

log = logging.getLogger(__name__)

CONTROLLER = "lanefeed.dev/operator"
#: What the API server takes.
MAX_NOTE_BYTES = 1000
#: The same words are told once in so many seconds, however often they come true.
AGAIN_SECONDS = 60.0
#: Conditions that are told whenever they turn to this value: bad news, and the end of bad news.
_TOLD = ((SPEC_VALID, "False"), (DATASET_READY, "False"), (DEGRADED, "True"), (PROVEN, "True"))


@dataclass(frozen=True, slots=True)
class Note:
    """One event."""

    reason: str
    text: str
    warning: bool = False


def changes(before: Status, after: Status) -> list[Note]:
    """What a person wants to know of the step from one status to the next. Pure."""
    if after is before:
        return []
    found = [*_conditions(before, after), *_plan(before, after), *_state(before, after)]
    return list({note.reason: note for note in found}.values())


def _state(before: Status, after: Status) -> Iterator[Note]:
    if after.state == before.state or after.state in ("Pending", "Starting"):
        return
    told = {"Failed": FAILED, "Complete": COMPLETE, "Suspended": SUSPENDED, "Running": RUNNING, "Queued": RUNNING}
    names = [told[after.state]] if after.state in told else [STOPPING, DATASET_READY]
    texts = [x.message for name in names if (x := after.condition(name)) is not None and x.message]
    yield Note(after.state, texts[0] if texts else f"the job is {after.state}", after.state == "Failed")


def _conditions(before: Status, after: Status) -> Iterator[Note]:
    for kind, value in _TOLD:
        new, old = after.condition(kind), before.condition(kind)
        if new is None or new.status != value or (old is not None and _same(old, new)):
            continue
        yield Note(new.reason, new.message, kind != PROVEN)
    new, old = after.condition(RUNNING), before.condition(RUNNING)
    if new is not None and new.reason == NOT_CONNECTED and (old is None or not _same(old, new)):
        # Large models load for minutes: it is worth a word, and no warning yet.
        yield Note(new.reason, new.message)


def _same(old: Condition, new: Condition) -> bool:
    """Counts and names in a message change all the time; a reason that changes is news."""
    return (old.status, old.reason) == (new.status, new.reason)


def _plan(before: Status, after: Status) -> Iterator[Note]:
    plan = after.plan
    if plan.generation == before.plan.generation:
        return
    text = f"plan generation {plan.generation}: {plan.replicas} pods x {plan.ranks_per_replica} ranks"
    yield Note("Planned", f"{text} from step {plan.start} ({plan.reason})")


def tell(api: KubeApi, meta: Object, notes: list[Note], now: float) -> bool:
    """Make the events of the ShardedTrainingJob with this metadata; what cannot be told is logged.

    Returns whether the namespace is found to be on its way out.
    """
    for note in notes:
        try:
            api.create(EVENTS, meta["namespace"], _event(meta, note, now))
        except AlreadyExists:
            continue
        except ApiError as error:
            if is_ending(error):
                return True
            log.info("%s: event %s is not told: %s", meta["name"], note.reason, error)
    return False


def _event(meta: Object, note: Note, now: float) -> Object:
    moment = datetime.fromtimestamp(now, UTC)
    what = f"{meta['uid']} {note.reason} {note.text} {int(now / AGAIN_SECONDS)}"
    mark = hashlib.blake2b(what.encode(), digest_size=8).hexdigest()
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{meta['name']}.{mark}", "namespace": meta["namespace"]},
        "eventTime": moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": CONTROLLER,
        "reportingInstance": "lanefeed-operator",
        "action": "Reconcile",
        "reason": note.reason[:128],
        "regarding": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
        },
        "type": "Warning" if note.warning else "Normal",
        "note": clip(note.text, MAX_NOTE_BYTES),
    }
