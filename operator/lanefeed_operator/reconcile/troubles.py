"""What holds a plan's pods up, in words that say the next thing to do. For conditions; decides nothing.

Kubernetes says some of it (a container waits, no node fits), and some shows only by what does not happen: pods that are
not made, that stay in ContainerCreating, trainers that run and never connect.
"""

from collections.abc import Iterator

from lanefeed_operator.api.status import from_time, to_time
from lanefeed_operator.reconcile.conditions import NOT_CONNECTED
from lanefeed_operator.reconcile.context import Pass
from lanefeed_operator.reconcile.failures import ending, last_dead, read_log
from lanefeed_operator.reconcile.lost import silent_since
from lanefeed_operator.reconcile.types import Children, Pod, Trouble, Why

__all__ = ["failing", "remedy", "trouble", "unconnected"]

SIDECAR = "lanefeed-sidecar"
#: What is quite usual for that long is no trouble.
PATIENCE_SECONDS = 20.0
#: Large models load for minutes: that is said, but it is no trouble before.
LOADING_SECONDS = 180.0
#: Pods of which one has failed are well again when all have run for so long: more than most crashes take, so that the
#: word does not come and go with each of them.
WELL_SECONDS = 120.0

#: Pods whose trainers are missing, named in a message.
MAX_NAMED = 3

_IMAGE = (
    "check the image's name, that nodes reach its registry, and spec.template.spec.imagePullSecrets where it asks who "
    "pulls"
)
_COMMAND = "check command, args, workingDir and mounts in spec.template"
_HELP = {
    "ErrImagePull": _IMAGE,
    "ImagePullBackOff": _IMAGE,
    "ErrImageNeverPull": _IMAGE,
    "InvalidImageName": _IMAGE,
    "ImageInspectError": _IMAGE,
    "CreateContainerConfigError": "make the Secret or ConfigMap that it names, or mend spec.template",
    "CreateContainerError": _COMMAND,
    "RunContainerError": _COMMAND,
    "StartError": _COMMAND,
    "ContainerCannotRun": _COMMAND,
    "Unschedulable": "free or add nodes, or ask for less in spec.template (resources, nodeSelector, affinity)",
    "SchedulingGated": "whoever put the gate on the pod has to lift it",
}
_OOM = {
    True: "raise spec.sidecar.resources.limits.memory, or lower spec.sidecar.readAheadBytes",
    False: "raise its memory limit in spec.template",
}
#: What helps the job where not all pods find a node.
_SMALLER = "; with elastic.shrinkAfterSeconds it goes on with fewer pods"
#: Waiting that is part of every start.
_USUAL = ("ContainerCreating", "PodInitializing")


def trouble(p: Pass, children: Children) -> Why | None:
    """The first thing to mend, or None. Asks to be called again when patience ends."""
    for pod in sorted(children.alive, key=lambda pod: pod.index):
        silent = silent_since(p, pod)
        if silent is not None:
            # What the kubelet said of it last is no news.
            if silent > (pod.lost_since or 0.0) and p.now - silent < PATIENCE_SECONDS:
                continue
            return _lost(p, pod, silent)
        for one in pod.troubles:
            if one.reason not in _USUAL:
                return _said(p, pod, one)
    return next(_silent(p, children), None)


def _lost(p: Pass, pod: Pod, since: float) -> Why:
    seconds = p.job.spec.elastic.node_lost_seconds
    then = f"it is replaced elastic.nodeLostSeconds ({seconds} s) after that"
    text = f"the node of {_name(pod)} has not been heard of since {to_time(since)}; "
    return Why("NodeLost", text + (then if seconds else "elastic.nodeLostSeconds is 0: delete the pod by force"))


def _said(p: Pass, pod: Pod, one: Trouble) -> Why:
    where = f"container {one.container} of " if one.container else ""
    said = one.message.rstrip(".")
    what = f"{one.reason}{f': {said}' if said else ''}"
    if one.restarts:
        code = "" if one.exit_code is None else f", exit code {one.exit_code}"
        what += f" (started again {one.restarts} times{code})"
    if one.reason == "OOMKilled":
        help_ = _OOM[one.container == SIDECAR]
    elif one.reason in _HELP:
        help_ = remedy(one.reason)
        if one.reason == "Unschedulable" and not p.job.spec.elastic.shrink_after_seconds:
            help_ += _SMALLER
    else:
        log = read_log(p.job, pod, one.container)
        help_ = f"{log[0].lower()}{log[1:]}"
    return Why(one.reason, f"{where}{_name(pod)}: {what}; {help_}")


