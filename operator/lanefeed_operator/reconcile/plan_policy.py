"""When a new plan generation is needed, with what size, and from where.

Every plan generation is written into the status before anything of it exists; its number only ever grows.
"""

from lanefeed_core.errors import StreamError
from lanefeed_core.slices import World
from lanefeed_operator.api.spec import Job
from lanefeed_operator.api.status import PlanStatus, to_time
from lanefeed_operator.reconcile.conditions import RUNNING, SPEC_VALID, STOPPING, SUSPENDED, is_true
from lanefeed_operator.reconcile.context import Pass
from lanefeed_operator.reconcile.evicted import EVICTION, evicted
from lanefeed_operator.reconcile.types import Children

__all__ = ["admitted", "change", "misfit", "new_plan", "shrunk", "valid"]

#: Problems of the spec itself, which only its author can mend.
REFUSED = ("InvalidPodTemplate", "SpecRefused")

#: Ranks may start apart for a moment, while torchrun restarts them one after the other.
DISAGREE_SECONDS = 30.0


def misfit(job: Job, replicas: int) -> str:
    """Why the job cannot run with `replicas` pods; "" if it can."""
    spec, elastic = job.spec, job.spec.elastic
    if replicas < elastic.min_replicas:
        return f"spec.replicas is {replicas}, below elastic.minReplicas {elastic.min_replicas}: raise it or lower that"
    if elastic.max_replicas is not None and replicas > elastic.max_replicas:
        return f"spec.replicas is {replicas}, above elastic.maxReplicas {elastic.max_replicas}: lower it or raise that"
    try:
        World(replicas * spec.ranks_per_replica, spec.allow_uneven).check(spec.batching.global_batch_size)
    except StreamError as error:
        return str(error)
    return ""


def change(p: Pass) -> str:
    """Why the current plan has to end, "" if it may go on. Sets the conditions that say so."""
    spec, plan, children = p.job.spec, p.status.plan, p.children
    if plan.created and children is None:
        return "ChildrenLost"
    newer = plan.spec_generation not in (0, p.job.metadata.generation)
    if children is None and newer and not misfit(p.job, spec.replicas):
        # Nothing was made of it yet, and what would be made now is of another spec than the plan's document.
        return "SpecChanged"
    if spec.restart_token != plan.restart_token:
        return "Restart"
    if (spec.replicas, spec.ranks_per_replica) != (plan.wanted, plan.ranks_per_replica):
        problem = misfit(p.job, spec.replicas)
        if not problem:
            return "Resize"
        p.condition(SPEC_VALID, False, "SizeRefused", f"{problem}; the job goes on with {plan.replicas} pods")
    else:
        valid(p)
    if _disagree(p):
        return "RanksDisagree"
    if children is None:
        return ""
    if shrunk(p, children):
        return "Shrink"
    if admitted(p, children):
        return "Admitted"
    return EVICTION if evicted(p, children) else ""


def valid(p: Pass) -> None:
    """The spec can be run, as far as reconcile can see; what the API server refused in it is said instead."""
    problem = p.observed.problem
    if problem is not None and problem.reason in REFUSED:
        p.condition(SPEC_VALID, False, problem.reason, problem.message)
    else:
        p.condition(SPEC_VALID, True, "Valid", "the spec can be run")


def _disagree(p: Pass) -> bool:
    """Whether ranks stand at steps that do not fit together for longer than a restart takes."""
    feed, plan = p.observed.feed, p.status.plan
    if not feed.disagree or feed.plan_generation != plan.generation:
        p.set_plan(disagree_time="")
        return False
    if not plan.disagree_time:
        p.set_plan(disagree_time=to_time(p.now))
    left = DISAGREE_SECONDS - p.since(p.status.plan.disagree_time)
    p.look_again(left)
    return left <= 0


def shrunk(p: Pass, children: Children) -> int:
    """The size to go on with where nodes lack, 0 if there is no reason or no way."""
    spec = p.job.spec
    limit = spec.elastic.shrink_after_seconds
    if not limit or children.unplaced_since is None:
        return 0
    left = limit - (p.now - children.unplaced_since)
    if left > 0:
        p.look_again(left)
        return 0
    placed = sum(1 for pod in children.pods if pod.alive and pod.phase == "Running")
    return next((n for n in range(min(placed, p.status.plan.replicas - 1), 0, -1) if not misfit(p.job, n)), 0)


def admitted(p: Pass, children: Children) -> int:
    """The size to go on with where a queue admitted another one than the plan's, 0 if it did not, or none fits."""
    size = children.size
    if children.queued or children.deleting or size >= p.status.plan.replicas:
        return 0
    return next((n for n in range(size, 0, -1) if not misfit(p.job, n)), 0)


def _small(p: Pass) -> int:
    """The size that the stop was asked for, 0: spec.replicas. A size set since goes before it, if it can run."""
    spec, plan, size = p.job.spec, p.status.plan, p.status.stop.replicas if p.status.stop else 0
    if not size or misfit(p.job, size):
        return 0
    same = (spec.replicas, spec.ranks_per_replica) == (plan.wanted, plan.ranks_per_replica)
    return size if same or misfit(p.job, spec.replicas) else 0


def _former(p: Pass) -> int:
    """The size of the plan before, 0 if there is none or it cannot run either: a refused size ends no job."""
    size = p.status.plan.replicas
    return size if size and not misfit(p.job, size) else 0


def new_plan(p: Pass, reason: str) -> bool:
    """Write a plan generation ahead. Nothing of it is made before this is persisted. Ends the pass."""
    spec, plan = p.job.spec, p.status.plan
    problem = misfit(p.job, spec.replicas)
    replicas = _small(p) or (_former(p) if problem else spec.replicas)
    if not replicas:
        p.condition(SPEC_VALID, False, "SizeRefused", problem)
        return True
    if problem:
        p.condition(SPEC_VALID, False, "SizeRefused", f"{problem}; the job goes on with {replicas} pods")
    else:
        valid(p)
    if p.last_step > plan.start and p.status.restarts.idle:
        p.count(idle=0)
    # Above every number that is in use anywhere, should the status have been restored from an old copy.
    number = 1 + max([plan.generation, p.observed.feed.plan_generation, *p.observed.children, *p.observed.plans])
    p.set(
        plan_generation=number,
        replicas=replicas,
        stop=None,
        start_time=p.status.start_time or to_time(p.now),
        plan=PlanStatus(
            generation=number,
            replicas=replicas,
            ranks_per_replica=spec.ranks_per_replica,
            start=p.last_step,
            reason=reason,
            time=to_time(p.now),
            restart_token=spec.restart_token,
            # A size that is refused is no plan's: the next passes go on saying so, and resize once it can run.
            wanted=0 if problem else spec.replicas,
            spec_generation=p.job.metadata.generation,
        ),
    )
    # At once, so that nobody takes it for the former plan's: Running would be seen for a moment between two plans.
    p.condition(RUNNING, False, "Starting", f"plan generation {number} with {replicas} pods begins")
    if is_true(p.status, STOPPING):
        p.condition(STOPPING, False, reason, f"went on as plan generation {number} with {replicas} pods")
    if is_true(p.status, SUSPENDED):
        p.condition(SUSPENDED, False, "Resumed", f"resumed from step {p.last_step}")
    p.look_again(0)
    return True
