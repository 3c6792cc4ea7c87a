"""The PodGroup of a plan generation, for gangs: all of its pods start together, or none does.

Made before the Indexed Job and deleted with it. Volcano and the coscheduling plugin each have a kind of their own.
"""

from typing import Any

from lanefeed_operator.api.spec import Job, Provider
from lanefeed_operator.render import constants as c
from lanefeed_operator.render.meta import metadata
from lanefeed_operator.render.requests import pod_requests, spell

__all__ = ["join", "pod_group"]

VOLCANO_ANNOTATION = "scheduling.k8s.io/group-name"
VOLCANO_SCHEDULER = "volcano"
COSCHEDULING_LABEL = "scheduling.x-k8s.io/pod-group"
_VERSIONS = {
    Provider.VOLCANO: "scheduling.volcano.sh/v1beta1",
    Provider.COSCHEDULING: "scheduling.x-k8s.io/v1alpha1",
}


def join(job: Job, name: str, template: dict[str, Any]) -> None:
    """Make the pods of a template members of the group `name`, in place."""
    provider = job.spec.scheduling.gang.provider
    if provider is Provider.VOLCANO:
        template["metadata"]["annotations"][VOLCANO_ANNOTATION] = name
        template["spec"].setdefault("schedulerName", VOLCANO_SCHEDULER)
    elif provider is Provider.COSCHEDULING:
        # The scheduler that has the plugin is named by whoever installed it: the template says which.
        template["metadata"]["labels"][COSCHEDULING_LABEL] = name


def pod_group(job: Job, indexed: dict[str, Any]) -> dict[str, Any] | None:
    """The PodGroup of an Indexed Job, None where the job wants no gang."""
    gang = job.spec.scheduling.gang
    if gang.provider is Provider.NONE:
        return None
    name, spec = indexed["metadata"]["name"], indexed["spec"]
    generation = int(indexed["metadata"]["labels"][c.PLAN_LABEL])
    # A plan that was shrunk must not wait for pods that it has not.
    members = min(gang.min_available or spec["completions"], spec["completions"])
    pod = spec["template"]["spec"]
    group: dict[str, Any] = {"minMember": members, "minResources": spell(pod_requests(pod), members)}
    if gang.provider is Provider.VOLCANO:
        group |= {"queue": gang.queue} if gang.queue else {}
        group |= {"priorityClassName": pod["priorityClassName"]} if pod.get("priorityClassName") else {}
    elif gang.timeout_seconds is not None:
        group["scheduleTimeoutSeconds"] = gang.timeout_seconds
    return {
        "apiVersion": _VERSIONS[gang.provider],
        "kind": "PodGroup",
        "metadata": metadata(job, name, "group", generation),
        "spec": group,
    }
