"""What a raw pod's status says, in the few words that decisions and conditions need. Pure; called by `facts`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lanefeed_core import lastwords
from lanefeed_operator.coordinator.lastwords import explain
from lanefeed_operator.kube.api import Object
from lanefeed_operator.reconcile.types import FAILED, PENDING, RUNNING, SUCCEEDED, Trouble
from lanefeed_operator.render import constants as c

__all__ = ["ON_THE_WAY", "PodState", "pod_state"]

#: Words of a container that is on its way: trouble only where they last, which is for others to judge.
ON_THE_WAY = ("ContainerCreating", "PodInitializing")
LOOP = "CrashLoopBackOff"
PULLING = ("ImagePullBackOff", "ErrImagePull")
MESSAGE_CHARS = 512
NAME_CHARS = 63
#: A pod has few containers; each may have its own trouble.
MAX_TROUBLES = 4


@dataclass(frozen=True, slots=True)
class PodState:
    """See the module. Times as the API server writes them."""

    phase: str = PENDING
    ready: bool = False
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    disrupted: bool = False
    troubles: tuple[Trouble, ...] = ()
    #: When no node was found for it.
    unplaced_since: str = ""
    #: Last words of a sidecar that has ended for good (lanefeed_core.lastwords), whole.
    words: str = ""


def pod_state(raw: Object) -> PodState:
    """Of a raw pod."""
    status: Object = raw.get("status") or {}
    phase = status.get("phase") or PENDING
    # Unknown is a kubelet that says nothing: its processes may run.
    phase = phase if phase in (PENDING, RUNNING, SUCCEEDED, FAILED) else RUNNING
    conditions = {x.get("type"): x for x in status.get("conditions") or ()}
    dead = phase in (SUCCEEDED, FAILED)
    reason, message = _ending(status) if dead else ("", "")
    scheduled = conditions.get("PodScheduled") or {}
    unplaced = not dead and scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    return PodState(
        phase=phase,
        ready=not dead and _true(conditions.get("Ready")),
        reason=reason,
        message=message,
        exit_code=_trainer_exit(status),
        disrupted=_true(conditions.get("DisruptionTarget")),
        troubles=() if dead else tuple(_troubles(status, scheduled))[:MAX_TROUBLES],
        unplaced_since=(scheduled.get("lastTransitionTime") or "") if unplaced else "",
        words=_last_words(status),
    )


def _last_words(status: Object) -> str:
    """Never of `lastState`: that container runs again, and its new session knows more."""
    for container in status.get("initContainerStatuses") or ():
        ended = _terminated(container)
        if container.get("name") == c.SIDECAR and ended is not None:
            text = str(ended.get("message") or "")
            return text if lastwords.recognised(text) else ""
    return ""


def _true(condition: Mapping[str, Any] | None) -> bool:
    return condition is not None and condition.get("status") == "True"


def _containers(status: Object) -> list[Object]:
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _terminated(container: Object) -> Object | None:
    found: Object | None = (container.get("state") or {}).get("terminated")
    return found


def _trainer_exit(status: Object) -> int | None:
    """Of the trainer, or of the indexer in its own pod."""
    for container in status.get("containerStatuses") or ():
        ended = _terminated(container)
        if container.get("name") in (c.TRAINER, c.INDEXER) and ended is not None:
            return int(ended.get("exitCode", 0))
    return None


def _ending(status: Object) -> tuple[str, str]:
    """Why a dead pod ended: the machine's word, else the trainer's, else that of the first container that failed."""
    if status.get("reason"):
        return str(status["reason"]), _clip(status.get("message", ""))
    containers = status.get("containerStatuses") or ()
    main = next((x for x in containers if x.get("name") in (c.TRAINER, c.INDEXER)), None)
    ended = _terminated(main) if main else None
    if ended is not None and (ended.get("exitCode") or not _failed_before(status)):
        return _words(ended), _clip(ended.get("message", ""))
    failed = _failed_before(status)
    if failed is None:
        return "", ""
    name, last = failed
    text = f"container {name} ended with exit code {last.get('exitCode')}"
    said = _clip(last.get("message", ""))
    return _words(last) or "ContainerFailed", f"{text}: {said}" if said else text


def _failed_before(status: Object) -> tuple[str, Object] | None:
    """The first container but the trainer that ended badly. The sidecar is ended by a signal: that is no failure."""
    for container in _containers(status):
        ended = _terminated(container)
        if ended is None or not ended.get("exitCode") or container.get("name") in (c.TRAINER, c.INDEXER):
            continue
        stopped = ended["exitCode"] in (137, 143) and ended.get("reason") != "OOMKilled"
        if container.get("name") == c.SIDECAR and stopped:
            continue
        return str(container.get("name", ""))[:NAME_CHARS], ended
    return None


def _words(ended: Object) -> str:
    """OOMKilled, DeadlineExceeded, StartError; Error and Completed say nothing that the exit code does not."""
    reason = str(ended.get("reason") or "")
    return "" if reason in ("Error", "Completed") else reason


def _troubles(status: Object, scheduled: Object) -> Iterator[Trouble]:
    """What holds a living pod up."""
    if scheduled.get("status") == "False":
        yield Trouble(scheduled.get("reason") or "Unschedulable", message=_clip(scheduled.get("message", "")))
    for container in _containers(status):
        trouble = _trouble(container)
        if trouble is not None:
            yield trouble


def _trouble(container: Object) -> Trouble | None:
    """Of one container: it waits, or it was started again and is not well yet: then its last words say why.

    One word for all that a restarting container goes through, so that nothing flaps.
    """
    state, last = container.get("state") or {}, (container.get("lastState") or {}).get("terminated") or {}
    waiting: Object = state.get("waiting") or {}
    reason, said = waiting.get("reason") or "", waiting.get("message")
    restarts = int(container.get("restartCount") or 0)
    if container.get("name") == c.SIDECAR and state.get("terminated"):
        # It is started again in a moment.
        last = state["terminated"]
    if last.get("exitCode") and not container.get("ready") and reason in ("", LOOP):
        reason = _words(last) or (LOOP if restarts > 1 or reason else "Restarted")
        said = last.get("message") or said
    if not reason:
        return None
    if reason in PULLING:
        # The kubelet goes to and fro between the two: one word, and the registry's answer.
        reason, said = PULLING[0], str(said or "").rpartition("ErrImagePull: ")[2]
    return Trouble(
        reason=reason,
        container=str(container.get("name", ""))[:NAME_CHARS],
        message=_clip(said or ""),
        restarts=restarts,
        exit_code=last.get("exitCode"),
    )


def _clip(text: Any) -> str:
    """The end of a long text: a log's last lines say why."""
    text = explain(str(text or ""))
    return text if len(text) <= MESSAGE_CHARS else "..." + text[3 - MESSAGE_CHARS :]
