"""The typed status of a ShardedTrainingJob: everything that the control plane remembers, in at most 64 KiB.

Written by the shells only, and only as `reconcile` returned it. All that a restarted control plane needs is here: plan
generation, counters, the frozen stream, the book of commits, an agreed stop. Times are RFC 3339 in UTC.
"""

from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

__all__ = [
    "Condition",
    "CursorStatus",
    "EpochProof",
    "LedgerStatus",
    "PlanStatus",
    "Progress",
    "RankProgress",
    "Restarts",
    "Status",
    "StopStatus",
    "StreamStatus",
    "from_time",
    "to_time",
]


def to_time(now: float) -> str:
    """Seconds since 1970 -> RFC 3339 in UTC, milliseconds kept."""
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def from_time(text: str) -> float:
    """The inverse of `to_time`; "" is 0."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0


class Model(BaseModel):
    """Base: camel case outside, frozen; unknown fields are dropped, so that a newer version's status can be read."""

    model_config = ConfigDict(extra="ignore", alias_generator=to_camel, populate_by_name=True, frozen=True)


class Condition(Model):
    """As metav1.Condition. The message says the next thing to do."""

    type: str
    status: str = "Unknown"
    reason: str = "Unknown"
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class CursorStatus(Model):
    """The job's last commit: next (epoch, step), the same in total steps, and the checkpoint's name."""

    epoch: int = 0
    step: int = 0
    total_step: int = 0
    commit: str = ""
    plan_generation: int = 0


class PlanStatus(Model):
    """The current plan generation, written ahead of its children."""

    generation: int = 0
    replicas: int = 0
    ranks_per_replica: int = 1
    #: Total step of the commit it starts from: informative, the checkpoint wins.
    start: int = 0
    reason: str = ""
    time: str = ""
    restart_token: str = ""
    #: spec.replicas when it was made: a plan shrunk for lack of nodes stays until the user asks for another size.
    wanted: int = 0
    #: metadata.generation when it was made.
    spec_generation: int = 0
    #: Its children are deleted (or lost) for good: what comes next is a new plan generation.
    closed: bool = False
    #: True once its children were seen: only a plan that once had children can have lost them.
    created: bool = False
    #: When all children were first seen done; last reports may still be on their way.
    finished_time: str = ""
    #: When ranks were first seen to have started from different steps.
    disagree_time: str = ""
    #: Program failures by pod index, at most 256 of them (a shell that restarts begins to count from here).
    failures: dict[int, int] = Field(default_factory=dict)
    #: Sum of the program failures of all indexes.
    failed: int = 0
    #: UIDs of pods to be fenced, written ahead of the fence; at most 64.
    fenced: list[str] = Field(default_factory=list)
    #: Pods ended by the cluster, or that left on their own with exit code 75, in this plan.
    disruptions: int = 0


class StopStatus(Model):
    """An agreed stop of the current plan: ranks leave at total step `step`; then a new plan, or none (Suspend)."""

    step: int
    reason: str
    time: str
    #: True once the stop is over (commit made, all left, or grace used up): children are being deleted.
    done: bool = False
    outcome: str = ""
    #: Size of the next plan where it is not spec.replicas (Shrink); 0: spec.replicas.
    replicas: int = 0


class Restarts(Model):
    """Counters over the job's whole life. They only grow."""

    #: Program failures: the only ones that use up spec.maxRestarts.
    failures: int = 0
    disruptions: int = 0
    resizes: int = 0
    suspends: int = 0
    #: Plans that ended with exit code 0 before the stream's end.
    interrupted: int = 0
    #: Of those, how many in a row with no new commit.
    idle: int = 0
    #: Pods fenced because their node was lost.
    lost: int = 0
    last_reason: str = ""
    last_time: str = ""


class StreamStatus(Model):
    """The frozen identity of the stream (StreamSpec of lanefeed_core.stream), and what follows from it."""

    manifest: str
    rows: int
    seed: int
    global_batch_size: int
    lanes: int
    window: int
    shuffle: bool
    boundary: str
    last_batch: str
    steps_per_epoch: int
    #: Total steps at which the job ends.
    total_steps: int


class EpochProof(Model):
    """The ledger of one finished epoch beside what the manifest says; `partial`: the job ended inside of it."""

    epoch: int
    samples: int
    digest: str
    expected: str
    expected_samples: int = 0
    verified: bool
    partial: bool = False
    #: True where a part of it was recomputed from the manifest (a checkpoint that no commit named).
    recomputed: bool = False


class LedgerStatus(Model):
    """Proven epochs: how many in all, and the newest 32."""

    verified: int = 0
    epochs: list[EpochProof] = Field(default_factory=list)


class RankProgress(Model):
    """Where one rank is, in total steps."""

    rank: int
    consumed: int = 0
    started: int = 0
    attached: bool = False
    ended: bool = False
    stall_percent: float = 0.0


class Progress(Model):
    """Coalesced, informative; written at most once in 10 s unless something else changed."""

    time: str = ""
    #: Slowest and fastest rank, total steps.
    consumed: int = 0
    fastest: int = 0
    percent: float = 0.0
    steps_per_second: float = 0.0
    #: At most 64 ranks: the slowest ones.
    ranks: list[RankProgress] = Field(default_factory=list)


class Status(Model):
    """See the module. `state` is for people, conditions are the truth."""

    state: str = "Pending"
    #: What stands in the way, in one CamelCase word; empty: nothing does. The conditions say more.
    reason: str = ""
    observed_generation: int = 0
    plan_generation: int = 0
    replicas: int = 0
    ready_replicas: int = 0
    #: Label selector of the pods, for the scale subresource (HorizontalPodAutoscaler).
    selector: str = ""
    cursor: CursorStatus = Field(default_factory=CursorStatus)
    plan: PlanStatus = Field(default_factory=PlanStatus)
    stop: StopStatus | None = None
    stream: StreamStatus | None = None
    restarts: Restarts = Field(default_factory=Restarts)
    conditions: list[Condition] = Field(default_factory=list)
    ledger: LedgerStatus = Field(default_factory=LedgerStatus)
    progress: Progress = Field(default_factory=Progress)
    stall_percent: float = 0.0
    start_time: str = ""
    completion_time: str = ""
    #: spec.restartToken when the job failed: another one makes it go on from the last commit.
    failed_token: str = ""
    #: `Book.to_dict()` of lanefeed_core.book.
    book: dict[str, Any] = Field(default_factory=dict)
    #: Shards set aside, at most 16 spelled out as "path: reason".
    quarantined: list[str] = Field(default_factory=list)

    @property
    def terminal(self) -> bool:
        """Whether the job is over: Complete or Failed."""
        return any(c.type in ("Complete", "Failed") and c.status == "True" for c in self.conditions)

    def condition(self, kind: str) -> Condition | None:
        """The condition of this type."""
        return next((c for c in self.conditions if c.type == kind), None)

    def to_dict(self) -> dict[str, Any]:
        """As it is written: camel case, plain JSON types."""
        return self.model_dump(by_alias=True, mode="json", exclude_none=True)
