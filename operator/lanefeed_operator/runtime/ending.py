"""Lets go of a namespace that is being deleted. Called by the controller.

Kubernetes deletes the pods of a namespace first and waits for them. A pod of ours that has failed keeps the Job
controller's finalizer until its replacement is made (backoffLimitPerIndex), and nothing is made in such a namespace any
more: both wait for ever (seen on Kubernetes 1.34). So our Jobs are deleted, which takes the finalizers off; the rest of
the namespace follows by itself.
"""

import logging

from lanefeed_operator.kube.api import CONFIG_MAPS, JOBS, ApiError, Forbidden, KubeApi
from lanefeed_operator.kube.observe import World

__all__ = ["is_ending", "let_go", "probe", "stuck"]

log = logging.getLogger(__name__)

#: A failed pod that should have been gone for this long is held by its finalizer.
STUCK_SECONDS = 15.0
#: The API server's words (NamespaceLifecycle).
_WORDS = "because it is being terminated"


def is_ending(error: Exception) -> bool:
    """Whether a create was refused because the namespace is being deleted."""
    return isinstance(error, Forbidden) and _WORDS in str(error)


def stuck(world: World) -> bool:
    """Whether a pod that was deleted and has ended is still there although its Job stays."""
    pods = [pod for job in world.our_jobs("pods") if job.deleted is None for pod in world.pods_of(job)]
    dead = [pod for pod in pods if pod.state.phase in ("Failed", "Succeeded")]
    return any(pod.deleted is not None and world.now - pod.deleted > STUCK_SECONDS for pod in dead)


def probe(api: KubeApi, namespace: str) -> bool:
    """Whether the namespace is being deleted, by a create that is never done."""
    try:
        api.create(CONFIG_MAPS, namespace, {"metadata": {"name": "lanefeed-probe"}}, dry_run=True)
    except ApiError as error:
        return is_ending(error)
    return False


def let_go(api: KubeApi, world: World) -> None:
    """Delete our Jobs; pods that run have been told to end by then. Raises ApiError."""
    for job in [*world.our_jobs("pods"), *world.our_jobs("indexer")]:
        if job.deleted is None:
            log.info("%s/%s: its namespace is being deleted, and so is its Job %s", job.namespace, world.name, job.name)
            api.delete(JOBS, job.namespace, job.name, uid=job.uid)
