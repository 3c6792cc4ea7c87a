"""The sidecar's container and the volumes that it brings into the pod."""

from collections.abc import Mapping
from typing import Any

from lanefeed_core.wire import ENV_CONTROL_DIR, ENV_FLUSH, ENV_POD_INDEX, LEAVE_PATH
from lanefeed_operator.api.quantity import format_bytes, parse_bytes
from lanefeed_operator.api.spec import Job
from lanefeed_operator.render import constants as c
from lanefeed_operator.render import names
from lanefeed_operator.render.environment import data_variables, index_variable, uid_variable
from lanefeed_operator.render.errors import RenderError
from lanefeed_operator.render.security import own_context
from lanefeed_operator.render.settings import Settings
from lanefeed_operator.render.sizes import Sizes

__all__ = ["control_volume", "data_mounts", "leave_hook", "resources", "run_mount", "sidecar", "temp_volume", "volumes"]


#: Of the sidecar and the indexer.
OWN_PATHS = (c.RUN_PATH, c.PLAN_PATH, c.MANIFEST_PATH, c.CONTROL_PATH, c.CACHE_PATH, "/tmp")  # noqa: S108 -- our own
#: In the folder beside entries: what the file system itself needs.
CACHE_SLACK = 1.05


def sidecar(
    job: Job, sizes: Sizes, settings: Settings, *, pod: Mapping[str, Any], trainer: Mapping[str, Any]
) -> dict[str, Any]:
    """A native sidecar: an init container that goes on. `pod`, `trainer`: as the user wrote them."""
    port = settings.metrics_port
    return {
        "name": c.SIDECAR,
        "image": job.spec.sidecar.image or settings.sidecar_image,
        "imagePullPolicy": settings.image_pull_policy,
        "restartPolicy": "Always",
        "command": ["python", "-m", "lanefeed_sidecar"],
        "args": ["--config", f"{c.PLAN_PATH}/{c.POD_FILE}"],
        "env": [
            index_variable(ENV_POD_INDEX),
            uid_variable(),
            {"name": ENV_CONTROL_DIR, "value": c.CONTROL_PATH},
            {"name": ENV_FLUSH, "value": str(c.FLUSH_SECONDS - c.END_SECONDS)},
            *data_variables(trainer),
        ],
        "ports": [{"name": c.METRICS_PORT_NAME, "containerPort": port}],
        # The trainer starts when this one is ready: local readiness, which never waits for peers or the operator.
        "startupProbe": _probe("/readyz", port) | {"periodSeconds": 1, "failureThreshold": c.STARTUP_SECONDS},
        "readinessProbe": _probe("/readyz", port) | {"periodSeconds": 5, "failureThreshold": 2},
        "resources": resources(job, sizes, settings),
        "securityContext": own_context(
            settings, trainer=trainer.get("securityContext"), pod=pod.get("securityContext")
        ),
        # The last line of its log says why it ends, whatever it ends with.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            *data_mounts(trainer),
            run_mount(),
            {"name": c.PLAN_VOLUME, "mountPath": c.PLAN_PATH, "readOnly": True},
            {"name": c.MANIFEST_VOLUME, "mountPath": c.MANIFEST_PATH, "readOnly": True},
            {"name": c.TOKEN_VOLUME, "mountPath": c.CONTROL_PATH, "readOnly": True},
            {"name": c.TEMP_VOLUME, "mountPath": "/tmp"},  # noqa: S108 -- a volume of the pod's own
            *_cache_mount(job),
        ],
    }


def _cache_mount(job: Job) -> list[dict[str, Any]]:
    """The decoded cache's folder, in the user's volume or in our own."""
    cache = job.spec.sidecar.cache
    return [{"name": cache.volume or c.CACHE_VOLUME, "mountPath": c.CACHE_PATH}] if cache.size else []


def _cache_volume(job: Job) -> list[dict[str, Any]]:
    cache = job.spec.sidecar.cache
    if not cache.size or cache.volume:
        return []
    limit = format_bytes(int(cache.size * CACHE_SLACK))
    return [{"name": c.CACHE_VOLUME, "emptyDir": {"sizeLimit": limit}}]


def _probe(path: str, port: int) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": port}, "timeoutSeconds": 2}


