"""Facts of one job's Jobs and Pods -> what reconcile sees. Pure: the time is an argument. Called by the controller.

Only what is ours counts: a Job with the job's UID in its annotation and as its controlling owner, pods whose
controlling owner is this Job (or, where that is gone, with the job's UID in their annotation). Anything else of a name
that we need is in the way (`NameConflict`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lanefeed_operator.kube.facts import MAX_DIGITS, MAX_INDEX, JobFacts, NodeFacts, PodFacts, seconds
from lanefeed_operator.kube.podstate import ON_THE_WAY
from lanefeed_operator.reconcile.troubles import remedy
from lanefeed_operator.reconcile.types import EXIT_STOPPED, FAILED, Children, ManifestInfo, Pod, Why
from lanefeed_operator.render import names

__all__ = [
    "EXIT_HOPELESS",
    "World",
    "children",
    "index_set",
    "indexer_info",
    "indexer_trouble",
    "living",
    "lost_for",
    "lost_since",
]

#: Exit code of an indexer that no retry mends.
EXIT_HOPELESS = 2
#: A pod whose containers are not made for this long is in trouble (a Secret that is missing, most often).
CREATING_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class World:
    """All that may belong to one ShardedTrainingJob. `nodes`: those that are lost; None: nodes cannot be seen."""

    name: str
    uid: str
    jobs: Sequence[JobFacts] = ()
    pods: Sequence[PodFacts] = ()
    nodes: Mapping[str, NodeFacts] | None = None
    now: float = 0.0
    #: Plan generation -> its pods, where known: a queue that admits fewer changes the Job's own number too.
    sizes: Mapping[int, int] = field(default_factory=dict)
    _by_owner: dict[str, list[PodFacts]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Sort the pods by the Job that owns them."""
        for pod in self.pods:
            if pod.job == self.name:
                self._by_owner.setdefault(pod.owner_uid, []).append(pod)

    def our_jobs(self, role: str) -> list[JobFacts]:
        """Jobs of this very ShardedTrainingJob."""
        return [job for job in self.jobs if job.role == role and self.ours(job)]

    def ours(self, job: JobFacts) -> bool:
        """See the module."""
        return job.job == self.name and job.job_uid == self.uid and job.owner_uid == self.uid

    def pods_of(self, job: JobFacts) -> list[PodFacts]:
        """Pods that a Job of ours owns."""
        return self._by_owner.get(job.uid, [])

    def orphans(self) -> list[PodFacts]:
        """Training pods whose Job is gone: they may live on, and nothing else may start until they have ended."""
        known = {job.uid for job in self.our_jobs("pods")}
        found = [pod for owner, pods in self._by_owner.items() if owner not in known for pod in pods]
        return [pod for pod in found if pod.job_uid == self.uid and self._trains(pod)]

    def former(self) -> list[PodFacts]:
        """Training pods that live on of a ShardedTrainingJob that had this name before."""
        return [pod for pod in self.pods if pod.role == "pods" and pod.job_uid not in ("", self.uid) and _alive(pod)]

    def _trains(self, pod: PodFacts) -> bool:
        """Whether it was made by the Indexed Job of a plan, by the names of both."""
        return (
            pod.role == "pods"
            and 0 < pod.generation <= names.MAX_GENERATION
            and (pod.owner_name == names.pods_name(self.name, pod.generation))
        )


def children(world: World) -> dict[int, Children]:
    """Plan generation -> its Indexed Job and pods, for as long as the Job exists or a pod of it lives."""
    found: dict[int, Children] = {}
    for job in world.our_jobs("pods"):
        if 0 < job.generation <= names.MAX_GENERATION and job.name == names.pods_name(world.name, job.generation):
            found[job.generation] = _children(world, job, world.pods_of(job))
    orphans: dict[int, list[PodFacts]] = {}
    for pod in world.orphans():
        if pod.generation not in found:
            orphans.setdefault(pod.generation, []).append(pod)
    for generation, pods in orphans.items():
        seen = tuple(_pod(world, pod) for pod in _told(pods))
        if any(pod.alive for pod in seen):
            found[generation] = Children(
                generation=generation,
                replicas=1 + max(pod.index for pod in seen),
                pods=seen,
                deleting=True,
                name=names.pods_name(world.name, generation),
            )
    return found


def _children(world: World, job: JobFacts, pods: Sequence[PodFacts]) -> Children:
    replicas = world.sizes.get(job.generation, job.completions)
    pods = [pod for pod in pods if 0 <= pod.index < replicas]
    failures, ignored = _counts(pods, ending=job.deleted is not None)
    failed = index_set(job.failed)
    told = _told(pods)
    return Children(
        generation=job.generation,
        replicas=replicas,
        succeeded=index_set(job.succeeded),
        failed=failed,
        failures=failures,
        disruptions=ignored,
        pods=tuple(_pod(world, pod) for pod in told),
        deleting=job.deleted is not None,
        queued=job.suspended,
        admitted=job.parallelism if job.parallelism != replicas else None,
        started=job.started,
        gave_up=Why(*job.gave_up) if job.gave_up else None,
        name=job.name,
        unplaced_since=min((s for pod in told if (s := seconds(pod.state.unplaced_since)) is not None), default=None),
    )


