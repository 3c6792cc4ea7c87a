"""The pod security standard `restricted`, written from its text: what breaks it in a pod's spec."""

from typing import Any

__all__ = ["breaks"]

_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def breaks(pod: dict[str, Any]) -> list[str]:
    """Every reason for which the API server would refuse the pod."""
    found = [f"{key} is set" for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key)]
    for volume in pod.get("volumes", []):
        found += [f"volume {volume['name']} is {kind}" for kind in volume.keys() - {"name"} - _VOLUMES]
    whole = pod.get("securityContext", {})
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        own, name = container.get("securityContext", {}), container["name"]
        both = {**whole, **own}
        if own.get("privileged") or own.get("allowPrivilegeEscalation") is not False:
            found.append(f"{name} may gain privileges")
        capabilities = own.get("capabilities", {})
        if capabilities.get("drop") != ["ALL"] or set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
            found.append(f"{name} has capabilities")
        if both.get("runAsNonRoot") is not True or both.get("runAsUser") == 0:
            found.append(f"{name} may run as root")
        if both.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            found.append(f"{name} has no seccomp profile")
        found += [f"{name} has a host port" for port in container.get("ports", []) if port.get("hostPort")]
    return found
