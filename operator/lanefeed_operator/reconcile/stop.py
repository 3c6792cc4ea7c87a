"""The graceful end of a plan: all ranks leave at one agreed step, with a checkpoint there, before pods are deleted.

The step lies far enough ahead that no rank has passed it when it hears of it, so that the last commit is common. Waits
for that commit, for all ranks to have left, or for the grace time; whatever comes, the next plan begins from the last
commit, so a stop that is missed costs time, never samples.
"""

import math

from lanefeed_operator.api.status import StopStatus, from_time, to_time
from lanefeed_operator.reconcile.conditions import STOPPING
from lanefeed_operator.reconcile.context import Pass
from lanefeed_operator.reconcile.evicted import EVICTION, leavers, too_late
from lanefeed_operator.reconcile.types import AskStop, Children, DeleteChildren, Pod

__all__ = ["HEAR_SECONDS", "ask", "closing", "stop_step"]

#: A report takes up to a second each way, trainers look once a step.
AHEAD_SECONDS = 3.0
AHEAD_STEPS = 2

#: A control plane that was begun anew waits so long for the ranks of a plan that it found, before it takes them as gone
#: or asks them to leave at a step that they may have passed. They report again within a second or two.
HEAR_SECONDS = 15.0

#: Deletion is repeated this often until it is seen.
DELETE_SECONDS = 5.0


def stop_step(consumed: int, rate: float) -> int:
    """The total step at which ranks leave: ahead of the fastest by 3 s of steps, and by 2 at least."""
    return consumed + max(AHEAD_STEPS, math.ceil(AHEAD_SECONDS * rate))


def ask(p: Pass, reason: str, replicas: int = 0) -> bool:
    """Write ahead that the plan ends because of `reason`; AskStop follows in the next pass. Ends the pass."""
    children, feed = p.children, p.observed.feed
    if _unheard(p, children):
        p.look_again(1.0)
        return True
    views = feed.ranks.values() if feed.plan_generation == p.generation else ()
    running = bool(children and children.alive) and any(view.attached for view in views)
    fastest = max([p.last_step, *(view.consumed for view in views)])
    grace = p.job.spec.elastic.stop_grace_seconds
    gone = not running or not grace
    stop = StopStatus(
        step=stop_step(fastest, feed.rate),
        reason=reason,
        time=to_time(p.now),
        done=gone,
        outcome="NothingRuns" if gone else "",
        replicas=replicas,
    )
    p.set(stop=stop)
    if reason == EVICTION and children is not None:
        # The plan ends with them: nobody will count them later.
        p.set_plan(disruptions=p.status.plan.disruptions + len(leavers(children)))
        p.count(disruptions=len(leavers(children)))
    p.count(reason, resizes=int(reason in ("Resize", "Shrink", "Admitted")), suspends=int(reason == "Suspend"))
    p.condition(STOPPING, True, reason, f"ranks were asked to write a checkpoint and leave at step {stop.step}")
    p.look_again(0)
    return True


def _unheard(p: Pass, children: Children | None) -> bool:
    """Whether the ranks of ready pods, or how fast they are, may only not have been heard yet."""
    feed = p.observed.feed
    if children is None or not feed.found or feed.plan_generation != p.generation:
        return False
    if p.now - feed.found >= HEAR_SECONDS:
        return False
    ready = {pod.index for pod in children.alive if pod.ready}
    heard = {view.pod_index for view in feed.ranks.values()}
    standing = feed.rate == 0.0 and any(view.attached and not view.ended for view in feed.ranks.values())
    return bool(ready - heard) or (bool(ready) and standing)


def closing(p: Pass) -> bool:
    """Carry a written stop on, until no pod of the plan lives. Ends the pass while that lasts."""
    stop, children = p.status.stop, p.children
    if stop is None:
        return False
    if not stop.done:
        outcome = _outcome(p, stop, children)
        if not outcome:
            return True
        p.set(stop=stop.model_copy(update={"done": True, "outcome": outcome}))
        p.look_again(0)
        return True
    if p.before.stop is None or not p.before.stop.done:
        return True
    if children is not None:
        p.act(DeleteChildren(p.generation, stop.reason))
        p.look_again(DELETE_SECONDS)
        return True
    p.set_plan(closed=True)
    return False


def _there(children: Children, stop: StopStatus) -> list[Pod]:
    """Pods that lived when the stop was asked for and live still; a Job replaces those that left at once."""
    asked = from_time(stop.time)
    return [pod for pod in children.alive if pod.started is None or pod.started <= asked]


def _outcome(p: Pass, stop: StopStatus, children: Children | None) -> str:
    """Why the wait is over, or "": then the ranks are asked (again)."""
    feed = p.observed.feed
    if feed.last_step >= stop.step and feed.last_generation == p.generation:
        return "Committed"
    if children is None or not _there(children, stop):
        return "AllLeft"
    if too_late(p, stop, children):
        return "TooLate"
    left = p.job.spec.elastic.stop_grace_seconds - p.since(stop.time)
    if left <= 0:
        return "GraceOver"
    if p.before.stop is not None and feed.plan_generation == p.generation and feed.stop_at != stop.step:
        p.act(AskStop(p.generation, stop.step, stop.reason))
    p.look_again(left)
    return ""