def _counts(pods: Iterable[PodFacts], *, ending: bool) -> tuple[dict[int, int], int]:
    """Counted failures by index, and ignored ones in all. The Job controller hands both on to the next pod.

    `ending`: the Job is being deleted, so the end of a pod that was not counted before is the deletion's doing.
    """
    failures: dict[int, int] = {}
    ignored: dict[int, int] = {}
    for pod in pods:
        ended = pod.state.phase == FAILED and not ending
        free = ended and (pod.state.disrupted or pod.state.exit_code == EXIT_STOPPED)
        failures[pod.index] = max(failures.get(pod.index, 0), pod.failures + int(ended and not free))
        ignored[pod.index] = max(ignored.get(pod.index, 0), pod.ignored + int(free))
    return {index: n for index, n in sorted(failures.items()) if n}, sum(ignored.values())


def _told(pods: Iterable[PodFacts]) -> list[PodFacts]:
    """Every pod that lives, and the last dead one of each index; in order."""
    dead: dict[int, PodFacts] = {}
    found = []
    for pod in sorted(pods, key=lambda pod: (pod.created, pod.failures + pod.ignored)):
        if _alive(pod):
            found.append(pod)
        else:
            dead[pod.index] = pod
    return sorted([*dead.values(), *found], key=lambda pod: (pod.index, _alive(pod), pod.created))


def _alive(pod: PodFacts) -> bool:
    return pod.state.phase in ("Pending", "Running")


def living(pods: Iterable[PodFacts]) -> dict[int, PodFacts]:
    """The pod that holds each index now: the newest that lives."""
    return {pod.index: pod for pod in sorted(pods, key=lambda pod: pod.created) if _alive(pod) and pod.index >= 0}


def _pod(world: World, pod: PodFacts) -> Pod:
    state = pod.state
    alive = _alive(pod)
    return Pod(
        index=pod.index,
        uid=pod.uid,
        phase=state.phase,
        ready=state.ready and pod.deleted is None,
        reason=state.reason,
        message=state.message,
        exit_code=state.exit_code,
        disrupted=state.disrupted,
        started=pod.created or None,
        lost_since=lost_since(world, pod) if alive else None,
        leaves_by=pod.deleted if alive else None,
        troubles=state.troubles if alive else (),
        name=pod.name,
    )


def lost_since(world: World, pod: PodFacts) -> float | None:
    """Since when nobody has heard of its node. Where nodes cannot be seen: since the pod should have been gone."""
    if world.nodes is None:
        return pod.deleted if pod.deleted is not None and world.now > pod.deleted else None
    node = world.nodes.get(pod.node)
    return node.lost_since if node is not None else None


def lost_for(world: World, pod: PodFacts, seconds: float) -> bool:
    """Whether it may live on, and nobody has heard of its node for so long; 0: never."""
    since = lost_since(world, pod)
    return _alive(pod) and seconds > 0 and since is not None and world.now - since >= seconds


def index_set(text: str) -> frozenset[int]:
    """`1,3-5` -> {1, 3, 4, 5}; what is no such text counts for nothing."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not _small(first) or (dash and not _small(last)):
            continue
        low, high = int(first), int(last) if dash else int(first)
        found.update(range(low, min(high, MAX_INDEX) + 1))
    return frozenset(found)


def _small(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS


# ---- the indexer -----------------------------------------------------------------------------------------------


def indexer_info(world: World, job: JobFacts) -> ManifestInfo | None:
    """An indexer Job that has ended without a manifest, in its last pod's words; None while it may still succeed."""
    if job.complete:
        text = f"the indexer {job.name} has ended, and no manifest of it has arrived: does its image "
        return ManifestInfo(error=f"{text}(spec.sidecar.image) fit this operator's release?", retryable=True)
    if job.gave_up is None:
        return None
    dead = [pod for pod in world.pods_of(job) if not _alive(pod)]
    last = max(dead, key=lambda pod: pod.created, default=None)
    reason, message = job.gave_up
    code = last.state.exit_code if last else None
    said = _said(last)
    other = f"the indexer {job.name} has failed ({reason}): {message}; `kubectl logs job/{job.name}` says why"
    return ManifestInfo(
        error=said or other,
        # Another code means that it was retried by its Job already: a storage that is away, most often.
        retryable=code != EXIT_HOPELESS and reason != "PodFailurePolicy",
    )


def _said(pod: PodFacts | None) -> str:
    """The last line of the indexer's log, without the kind of the error."""
    text = pod.state.message.strip().rpartition("\n")[2] if pod else ""
    kind, _, rest = text.partition(": ")
    return rest if kind.isidentifier() and rest else text


def indexer_trouble(world: World, job: JobFacts) -> Why | None:
    """What holds up an indexer that has not failed."""
    if job.suspended:
        return Why("Queued", f"a queue holds the indexer's Job {job.name} back until there is quota")
    alive = [pod for pod in world.pods_of(job) if _alive(pod)]
    last = max(alive, key=lambda pod: pod.created, default=None)
    if last is None:
        return None
    if lost_since(world, last) is not None:
        text = f"nobody hears of node {last.node}, where the indexer's pod {last.name} is: "
        return Why("NodeLost", f"{text}it is made again once that lasts for spec.elastic.nodeLostSeconds (0: never)")
    for trouble in last.state.troubles:
        lasting = trouble.reason not in ON_THE_WAY
        if not (lasting or world.now - last.created > CREATING_SECONDS):
            continue
        where = f"container {trouble.container}: " if trouble.container else ""
        text = f"the indexer's pod {last.name} cannot run: {where}{trouble.reason}"
        help_ = remedy(trouble.reason) or f"see kubectl describe -n {job.namespace} pod {last.name}"
        return Why(trouble.reason, f"{text}: {trouble.message}; {help_}" if trouble.message else f"{text}; {help_}")
    return None
