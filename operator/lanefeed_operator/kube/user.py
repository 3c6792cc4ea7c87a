"""The cluster as a person's command line reaches it: the kubeconfig's context and namespace, and pods' HTTP ports.

Called by `lanefeed status|plan|verify|top|scale`. The operator needs none of it, nor the right to it.
"""

import time
from urllib.parse import quote

from kubernetes import config

from lanefeed_operator.kube.client import Client, configuration

__all__ = ["UserClient", "connect_user"]

POD_SECONDS = 5.0


class UserClient(Client):
    """A Client that can also read a pod's HTTP port through the API server."""

    def pod_text(self, namespace: str, pod: str, port: int, path: str) -> str:
        """GET `path` of a pod; needs `get` on pods/proxy. Raises Forbidden, NotFound, Unreachable."""
        where = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}:{port}/proxy/{path.lstrip('/')}"
        deadline = time.monotonic() + POD_SECONDS
        return self._text("get", "GET", f"{self._host}{where}", None, "", deadline).decode(errors="replace")


def connect_user(context: str | None = None) -> tuple[UserClient, str, str]:
    """(client, the context's namespace, the context's name). Raises ApiError where there is no cluster to ask."""
    client = UserClient(configuration(None, context, 4))
    try:
        contexts, active = config.list_kube_config_contexts()
    except config.ConfigException:
        # In a pod: its own namespace is not asked for.
        return client, "default", "this cluster"
    named = [c for c in contexts if c["name"] == context] if context else []
    chosen = named[0] if named else active
    return client, str(chosen["context"].get("namespace") or "default"), f"context {chosen['name']}"
