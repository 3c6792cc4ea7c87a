"""What reconcile sees and what it decides: the seam between the pure policies and the shells that run them.

How a shell runs one job, one pass at a time (never two at once for a job):

    feed = coordinator.snapshot(now)                     # coordinator.core.Coordinator
    decision = reconcile(job, status, Observed(..., feed=feed), now)
    if decision.status is not status:                    # it is the same object when nothing has to be written
        write(decision.status)                           # durable; if that fails, begin again from what is stored
    coordinator.persisted(feed.version)                  # only now are the commits in `feed` acknowledged to sidecars
    for action in decision.actions:                      # each idempotent; a crash between any two of them is fine
        act(action)
    # again: on any change, and after decision.wake_after seconds at the latest

`Observed` must never be older than the shell's own last action: children that were just created are in it.

Everything is level triggered: an action is repeated until its effect is observed, so a shell must make each a no-op
when it is done already. `now` is seconds since 1970 (it is written into the status).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lanefeed_operator.api.status import EpochProof, Status

__all__ = [
    "EXIT_STOPPED",
    "Action",
    "AskStop",
    "BuildManifest",
    "Children",
    "CreateChildren",
    "Decision",
    "DeleteChildren",
    "DeleteJob",
    "FeedFailure",
    "FeedView",
    "Fence",
    "ManifestInfo",
    "Observed",
    "Pod",
    "RankView",
    "Trouble",
    "Why",
    "WritePlan",
]

#: Exit code of `lanefeed.Stopped`: left on purpose, from a checkpoint; never a failure of the program.
EXIT_STOPPED = 75

PENDING, RUNNING, SUCCEEDED, FAILED = "Pending", "Running", "Succeeded", "Failed"


@dataclass(frozen=True, slots=True)
class Why:
    """Why something is not as it should be: a reason in CamelCase, and a message that says what to do."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """What holds a living pod up, in Kubernetes' own words: a container that waits or restarts, or no node for it."""

    #: ImagePullBackOff, CreateContainerConfigError, CrashLoopBackOff, OOMKilled, ContainerCreating, Unschedulable, ...
    reason: str
    #: Name of the container; "" for the pod itself.
    container: str = ""
    message: str = ""
    #: How often the container was started again.
    restarts: int = 0
    #: Of its last end.
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod: a trainer process group and its sidecar. `uid` is new for every pod, also at the same index."""

    index: int
    uid: str
    phase: str = PENDING
    ready: bool = False
    #: How it ended (reason and message of a dead pod); `troubles` are those of a living one.
    reason: str = ""
    message: str = ""
    #: Of the trainer.
    exit_code: int | None = None
    #: Ended by the machine, not by the program (preemption, eviction, lost node).
    disrupted: bool = False
    #: When it was made (creationTimestamp).
    started: float | None = None
    #: Its node has not been heard of since then; None: all is well.
    lost_since: float | None = None
    #: It was asked to go (evicted, preempted, deleted) and is killed at that time (deletionTimestamp); None: it stays.
    leaves_by: float | None = None
    troubles: tuple[Trouble, ...] = ()
    #: metadata.name, for messages; "" where pods have none.
    name: str = ""

    @property
    def alive(self) -> bool:
        """Whether a process of it may still run."""
        return self.phase not in (SUCCEEDED, FAILED)


@dataclass(frozen=True, slots=True)
class Children:
    """One plan generation's children: an Indexed Job and its pods, or what the local shell keeps in its stead.

    The child controller replaces failed pods at the same index by `failures.verdict`; an index that used up
    spec.maxRestarts is in `failed`. `pods` lists every pod that is alive and the last dead one of each index.
    """

    generation: int
    replicas: int
    succeeded: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()
    #: Program failures by index in this plan generation (indexes with none may be left out).
    failures: Mapping[int, int] = field(default_factory=dict)
    #: Ends that were not the program's fault in this plan generation: disruptions and exit code 75.
    disruptions: int = 0
    pods: tuple[Pod, ...] = ()
    #: Deletion has begun: nothing is replaced any more.
    deleting: bool = False
    #: A queue (Kueue) holds it back, or has taken its pods away again.
    queued: bool = False
    #: Pods that a queue lets run where that is not `replicas` (the Job's parallelism, changed at admission); None: all.
    admitted: int | None = None
    #: When the child controller began with it (the Job's startTime, anew after each suspension); None: unknown.
    started: float | None = None
    #: The child controller has given up for good (the Job's condition Failed); None: it has not.
    gave_up: Why | None = None
    #: Name of the Job, for messages; "" where it has none.
    name: str = ""
    #: No place for some pod since then; None: all have one.
    unplaced_since: float | None = None

    @property
    def size(self) -> int:
        """Pods that may run: a queue admits fewer by parallelism alone, or by completions with it."""
        return self.replicas if self.admitted is None else min(self.replicas, self.admitted)

    @property
    def alive(self) -> tuple[Pod, ...]:
        """Pods of which a process may still run."""
        return tuple(pod for pod in self.pods if pod.alive)

    @property
    def complete(self) -> bool:
        """Whether every index has ended with exit code 0."""
        return len(self.succeeded) >= self.replicas

    @property
    def ready(self) -> int:
        """Pods that are alive and ready."""
        return sum(1 for pod in self.pods if pod.alive and pod.ready)


@dataclass(frozen=True, slots=True)
class ManifestInfo:
    """The indexer's result: an error, or what the stream's sizes are chosen from."""

    digest: str = ""
    rows: int = 0
    shards: int = 0
    row_groups: int = 0
    row_bytes: float = 1.0
    bytes: int = 0
    quarantined: tuple[tuple[str, str], ...] = ()
    #: Written for the user; "" if the manifest is ready.
    error: str = ""
    #: Trying again may help (a network that failed).
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class RankView:
    """What the coordinator knows of a rank's present life."""

    rank: int
    pod_index: int
    pod_uid: str
    session: str
    started: int
    from_state: bool
    consumed: int
    attached: bool
    ended: bool
    wait_seconds: float = 0.0
    step_seconds: float = 0.0
    #: Monotone: when the report came (the shell's `now`).
    at: float = 0.0

    @property
    def stall_percent(self) -> float:
        """Share of the rank's time spent waiting for data."""
        whole = self.wait_seconds + self.step_seconds
        return 100.0 * self.wait_seconds / whole if whole > 0 else 0.0


