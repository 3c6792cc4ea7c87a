"""The Job that indexes the dataset: with the user's service account, volumes and placement it sees what they see."""

import hashlib
import json
from typing import Any

from lanefeed_core.images import image_options
from lanefeed_core.wire import ENV_CONTROL_DIR, ENV_COORDINATOR, ENV_JOB_UID
from lanefeed_operator.api.spec import Job
from lanefeed_operator.render import constants as c
from lanefeed_operator.render import names
from lanefeed_operator.render.environment import data_variables, uid_variable
from lanefeed_operator.render.meta import labels, metadata
from lanefeed_operator.render.security import own_context, pod_context
from lanefeed_operator.render.settings import Settings
from lanefeed_operator.render.sidecar import control_volume, data_mounts, temp_volume
from lanefeed_operator.render.template import user_pod, user_trainer

__all__ = ["indexer"]

#: Fields of the user's pod that say where a pod may run, as whom, what it can reach, and what it must not have.
_KEPT = (
    "affinity",
    "automountServiceAccountToken",
    "dnsConfig",
    "dnsPolicy",
    "hostAliases",
    "hostUsers",
    "imagePullSecrets",
    "nodeSelector",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "serviceAccountName",
    "tolerations",
    "volumes",
)
#: A node that dies under it is not the dataset's fault.
RETRIES = 3
MEMORY = "1Gi"
#: Exit code of data or arguments that no retry mends.
EXIT_HOPELESS = 2
RESULT = "/tmp/manifest"  # noqa: S108 -- a volume of the pod's own


def indexer(job: Job, settings: Settings) -> dict[str, Any]:
    """The Job. It hands the manifest to the report service: pods of users need no right on the API."""
    user = user_pod(job)
    trainer = user_trainer(user)
    pod = {key: user[key] for key in _KEPT if key in user}
    container = {
        "name": c.INDEXER,
        "image": job.spec.sidecar.image or settings.sidecar_image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["python", "-m", "lanefeed_sidecar", "index"],
        "args": arguments(job, trainer),
        "env": [
            uid_variable(),
            {"name": ENV_JOB_UID, "value": job.metadata.uid},
            {"name": ENV_COORDINATOR, "value": settings.coordinator},
            {"name": ENV_CONTROL_DIR, "value": c.CONTROL_PATH},
            *data_variables(trainer),
        ],
        "resources": {
            "requests": {"cpu": settings.sidecar_cpu, "memory": MEMORY},
            "limits": {"memory": MEMORY},
        },
        "securityContext": own_context(
            settings, trainer=trainer.get("securityContext"), pod=user.get("securityContext")
        ),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            *data_mounts(trainer),
            {"name": c.TOKEN_VOLUME, "mountPath": c.CONTROL_PATH, "readOnly": True},
            {"name": c.TEMP_VOLUME, "mountPath": "/tmp"},  # noqa: S108 -- a volume of the pod's own
        ],
    }
    pod |= {
        "restartPolicy": "Never",
        "securityContext": pod_context(user.get("securityContext"), settings),
        "containers": [container],
        "volumes": [*pod.get("volumes", []), control_volume(job, settings), temp_volume()],
    }
    hopeless = {"containerName": c.INDEXER, "operator": "In", "values": [EXIT_HOPELESS]}
    rules = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": hopeless},
    ]
    marks = {c.TEMPLATE_ANNOTATION: _digest(pod)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(job, names.indexer_name(job.metadata.name), "indexer", annotations=marks),
        "spec": {
            "backoffLimit": RETRIES,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": rules},
            "template": {"metadata": {"labels": labels(job, "indexer")}, "spec": pod},
        },
    }


def _digest(pod: dict[str, Any]) -> str:
    """Of a pod's spec: equal for equal ones, in whatever order the user wrote the fields."""
    return hashlib.blake2b(json.dumps(pod, sort_keys=True).encode(), digest_size=16).hexdigest()


def arguments(job: Job, trainer: dict[str, Any]) -> list[str]:
    """Of `lanefeed-sidecar index`; relative URIs begin at the trainer's working directory."""
    data = job.spec.data
    found = ["--out", RESULT, "--json", "--digest", data.digest.value, "--on-corrupt", data.on_corrupt.value]
    if data.columns:
        found += ["--columns", ",".join(data.columns)]
    found += job.spec.batching.packing_options
    found += image_options(data.image_columns)
    if trainer.get("workingDir"):
        found += ["--base", str(trainer["workingDir"])]
    # An argument that begins with a dash is still a URI.
    return [*found, "--", *(uri.replace("$(", "$$(") for uri in data.uris)]