def leave_hook(job: Job, seconds: int, settings: Settings) -> dict[str, Any]:
    """The trainer's preStop hook: before SIGTERM the sidecar lets its ranks leave, with a checkpoint, at one step.

    Every pod of the cluster reaches that port: the job's UID, which others cannot read, says that the kubelet asks.
    """
    path = f"{LEAVE_PATH}?seconds={seconds}&job={job.metadata.uid}"
    return {"httpGet": {"path": path, "port": settings.metrics_port}}


def run_mount() -> dict[str, Any]:
    """The shared tmpfs. Writable for the trainer too: views of slots are writable tensors."""
    return {"name": c.RUN_VOLUME, "mountPath": c.RUN_PATH}


def data_mounts(trainer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The trainer's mounts, read-only, so that the sidecar finds the data under the same paths.

    Mounts that depend on the trainer's environment (subPathExpr) are left out, and those at paths of our own.
    """
    found = []
    for mount in trainer.get("volumeMounts") or ():
        if "subPathExpr" not in mount and str(mount.get("mountPath", "")).rstrip("/") not in OWN_PATHS:
            kept = {key: value for key, value in mount.items() if key in ("name", "mountPath", "subPath")}
            found.append({**kept, "readOnly": True})
    return found


def resources(job: Job, sizes: Sizes, settings: Settings) -> dict[str, Any]:
    """Requests and limits: memory is computed, a user may give more, never less; the rest is the user's."""
    given = job.spec.sidecar.resources
    limits, requests = dict(given.get("limits") or {}), dict(given.get("requests") or {})
    needed = {"limits": (sizes.limit, "two arenas (one is a restarted sidecar's)"), "requests": (sizes.memory, "arena")}
    for kind, values in (("limits", limits), ("requests", requests)):
        least, what = needed[kind]
        if "memory" in values and _bytes(values["memory"], kind) < least:
            raise RenderError(
                f"spec.sidecar.resources.{kind}.memory",
                f"is {values['memory']}: {what} of {format_bytes(sizes.arena)}, read-ahead and overhead need "
                f"{format_bytes(least)}; raise it, leave it out, or lower sidecar.readAheadBytes or sidecar.slots",
            )
    asked = _bytes(requests["memory"], "requests") if "memory" in requests else 0
    limits.setdefault("memory", format_bytes(max(sizes.limit, asked)))
    # All of it is written at the start (the arena is reserved whole), so it is asked for whole.
    requests.setdefault("memory", format_bytes(sizes.memory))
    if "cpu" not in requests:
        # A limit without a request is its own request.
        requests |= {} if "cpu" in limits else {"cpu": settings.sidecar_cpu}
    kept = {key: value for key, value in given.items() if key not in ("limits", "requests")}
    return {**kept, "requests": requests, "limits": limits}


def _bytes(value: Any, kind: str) -> int:
    try:
        return parse_bytes(value)
    except ValueError as error:
        raise RenderError(f"spec.sidecar.resources.{kind}.memory", str(error)) from None


# ---- volumes ---------------------------------------------------------------------------------------------------


def volumes(job: Job, generation: int, sizes: Sizes, settings: Settings, *, chunks: int) -> list[dict[str, Any]]:
    """Ours in a training pod. `chunks`: ConfigMaps of the manifest."""
    name = job.metadata.name
    manifest = [{"configMap": {"name": names.manifest_name(name, number)}} for number in range(chunks)]
    return [
        {"name": c.RUN_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": format_bytes(sizes.tmpfs)}},
        {"name": c.PLAN_VOLUME, "configMap": {"name": names.plan_map_name(name, generation)}},
        {"name": c.MANIFEST_VOLUME, "projected": {"sources": manifest}},
        control_volume(job, settings),
        temp_volume(),
        *_cache_volume(job),
    ]


def control_volume(job: Job, settings: Settings) -> dict[str, Any]:
    """Who we are to the report service, and how we know it. Our containers alone mount it, whatever their user."""
    token = {"audience": settings.audience, "expirationSeconds": c.TOKEN_SECONDS, "path": c.TOKEN_FILE}
    trust = {"name": names.trust_name(job.metadata.name), "optional": True}
    return {
        "name": c.TOKEN_VOLUME,
        "projected": {"defaultMode": 0o444, "sources": [{"serviceAccountToken": token}, {"configMap": trust}]},
    }


def temp_volume() -> dict[str, Any]:
    """The root file system is read-only."""
    return {"name": c.TEMP_VOLUME, "emptyDir": {"sizeLimit": "64Mi"}}
