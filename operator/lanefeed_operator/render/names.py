"""Names of a job's children: a function of the job's name and the plan generation alone, so that a repeated create hits
the same object. Bounds: docs in `rules.MAX_NAME`.
"""

from lanefeed_operator.api.rules import MAX_NAME
from lanefeed_operator.render.errors import RenderError

__all__ = [
    "MAX_GENERATION",
    "indexer_name",
    "manifest_name",
    "plan_map_name",
    "pod_host",
    "pods_name",
    "service_name",
    "trust_name",
]

#: Six digits: with a name of 45 and five digits of index a host name has 58 of its 63 characters.
MAX_GENERATION = 999_999


def _checked(job: str) -> str:
    if len(job) > MAX_NAME:
        raise RenderError("metadata.name", f"{job!r} has {len(job)} characters: at most {MAX_NAME} fit into pod names")
    return job


def pods_name(job: str, generation: int) -> str:
    """The Indexed Job of a plan generation."""
    if not 1 <= generation <= MAX_GENERATION:
        raise RenderError("status.planGeneration", f"is {generation}: 1 to {MAX_GENERATION} fit; start a new job")
    return f"{_checked(job)}-{generation}"


def plan_map_name(job: str, generation: int) -> str:
    """The ConfigMap of a plan generation."""
    return f"{pods_name(job, generation)}-plan"


def service_name(job: str) -> str:
    """The headless Service, for the job's life."""
    return _checked(job)


def indexer_name(job: str) -> str:
    """The Job that indexes the dataset."""
    return f"{_checked(job)}-index"


def manifest_name(job: str, chunk: int) -> str:
    """One ConfigMap of the manifest."""
    return f"{_checked(job)}-manifest-{chunk}"


def trust_name(job: str) -> str:
    """The ConfigMap with the report service's CA."""
    return f"{_checked(job)}-trust"


def pod_host(job: str, generation: int, namespace: str, index: int | str) -> str:
    """Host name of a pod as its peers resolve it; it carries the plan generation, so no old peer is found under it."""
    return f"{pods_name(job, generation)}-{index}.{service_name(job)}.{namespace}.svc"
