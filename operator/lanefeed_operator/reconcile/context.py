"""What one pass of reconcile carries from policy to policy. Local to the pass: from outside reconcile is pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lanefeed_operator.api.spec import Job
from lanefeed_operator.api.status import Status, from_time, to_time
from lanefeed_operator.reconcile import conditions
from lanefeed_operator.reconcile.types import Action, Children, Observed, Pod

__all__ = ["Pass"]


@dataclass(slots=True)
class Pass:
    """`before` is what is persisted; `status` is what will be. Actions may rest on `before` alone (write ahead)."""

    job: Job
    before: Status
    observed: Observed
    now: float
    status: Status
    actions: list[Action] = field(default_factory=list)
    wake: float | None = None

    @property
    def generation(self) -> int:
        """The current plan generation."""
        return self.status.plan.generation

    @property
    def children(self) -> Children | None:
        """The current plan's children, if they exist."""
        return self.observed.children.get(self.generation)

    @property
    def last_step(self) -> int:
        """Total step of the job's last commit."""
        return self.status.cursor.total_step

    def set(self, **updates: Any) -> None:
        """Change fields of the status."""
        changed = {key: value for key, value in updates.items() if getattr(self.status, key) != value}
        if changed:
            self.status = self.status.model_copy(update=changed)

    def set_plan(self, **updates: Any) -> None:
        """Change fields of the plan."""
        self.set(plan=self.status.plan.model_copy(update=updates))

    def count(self, reason: str = "", **more: int) -> None:
        """Add to counters; they only grow (but `idle`, which is given as it is to be)."""
        old = self.status.restarts
        updates: dict[str, Any] = {k: v if k == "idle" else getattr(old, k) + v for k, v in more.items()}
        if reason:
            updates |= {"last_reason": reason, "last_time": to_time(self.now)}
        self.set(restarts=old.model_copy(update=updates))

    def condition(self, kind: str, value: bool | None, reason: str, message: str) -> None:
        """Set a condition."""
        generation = self.job.metadata.generation
        self.status = conditions.put(self.status, kind, value, reason, message, self.now, generation)

    def act(self, action: Action) -> None:
        """Do this."""
        self.actions.append(action)

    def look_again(self, seconds: float) -> None:
        """Another pass after `seconds` at the latest."""
        seconds = max(0.0, seconds)
        self.wake = seconds if self.wake is None else min(self.wake, seconds)

    def since(self, time: str) -> float:
        """Seconds since a time of the status; never negative, whatever the clock did."""
        return max(0.0, self.now - from_time(time))

    def fail(self, reason: str, message: str) -> None:
        """The job is over: Failed."""
        self.condition(conditions.FAILED, True, reason, message)
        self.condition(conditions.RUNNING, False, reason, "the job has failed; see condition Failed")
        self.set(completion_time=to_time(self.now), failed_token=self.job.spec.restart_token)
        self.look_again(0)

    def pods_by_index(self) -> Mapping[int, Pod]:
        """The newest pod of each index; a living one before a dead one."""
        found: dict[int, Pod] = {}
        for pod in self.children.pods if self.children else ():
            if pod.index not in found or pod.alive or not found[pod.index].alive:
                found[pod.index] = pod
        return found
