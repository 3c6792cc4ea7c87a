"""The user's pod template and ours, merged by the rules of docs/pod-template.md; what we do not name is kept."""

import copy
from typing import Any

from lanefeed_core.plan import Plan
from lanefeed_operator.api.rules import reserved
from lanefeed_operator.api.spec import Job
from lanefeed_operator.render import constants as c
from lanefeed_operator.render import names
from lanefeed_operator.render.environment import trainer_variables
from lanefeed_operator.render.errors import RenderError
from lanefeed_operator.render.meta import labels
from lanefeed_operator.render.security import container_context, pod_context
from lanefeed_operator.render.settings import Settings
from lanefeed_operator.render.sidecar import leave_hook, run_mount, sidecar, volumes
from lanefeed_operator.render.sizes import Sizes

__all__ = ["pod_template", "user_pod", "user_trainer"]

_BASE = "spec.template.spec"


def user_pod(job: Job) -> dict[str, Any]:
    """The pod's spec as the user wrote it; a copy. Raises RenderError where it nests deeper than pydantic goes."""
    try:
        return copy.deepcopy(job.spec.template.spec.model_dump(by_alias=True, mode="json", exclude_unset=True))
    except (ValueError, RecursionError) as error:
        raise RenderError(_BASE, f"nests too deep ({error}): a dozen levels are what a pod has") from None


def user_trainer(pod: dict[str, Any]) -> dict[str, Any]:
    """The container that trains, in a pod's spec. Raises RenderError where it is not there once."""
    found = [container for container in pod.get("containers", ()) if container.get("name") == c.TRAINER]
    if len(found) != 1:
        raise RenderError(
            f"{_BASE}.containers", f"needs exactly one named {c.TRAINER}, which trains; found {len(found)}"
        )
    trainer: dict[str, Any] = found[0]
    return trainer


def pod_template(job: Job, plan: Plan, sizes: Sizes, settings: Settings, *, chunks: int, digest: str) -> dict[str, Any]:
    """The template of the plan's pods."""
    pod = user_pod(job)
    _refuse_ours(pod)
    trainer = user_trainer(pod)
    ours = sidecar(job, sizes, settings, pod=pod, trainer=trainer)
    _complete_trainer(trainer, pod, job, plan, settings)
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        container["securityContext"] = container_context(container.get("securityContext"))
    pod |= {
        "restartPolicy": "Never",
        "subdomain": names.service_name(job.metadata.name),
        "securityContext": pod_context(pod.get("securityContext"), settings),
        # The user's come first: what fetches data or keys has done so when the sidecar starts.
        "initContainers": [*pod.get("initContainers", []), ours],
        "volumes": [*pod.get("volumes", []), *volumes(job, plan.generation, sizes, settings, chunks=chunks)],
    }
    # Names of pods are the Job controller's: peers find each other by them.
    pod.pop("hostname", None)
    if pod.get("hostNetwork") and not pod.get("dnsPolicy"):
        # By default they resolve names as their node does, which knows none of Services: neither the report service's
        # nor that of the first pod.
        pod["dnsPolicy"] = "ClusterFirstWithHostNet"
    pod.setdefault("terminationGracePeriodSeconds", job.spec.elastic.stop_grace_seconds + c.FLUSH_SECONDS)
    return {"metadata": _metadata(job, plan, settings, digest), "spec": pod}


def _complete_trainer(trainer: dict[str, Any], pod: dict[str, Any], job: Job, plan: Plan, settings: Settings) -> None:
    """Environment, the shared folder, and the way to leave."""
    written = trainer.get("env") or []
    taken = sorted({item["name"] for item in written if reserved(item["name"])})
    if taken:
        raise RenderError(
            f"{_BASE}.containers[{c.TRAINER}].env", f"sets {', '.join(taken)}, which the operator sets: rename it"
        )
    # Ours first, so that the user's may refer to them.
    trainer["env"] = [*trainer_variables(job, plan, settings), *written]
    for mount in trainer.get("volumeMounts") or []:
        path = str(mount.get("mountPath", "")).rstrip("/")
        if path == c.RUN_PATH or path.startswith(c.RUN_PATH + "/"):
            raise RenderError(
                f"{_BASE}.containers[{c.TRAINER}].volumeMounts",
                f"uses {path}, which is the operator's: mount elsewhere",
            )
    trainer["volumeMounts"] = [*(trainer.get("volumeMounts") or []), run_mount()]
    lifecycle = trainer.get("lifecycle") or {}
    if "preStop" not in lifecycle:
        trainer["lifecycle"] = {**lifecycle, "preStop": leave_hook(job, _leave_seconds(job, pod), settings)}


def _leave_seconds(job: Job, pod: dict[str, Any]) -> int:
    """How long ranks may take to leave once they were asked to: the sidecar's last report must fit behind."""
    given, stop = pod.get("terminationGracePeriodSeconds"), job.spec.elastic.stop_grace_seconds
    return stop if given is None else max(0, min(stop, int(given) - c.FLUSH_SECONDS))


def _refuse_ours(pod: dict[str, Any]) -> None:
    """Names that begin with lanefeed- are ours; also in mounts: the report token is for our containers alone."""
    named = [(kind, item) for kind in ("containers", "initContainers", "volumes") for item in pod.get(kind) or ()]
    for container in [*(pod.get("containers") or ()), *(pod.get("initContainers") or ())]:
        named += [("volumeMounts", mount) for mount in container.get("volumeMounts") or ()]
    for kind, item in named:
        if str(item.get("name", "")).startswith(c.RESERVED):
            raise RenderError(
                f"{_BASE}.{kind}", f"has {item['name']!r}: names that begin with lanefeed- are the operator's"
            )


def _metadata(job: Job, plan: Plan, settings: Settings, digest: str) -> dict[str, Any]:
    """The user's labels and annotations; ours win, and ours are only ours."""
    meta = job.spec.template.metadata
    own = labels(job, "pods", plan.generation)
    topology = {k: v for k, v in job.metadata.annotations.items() if k.startswith(c.PODSET_PREFIX)}
    scrape = {
        # For Prometheus without its operator; the PodMonitor goes by the port's name.
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(settings.metrics_port),
        "prometheus.io/path": "/metrics",
    }
    annotations = {**scrape, **topology, **meta.annotations}
    ours = {c.UID_ANNOTATION: job.metadata.uid, c.DIGEST_ANNOTATION: digest}
    return {"labels": {**_kept(meta.labels), **own}, "annotations": {**_kept(annotations), **ours}}


def _kept(values: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in values.items() if not key.startswith(c.OWN_PREFIX)}