@dataclass(frozen=True, slots=True)
class FeedFailure:
    """A failure that a sidecar reported, or the coordinator's own (LedgerMismatch)."""

    kind: str
    message: str
    retryable: bool = False
    pod_index: int = -1


@dataclass(frozen=True, slots=True)
class FeedView:
    """`Coordinator.snapshot()`: reports and commits at one moment."""

    #: Grows with every change of `book` or `proofs`; hand it back to `Coordinator.persisted`.
    version: int = 0
    plan_generation: int = 0
    ranks: Mapping[int, RankView] = field(default_factory=dict)
    #: `Book.to_dict()`.
    book: Mapping[str, object] = field(default_factory=dict)
    last_step: int = 0
    last_name: str = ""
    last_generation: int = 0
    proofs: tuple[EpochProof, ...] = ()
    proven: int = 0
    #: Terminal: what was consumed is not what the manifest says.
    mismatch: FeedFailure | None = None
    failures: tuple[FeedFailure, ...] = ()
    quarantined: tuple[tuple[str, str], ...] = ()
    #: Rank -> step, where ranks of this plan began from steps that do not fit together.
    disagree: Mapping[int, int] = field(default_factory=dict)
    #: Total steps a second, over the last few seconds.
    rate: float = 0.0
    #: When a rank last consumed or began, by the shell's clock; 0: nothing was heard yet.
    moved: float = 0.0
    #: When this control plane, begun anew, found the plan under way: who is not in `ranks` may yet report. 0: it has
    #: known the plan from its beginning.
    found: float = 0.0
    stop_at: int | None = None
    #: (pod index, pod UID) of the fenced.
    fenced: frozenset[tuple[int, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Observed:
    """The world as a shell sees it now. Only what was really seen belongs here."""

    children: Mapping[int, Children] = field(default_factory=dict)
    #: Plan generations whose plan document is written and known to the coordinator.
    plans: frozenset[int] = frozenset()
    #: None: not built yet (or being built).
    manifest: ManifestInfo | None = None
    feed: FeedView = field(default_factory=FeedView)
    #: An action that was refused when it was last tried, and why (InvalidPodTemplate, NameConflict, Forbidden, ...; the
    #: message is shown as it is). The action is repeated; the shell forgets the problem once one succeeds.
    problem: Why | None = None


# ---- actions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BuildManifest:
    """Index the dataset; a no-op while that is being done."""


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Write the plan document of `generation`, and `Coordinator.new_plan` it. `start`: total step, informative."""

    generation: int
    replicas: int
    ranks_per_replica: int
    start: int


@dataclass(frozen=True, slots=True)
class CreateChildren:
    """Create the children of a plan generation; adopt them if they exist with the same generation."""

    generation: int
    replicas: int


@dataclass(frozen=True, slots=True)
class AskStop:
    """`Coordinator.stop`: every rank of the plan generation leaves at total step `step`."""

    generation: int
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class DeleteChildren:
    """End and delete the children of a plan generation: SIGTERM, grace, SIGKILL; nothing is replaced from now on."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Fence:
    """`Coordinator.fence` the pod, then mark it failed by disruption and delete it, so that its index is replaced."""

    generation: int
    index: int
    pod_uid: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """The finished job's time to live is over: delete it with all that belongs to it."""


Action = BuildManifest | WritePlan | CreateChildren | AskStop | DeleteChildren | Fence | DeleteJob


@dataclass(frozen=True, slots=True)
class Decision:
    """`status` is the very object given in where nothing has to be written."""

    status: Status
    actions: tuple[Action, ...] = ()
    #: Look again after this many seconds, whatever happens; None: only on a change.
    wake_after: float | None = None
