"""The Indexed Job of a plan generation. The Job controller replaces its pods while the operator is away."""

from typing import Any

from lanefeed_core.manifest import Manifest
from lanefeed_core.podconfig import PodConfig
from lanefeed_operator.api.spec import Job
from lanefeed_operator.reconcile.types import EXIT_STOPPED
from lanefeed_operator.render import constants as c
from lanefeed_operator.render import names
from lanefeed_operator.render.group import join
from lanefeed_operator.render.meta import metadata, passed
from lanefeed_operator.render.plan import plan_digest
from lanefeed_operator.render.settings import Settings
from lanefeed_operator.render.sizes import sizes
from lanefeed_operator.render.template import pod_template

__all__ = ["indexed_job"]


def indexed_job(job: Job, config: PodConfig, manifest: Manifest, settings: Settings, *, chunks: int) -> dict[str, Any]:
    """The Job. `suspend` is not set: a queue may hold the Job back, and nobody here fights over it."""
    plan, digest = config.plan, plan_digest(config)
    found = metadata(job, names.pods_name(job.metadata.name, plan.generation), "pods", plan.generation)
    found["labels"] |= passed(job.metadata.labels)
    found["annotations"] |= _for_queues(job) | {c.DIGEST_ANNOTATION: digest}
    template = pod_template(job, plan, sizes(job.spec, plan, manifest), settings, chunks=chunks, digest=digest)
    join(job, found["name"], template)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": found,
        "spec": {
            "completionMode": "Indexed",
            "completions": plan.replicas,
            "parallelism": plan.replicas,
            # Never two living pods of one index, but where a node is lost.
            "podReplacementPolicy": "Failed",
            # By index: the delay of a plain backoffLimit grows with every pod of a gang that fails together.
            "backoffLimitPerIndex": job.spec.max_restarts,
            "maxFailedIndexes": 0,
            "podFailurePolicy": {"rules": _rules(job)},
            "template": template,
        },
    }


def _for_queues(job: Job) -> dict[str, str]:
    """What Kueue reads. Where it may admit fewer pods, completions follow: all indexes must run at once."""
    found = passed(job.metadata.annotations)
    if c.MIN_PARALLELISM in found:
        found.setdefault(c.EQUAL_COMPLETIONS, "true")
    return found


def _rules(job: Job) -> list[dict[str, Any]]:
    """What counts as a failure of the program: all but what `reconcile.failures.verdict` calls free."""
    stopped = {"containerName": c.TRAINER, "operator": "In", "values": [EXIT_STOPPED]}
    rules: list[dict[str, Any]] = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        # Without containerName the sidecar's exit code would be looked at too.
        {"action": "Ignore", "onExitCodes": stopped},
    ]
    hopeless = sorted(set(job.spec.failure_policy.non_retryable_exit_codes))
    if hopeless:
        codes = {"containerName": c.TRAINER, "operator": "In", "values": hopeless}
        rules.append({"action": "FailJob", "onExitCodes": codes})
    return rules