def remedy(reason: str) -> str:
    """What to do about a pod that waits for this reason; "" where its log has to say it."""
    return _HELP.get(reason, "")


def _name(pod: Pod) -> str:
    return f"pod {pod.name}" if pod.name else f"pod index {pod.index}"


def _silent(p: Pass, children: Children) -> Iterator[Why]:
    """What Kubernetes does not say in a pod's status."""
    namespace = p.job.metadata.namespace
    missing = children.replicas - len({pod.index for pod in children.pods} | children.succeeded)
    if missing > 0 and children.started is not None and _over(p, children.started):
        name = children.name or f"{p.job.metadata.name}-{children.generation}"
        yield Why(
            "PodsNotCreated",
            f"{missing} of {children.replicas} pods are not made: a quota or an admission policy may forbid them; see "
            f"kubectl describe -n {namespace} job {name}",
        )
    for pod in children.alive:
        starting = any(one.reason in _USUAL for one in pod.troubles)
        if starting and pod.started is not None and _over(p, pod.started):
            yield Why(
                "PodNotStarting",
                f"{_name(pod)} is being created for more than {PATIENCE_SECONDS:.0f} s: images are pulled, or a "
                f"volume, Secret or ConfigMap is missing; see kubectl describe -n {namespace} pod {pod.name}",
            )
    yield from unconnected(p, children, LOADING_SECONDS)


def unconnected(p: Pass, children: Children, seconds: float = PATIENCE_SECONDS) -> Iterator[Why]:
    """All pods run for so long, and trainers have not called connect()."""
    made = [pod.started for pod in children.alive if pod.started is not None]
    if not made or len(made) < children.replicas or children.ready < children.replicas:
        return
    feed = p.observed.feed
    world = children.replicas * p.status.plan.ranks_per_replica
    known = set(feed.ranks) if feed.plan_generation == p.generation else set()
    here = len(known)
    if not here and from_time(p.status.progress.time) > from_time(p.status.plan.time):
        # They were heard of in this plan, by a control plane before this one: their next reports are on the way.
        return
    if here < world and _over(p, max(made), seconds):
        missing = {rank // p.status.plan.ranks_per_replica for rank in range(world) if rank not in known}
        pods = [pod for pod in children.alive if pod.index in missing]
        names = ", ".join(pod.name or f"index {pod.index}" for pod in pods[:MAX_NAMED])
        more = ", ..." if len(pods) > MAX_NAMED else ""
        log = read_log(p.job, pods[0] if pods else None)
        yield Why(
            NOT_CONNECTED,
            f"{world - here} of {world} ranks have not connected to their sidecars (pods {names}{more}): they may "
            f"still load. If not: {log[0].lower()}{log[1:]}, and let the trainer call lanefeed.connect() on every rank",
        )


def _over(p: Pass, since: float, seconds: float = PATIENCE_SECONDS) -> bool:
    left = seconds - (p.now - since)
    if left > 0:
        p.look_again(left)
    return left <= 0


def _well(p: Pass, children: Children) -> bool:
    made = [pod.started for pod in children.alive if pod.started is not None]
    whole = children.ready + len(children.succeeded) >= children.replicas
    return whole and bool(made) and _over(p, max(made), WELL_SECONDS)


def failing(p: Pass, children: Children) -> Why | None:
    """The index that failed most often in this plan, until all pods are well again."""
    index, times = max(children.failures.items(), key=lambda item: (item[1], -item[0]), default=(0, 0))
    if not times or _well(p, children):
        return None
    pod = last_dead(children, index)
    how = f", the last time with {ending(pod)}" if pod else ""
    log = read_log(p.job, pod)
    return Why(
        "PodsFailing",
        f"pod index {index} failed {times} times of {p.job.spec.max_restarts} allowed{how}: {log[0].lower()}{log[1:]}",
    )
