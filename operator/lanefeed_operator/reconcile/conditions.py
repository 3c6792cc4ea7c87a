"""Conditions: the truth about a job, each message with the next thing to do.

Pure helpers for the policies. Transition times change only with the status; an unchanged condition is the same
object, so that an unchanged job is never written.
"""

from collections.abc import Sequence

from lanefeed_operator.api.status import Condition, Status, to_time

__all__ = [
    "COMPLETE",
    "DATASET_READY",
    "DEGRADED",
    "EXITED_EARLY",
    "FAILED",
    "NOT_CONNECTED",
    "PROVEN",
    "READ_ON",
    "RUNNING",
    "SPEC_INVALID",
    "SPEC_VALID",
    "STOPPING",
    "SUSPENDED",
    "clip",
    "is_true",
    "put",
]

SPEC_VALID = "SpecValid"
#: Its reason where the spec cannot be read: the shell says so, reconcile never sees such a job.
SPEC_INVALID = "SpecInvalid"
DATASET_READY = "DatasetReady"
RUNNING = "Running"
STOPPING = "Stopping"
SUSPENDED = "Suspended"
DEGRADED = "Degraded"
PROVEN = "Proven"
COMPLETE = "Complete"
FAILED = "Failed"

#: Reason of Running=True while trainers load, or forget to connect.
NOT_CONNECTED = "TrainerNotConnected"

#: Reason of Degraded and Failed: code 0 before the stream's end; and what such a trainer should do instead.
EXITED_EARLY = "ExitedEarly"
READ_ON = (
    "read the loader to its end, call loader.finish() to end early, and raise lanefeed.Stopped when it is stopped; or "
    "set completion: OnExit"
)

#: In this order in the status, whatever order they were set in.
ORDER = (SPEC_VALID, DATASET_READY, RUNNING, STOPPING, SUSPENDED, DEGRADED, PROVEN, COMPLETE, FAILED)

MAX_MESSAGE_BYTES = 1024


def clip(text: str, limit: int = MAX_MESSAGE_BYTES) -> str:
    """`text` in at most `limit` bytes once written as JSON, its beginning kept."""
    if len(text) * 12 <= limit:
        return text
    size = 0
    kept: list[str] = []
    for char in text:
        size += _json_bytes(char)
        if size > limit - 3:
            return "".join(kept) + "..."
        kept.append(char)
    return text


def _json_bytes(char: str) -> int:
    """Bytes of a character in JSON; at most that many."""
    if char.isascii() and char.isprintable() and char not in '"\\':
        return 1
    if char in '"\\\n':
        return 2
    # Beyond the basic plane JSON writes two escapes.
    return 6 if ord(char) <= 0xFFFF else 12


def put(
    status: Status, kind: str, value: bool | None, reason: str, message: str, now: float, generation: int
) -> Status:
    """`status` with the condition set; the very same object if it says so already. None is Unknown."""
    word = "Unknown" if value is None else str(value)
    message, reason = clip(message), reason[:128]
    old = status.condition(kind)
    if old and (old.status, old.reason, old.message) == (word, reason, message):
        return status
    moved = old.last_transition_time if old and old.status == word else to_time(now)
    new = Condition(
        type=kind,
        status=word,
        reason=reason,
        message=message,
        last_transition_time=moved,
        observed_generation=generation,
    )
    return status.model_copy(update={"conditions": _sorted([*(c for c in status.conditions if c.type != kind), new])})


def is_true(status: Status, kind: str) -> bool:
    """Whether the condition is True."""
    found = status.condition(kind)
    return found is not None and found.status == "True"


def _sorted(conditions: Sequence[Condition]) -> list[Condition]:
    return sorted(conditions, key=lambda c: ORDER.index(c.type) if c.type in ORDER else len(ORDER))
