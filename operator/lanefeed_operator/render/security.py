"""Security contexts that pass the pod security standard `restricted`, as defaults: what a user wrote stays.

Trainer and sidecar share a supplementary group, so that a trainer of any user can open the arena. It is not an fsGroup:
the kubelet would give every file of the user's volumes to that group.
"""

from collections.abc import Mapping
from typing import Any

from lanefeed_operator.render.settings import Settings

__all__ = ["container_context", "own_context", "pod_context"]

ROOT = 0


def pod_context(user: Mapping[str, Any] | None, settings: Settings) -> dict[str, Any]:
    """The pod's."""
    found = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}, **(user or {})}
    if found.get("runAsUser") == ROOT and "runAsNonRoot" not in (user or {}):
        # Who asks for root has said it: the default would only make the pod fail.
        found["runAsNonRoot"] = False
    if settings.shared_group is not None:
        groups = found.get("supplementalGroups") or []
        found["supplementalGroups"] = [*groups, *({settings.shared_group} - set(groups))]
    return found


def container_context(user: Mapping[str, Any] | None) -> dict[str, Any]:
    """A container of the user's."""
    if user and user.get("privileged"):
        # Escalation cannot be forbidden to it.
        return dict(user)
    found = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, **(user or {})}
    if found.get("runAsUser") == ROOT:
        found.setdefault("runAsNonRoot", False)
    return found


def own_context(
    settings: Settings, *, trainer: Mapping[str, Any] | None = None, pod: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The sidecar's and the indexer's: not root, and nothing to write to but what is mounted for that.

    Their user is the trainer's where the job names one that is not root: what it may read, they may read.
    """
    found: dict[str, Any] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    named = (trainer or {}).get("runAsUser", (pod or {}).get("runAsUser"))
    user = named or settings.sidecar_user
    if user is not None:
        found["runAsUser"] = user
    if settings.shared_group is not None:
        found["runAsGroup"] = settings.shared_group
    return found
