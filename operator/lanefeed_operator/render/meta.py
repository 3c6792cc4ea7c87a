"""Metadata of children: labels, owner, and what of the user's is passed on."""

from typing import Any

from lanefeed_operator.api.labels import pod_selector
from lanefeed_operator.api.spec import API_VERSION, KIND, Job
from lanefeed_operator.render import constants as c

__all__ = ["labels", "metadata", "passed", "selector"]


def labels(job: Job, role: str, generation: int | None = None) -> dict[str, str]:
    """Labels of a child."""
    found = {**c.MANAGED_BY, c.JOB_LABEL: job.metadata.name, c.ROLE_LABEL: role}
    return found if generation is None else {**found, c.PLAN_LABEL: str(generation)}


def selector(job: Job) -> dict[str, str]:
    """Which pods train for the job, whatever their plan: for the Service, and as status.selector for the HPA."""
    return pod_selector(job.metadata.name)


def metadata(
    job: Job, name: str, role: str, generation: int | None = None, *, annotations: dict[str, str] | None = None
) -> dict[str, Any]:
    """Metadata of a child: it goes when the job goes, with no finalizer of ours."""
    return {
        "name": name,
        "namespace": job.metadata.namespace,
        "labels": labels(job, role, generation),
        "annotations": {c.UID_ANNOTATION: job.metadata.uid, **(annotations or {})},
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": job.metadata.name,
                "uid": job.metadata.uid,
                "controller": True,
                # True would need a right on the job's finalizers, and nothing here has to hold up a deletion.
                "blockOwnerDeletion": False,
            }
        ],
    }


def passed(values: dict[str, str]) -> dict[str, str]:
    """Labels or annotations of the job that are for a queue: they go to the Indexed Job."""
    return {key: value for key, value in values.items() if key in c.QUEUE_KEYS}
