"""Named points at which tests plant a fault: the only place where the sidecar knows of them.

Armed by `PodConfig.faults` or the environment variable LANEFEED_FAILPOINTS ("point=kill@3;other=sleep:0.5"), never in
production. An unarmed point costs one look into an empty dict. A plan is "kill", "raise" or "sleep:SECONDS", with
"@N" behind it to strike at the N-th time and from then on ("kill" needs no more than one).

Points: slot.mid_write (the slot's bytes are there, its state word is not), server.before_signal (published, not
sent), board.mid_write (the description is there, its number is not), board.before_wake (shown, nobody woken),
report.before (a report is built, not sent), commit.before_append, commit.after_append (in commits.jsonl, not
answered).
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from lanefeed_sidecar.errors import ConfigError, SidecarError

__all__ = ["ENV", "POINTS", "arm", "disarm", "hit"]

ENV = "LANEFEED_FAILPOINTS"
POINTS = (
    "slot.mid_write",
    "server.before_signal",
    "board.mid_write",
    "board.before_wake",
    "report.before",
    "commit.before_append",
    "commit.after_append",
)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Plan:
    action: str
    seconds: float
    after: int
    hits: int = 0


_armed: dict[str, _Plan] = {}
_lock = threading.Lock()


def arm(plans: Mapping[str, object]) -> None:
    """Arm points: name -> plan. Raises ConfigError for a name or plan that does not exist."""
    for name, text in plans.items():
        if name not in POINTS:
            raise ConfigError(f"faults names {name!r}: the points are {', '.join(POINTS)}")
        _armed[name] = _parse(name, str(text))
        log.warning("failpoint %s is armed: %s", name, text)


def arm_from_environment() -> None:
    """Arm what LANEFEED_FAILPOINTS says."""
    parts = (part.partition("=") for part in os.environ.get(ENV, "").split(";") if part)
    arm({name.strip(): plan.strip() for name, _, plan in parts})


def disarm() -> None:
    """Forget all plans."""
    _armed.clear()


def hit(name: str) -> None:
    """Do what is planned here: usually nothing. Raises SidecarError for "raise"."""
    plan = _armed.get(name)
    if plan is None:
        return
    with _lock:
        plan.hits += 1
        if plan.hits < plan.after:
            return
    log.warning("failpoint %s: %s", name, plan.action)
    if plan.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if plan.action == "raise":
        raise SidecarError(f"failpoint {name}")
    time.sleep(plan.seconds)


def _parse(name: str, text: str) -> _Plan:
    body, _, after = text.partition("@")
    action, _, seconds = body.partition(":")
    try:
        plan = _Plan(action, float(seconds or 0), int(after or 1))
    except ValueError:
        plan = _Plan("", 0.0, 1)
    if plan.action not in ("kill", "raise", "sleep"):
        raise ConfigError(
            f"fault {name}={text!r}: it must be kill, raise or sleep:SECONDS, with @N to wait for the N-th time"
        )
    return plan
