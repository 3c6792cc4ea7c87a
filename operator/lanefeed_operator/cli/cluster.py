"""A job in a cluster, as the commands see it: through the user's kubeconfig, with the user's rights.

The Kubernetes client is loaded when a cluster is really asked; `lanefeed run` on a laptop does without it.
"""

import base64
from collections.abc import Mapping
from typing import Any, Protocol

import yaml
from pydantic import ValidationError

from lanefeed_core import manifest_codec
from lanefeed_core.errors import ManifestError
from lanefeed_core.manifest import Manifest
from lanefeed_operator.api.spec import Job
from lanefeed_operator.errors import OperatorError
from lanefeed_operator.kube.api import CONFIG_MAPS, PODS, STJS, ApiError, Forbidden, KubeApi, NotFound, Object
from lanefeed_operator.local.errors import UnknownJob
from lanefeed_operator.render import constants as c

__all__ = ["ClusterApi", "ClusterPlace", "ClusterUnavailable", "connect", "job_of", "jobs"]


class ClusterUnavailable(OperatorError):
    """No cluster can be asked: no kubeconfig, no client library, nobody answers."""


class ClusterApi(KubeApi, Protocol):
    """KubeApi, and a way to a pod's HTTP port through the API server."""

    def pod_text(self, namespace: str, pod: str, port: int, path: str) -> str:
        """GET `path` of the pod by the API server's proxy (the user needs `get` on pods/proxy)."""


def connect(context: str | None) -> tuple[ClusterApi, str, str]:
    """(client, the context's namespace, what the cluster is called). Raises ClusterUnavailable."""
    try:
        from lanefeed_operator.kube.user import connect_user
    except ImportError as error:
        raise ClusterUnavailable(
            f"to ask a cluster, install lanefeed with its extra `cluster` ({error.name} is missing)"
        ) from None
    try:
        return connect_user(context)
    except ApiError as error:
        raise ClusterUnavailable(str(error)) from None


class ClusterPlace:
    """A ShardedTrainingJob in a namespace."""

    def __init__(self, api: ClusterApi, namespace: str, name: str, cluster: str) -> None:
        """`cluster`: what people call it."""
        self._api, self._namespace, self._name, self._cluster = api, namespace, name, cluster

    @property
    def name(self) -> str:
        """See Place."""
        return self._name

    def _object(self) -> Object:
        try:
            return self._api.get(STJS, self._namespace, self._name)
        except NotFound as error:
            known = _names(self._api, self._namespace)
            raise UnknownJob(
                f"there is no ShardedTrainingJob {self._name!r} in namespace {self._namespace} of {self._cluster} "
                f"({known or error}); another namespace is named with -n"
            ) from None

    def job(self) -> Job:
        """See Place."""
        return job_of(self._object())

    def text(self) -> str:
        """See Place."""
        found = self._object()
        found["metadata"].pop("managedFields", None)
        return yaml.safe_dump(found, sort_keys=False)

    def manifest(self) -> Manifest:
        """See Place."""
        wanted = f"{c.JOB_LABEL}={self._name},{c.ROLE_LABEL}=manifest"
        uid = self._object()["metadata"]["uid"]
        maps = self._api.list(CONFIG_MAPS, self._namespace, labels=wanted)
        chunks: dict[str, str] = {}
        for found in maps:
            if found["metadata"].get("annotations", {}).get(c.UID_ANNOTATION) == uid:
                chunks |= found.get("binaryData") or {}
        if not chunks:
            raise OperatorError(
                f"job {self._name} has no manifest yet: `kubectl describe stj {self._name}` says what it waits for"
            )
        try:
            return manifest_codec.decode(b"".join(base64.b64decode(chunks[key]) for key in sorted(chunks)))
        except (ManifestError, ValueError) as error:
            raise OperatorError(
                f"the manifest of job {self._name} in ConfigMaps {', '.join(_name(m) for m in maps)} cannot be read: "
                f"{error}; were they changed by hand?"
            ) from None

    def facts(self) -> list[tuple[str, str]]:
        """See Place."""
        return [("cluster", f"{self._cluster}, namespace {self._namespace}")]

    def metrics(self) -> Mapping[int, str]:
        """See Place."""
        generation = str((self._object().get("status") or {}).get("planGeneration", 0))
        labels = f"{c.JOB_LABEL}={self._name},{c.ROLE_LABEL}=pods,{c.PLAN_LABEL}={generation}"
        found: dict[int, str] = {}
        for pod in self._api.list(PODS, self._namespace, labels=labels):
            index = pod["metadata"].get("annotations", {}).get(c.INDEX_LABEL)
            if index is None or (pod.get("status") or {}).get("phase") != "Running":
                continue
            try:
                found[int(index)] = self._api.pod_text(self._namespace, _name(pod), _port(pod), "metrics")
            except Forbidden as error:
                raise OperatorError(
                    f"the pods' metrics cannot be read: {error}; you need `get` on pods/proxy in namespace "
                    f"{self._namespace}, or look at Prometheus"
                ) from None
            except ApiError:
                # It is starting or ending: shown as a pod that did not answer.
                continue
        return found

    def scale(self, replicas: int) -> str:
        """See Place."""
        self._api.patch(STJS, self._namespace, self._name, {"spec": {"replicas": replicas}}, subresource="scale")
        return "the operator resizes it"

    @property
    def again(self) -> str:
        """See Place."""
        return "a failed job goes on with another spec.restartToken; deleted and applied again it begins anew"


def _port(pod: Object) -> int:
    """The sidecar's metrics port, by its name."""
    for container in pod["spec"].get("initContainers") or ():
        for port in container.get("ports") or ():
            if port.get("name") == c.METRICS_PORT_NAME:
                return int(port["containerPort"])
    return c.METRICS_PORT


def _name(found: Object) -> str:
    return str(found["metadata"]["name"])


def _names(api: KubeApi, namespace: str) -> str:
    names = sorted(_name(found) for found in api.list(STJS, namespace))
    return f"known there: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}" if names else "it has none"


def jobs(api: KubeApi, namespace: str) -> list[Job]:
    """All jobs of a namespace, or of all ("")."""
    return [job_of(found) for found in api.list(STJS, namespace)]


def job_of(found: Mapping[str, Any]) -> Job:
    """The API server's object as a job; it has checked it."""
    try:
        return Job.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise OperatorError(
            f"job {_name(dict(found))} is not readable by this version of lanefeed: {where}: {first['msg']}; use the "
            "version of the operator"
        ) from None
