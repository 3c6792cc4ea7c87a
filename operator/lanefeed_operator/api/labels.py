"""Labels by which a job's pods are found: read by `render`, which sets them, and by `reconcile` for status.selector."""

__all__ = ["JOB_LABEL", "KUEUE_QUEUE", "POD_ROLE", "ROLE_LABEL", "pod_selector"]

#: Name of the ShardedTrainingJob.
JOB_LABEL = "lanefeed.dev/job"
#: What a child is: service, indexer, manifest, plan, trust, pods, group.
ROLE_LABEL = "lanefeed.dev/role"
#: The role of pods that train.
POD_ROLE = "pods"


#: A job with this label waits in a queue of Kueue.
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"


def pod_selector(job: str) -> dict[str, str]:
    """Which pods train for the job, whatever their plan: for the Service, and as status.selector for the HPA."""
    return {JOB_LABEL: job, ROLE_LABEL: POD_ROLE}
