"""What a sidecar or an indexer learns from its container's environment: that it is in a cluster, and as whom.

The operator writes one configuration for all pods of a plan; index and UID are each pod's own and come from the
downward API. Called by `main`, the supervisor and the indexer. Names: lanefeed_core.wire.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from lanefeed_core import wire
from lanefeed_core.podconfig import PodConfig
from lanefeed_sidecar.errors import ConfigError

__all__ = ["complete", "control_dir", "flush_seconds", "in_cluster", "termination_log"]

TERMINATION_LOG = "/dev/termination-log"


def in_cluster(env: Mapping[str, str] = os.environ) -> bool:
    """Whether a kubelet runs this process: it restarts containers, and shows a pod's status to the operator."""
    return bool(env.get(wire.ENV_POD_UID))


def complete(config: PodConfig, env: Mapping[str, str] = os.environ) -> PodConfig:
    """The configuration with this pod's own index and UID. Raises ConfigError where they are not known."""
    changes: dict[str, object] = {}
    if config.pod_index < 0:
        changes["pod_index"] = _index(env, config.plan.replicas)
    if not config.pod_uid:
        changes["pod_uid"] = env.get(wire.ENV_POD_UID, "")
        if not changes["pod_uid"]:
            raise ConfigError(
                f"the configuration leaves pod_uid open and {wire.ENV_POD_UID} is not set: set it from the field "
                "metadata.uid (downward API)"
            )
    return replace(config, **changes) if changes else config  # type: ignore[arg-type]


def _index(env: Mapping[str, str], replicas: int) -> int:
    text = env.get(wire.ENV_POD_INDEX, "")
    try:
        index = int(text)
    except ValueError:
        raise ConfigError(
            f"the configuration leaves pod_index open and {wire.ENV_POD_INDEX} is {text!r}: set it from the annotation "
            "batch.kubernetes.io/job-completion-index (downward API)"
        ) from None
    if not 0 <= index < replicas:
        raise ConfigError(
            f"{wire.ENV_POD_INDEX} is {index} and the plan has {replicas} pods: this pod is of another plan; delete it"
        )
    return index


def control_dir(token_path: str, env: Mapping[str, str] = os.environ) -> Path | None:
    """The folder with the report service's CA: beside the token where the environment names none."""
    named = env.get(wire.ENV_CONTROL_DIR, "")
    if named:
        return Path(named)
    return Path(token_path).parent if token_path else None


def flush_seconds(default: float, env: Mapping[str, str] = os.environ) -> float:
    """How long a sidecar that is told to end may hand over commits. Raises ConfigError for what is no number."""
    text = env.get(wire.ENV_FLUSH, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise ConfigError(f"{wire.ENV_FLUSH} is {text!r}: it must be a number of seconds from 0 to 3600")
    return seconds


def termination_log(env: Mapping[str, str] = os.environ) -> Path | None:
    """Where the kubelet reads last words; None outside of a cluster. The kubelet makes the file, nobody else."""
    if not in_cluster(env):
        return None
    path = Path(env.get(wire.ENV_TERMINATION_LOG) or TERMINATION_LOG)
    return path if path.is_file() else None
