"""What becomes of a job's indexer: made, made again, replaced by one that fits a mended spec, or freed. Pure.

Asked by actions whenever reconcile wants a manifest. One Job at a time; it is deleted where it has ended without a
manifest (ever more slowly: it would fail again), and at once where the spec says by now another pod than the one that
ended or cannot start. One that runs is left to its work, whatever the spec says: only its node's loss ends it.
"""

from dataclasses import dataclass

from lanefeed_operator.kube.facts import JobFacts, PodFacts
from lanefeed_operator.kube.observe import World, lost_for

__all__ = ["Step", "next_step", "wait_seconds"]

#: An indexer that failed is made again after so long, doubled each time.
FIRST_WAIT, MAX_WAIT = 10.0, 300.0
#: More doublings than reach the longest wait.
MAX_DOUBLINGS = 10


@dataclass(frozen=True, slots=True)
class Step:
    """What to do. `delete`: this Job; `anew`: what former tries have shown does not count; `make`: there is none."""

    make: bool = False
    delete: JobFacts | None = None
    anew: bool = False
    free: tuple[PodFacts, ...] = ()


def next_step(world: World, name: str, digest: str, *, after: float, lost_seconds: float) -> Step:
    """The step for the indexer Job `name`, whose pod would have this template digest now.

    `after`: seconds since 1970 before which one that failed is not made again. `lost_seconds`: 0: pods are never freed.
    """
    old = next((job for job in world.our_jobs("indexer") if job.name == name), None)
    if old is None:
        return Step(make=True)
    pods = world.pods_of(old)
    lost = tuple(pod for pod in pods if lost_for(world, pod, lost_seconds))
    if old.deleted is not None or lost:
        return Step(free=lost)
    changed = old.template != digest
    if old.complete or old.gave_up is not None:
        return Step(delete=old, anew=changed) if changed or world.now >= after else Step()
    works = any(pod.state.phase in ("Running", "Succeeded") for pod in pods)
    return Step(delete=old, anew=True) if changed and not works else Step()


def wait_seconds(tries: int) -> float:
    """How long the next one waits after so many tries, the first one being 1."""
    return min(MAX_WAIT, FIRST_WAIT * 2.0 ** min(tries - 1, MAX_DOUBLINGS))
