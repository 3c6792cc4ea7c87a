"""The cluster as a person's command line reaches it: the kubeconfig's context and namespace, and pods' HTTP ports.

Called by `lanefeed status|plan|verify|top|scale`. The operator needs none of it, nor the right to it.
"""

import os
import time
from pathlib import Path
from urllib.parse import quote

import yaml
from kubernetes.config import ConfigException
from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger

from lanefeed_operator.kube.api import ApiError
from lanefeed_operator.kube.client import Client, configuration

__all__ = ["UserClient", "connect_user"]

POD_SECONDS = 5.0
KUBECONFIG = "~/.kube/config"


class UserClient(Client):
    """A Client that can also read a pod's HTTP port through the API server."""

    def pod_text(self, namespace: str, pod: str, port: int, path: str) -> str:
        """GET `path` of a pod; needs `get` on pods/proxy. Raises Forbidden, NotFound, Unreachable."""
        where = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}:{port}/proxy/{path.lstrip('/')}"
        deadline = time.monotonic() + POD_SECONDS
        return self._text("get", "GET", f"{self._host}{where}", None, "", deadline).decode(errors="replace")


def connect_user(context: str | None = None) -> tuple[UserClient, str, str]:
    """(client, the context's namespace, the context's name). Raises ApiError where there is no cluster to ask.

    As kubectl does, and other than the operator: the kubeconfig counts also in a pod, whose own cluster is asked only
    where there is none. All three are of the same source.
    """
    files = os.environ.get("KUBECONFIG") or KUBECONFIG
    there = any(Path(file).expanduser().exists() for file in files.split(os.pathsep) if file)
    if not there and context is None:
        # In a pod: its own namespace is not asked for.
        return UserClient(configuration(None, None, 4)), "default", "this cluster"
    name, namespace = _context(files, context)
    return UserClient(configuration(files, name, 4)), namespace, f"context {name}"


def _context(files: str, name: str | None) -> tuple[str, str]:
    """(name, namespace) of the kubeconfig's context `name`, of its current one if None. Raises ApiError."""
    try:
        merged = KubeConfigMerger(files).config
        if merged is None:
            raise ApiError(f"no cluster: there is no kubeconfig at {files}, so no context {name}; set KUBECONFIG")
        found = KubeConfigLoader(merged, active_context=name).current_context
    except (ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, AttributeError) as error:
        # The package takes any YAML for a kubeconfig, and trips over it.
        why = " ".join(str(error).split())
        raise ApiError(
            f"no cluster: the kubeconfig {files} cannot be used: {why}; mend it, or set KUBECONFIG"
        ) from None
    return str(found["name"]), str(found["context"].get("namespace") or "default")
