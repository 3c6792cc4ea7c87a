"""What a pod's trainer is told: its command and environment, as a cluster's kubelet and the operator would set them.

torchrun reads `PET_*`, so `torchrun train.py` needs no options and works across pods. On one machine each pod gets an
address of its own in 127/8, written so that the order of texts is the order of pod indexes: torchrun ranks nodes by
address, and with it RANK is pod index x ranksPerReplica + LOCAL_RANK after every restart.
"""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from lanefeed_core.wire import ENV_JOB, ENV_PLAN_GENERATION, ENV_POD_INDEX, ENV_RUN_DIR, ENV_WORLD
from lanefeed_operator.api.rules import reaches_data
from lanefeed_operator.api.spec import Container, Job
from lanefeed_operator.local.errors import LocalError

__all__ = ["data_env", "pod_address", "trainer_command", "trainer_env"]

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")


def pod_address(index: int) -> str:
    """127.1.x.y with x and y of three digits: sorted as text they are sorted by index."""
    high, low = divmod(index, 100)
    if high > 99:
        raise LocalError(f"pod index {index} is too high for one machine: use at most 10,000 replicas")
    return f"127.1.{100 + high}.{100 + low}"


def expand(text: str, env: Mapping[str, str]) -> str:
    """`$(NAME)` as Kubernetes expands it: unknown names stay, `$$` is a dollar."""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        return "$" if name is None else env.get(name, match[0])

    return _REFERENCE.sub(value, text)


def torch_env(job: Job, *, uid: str, generation: int, index: int, replicas: int, port: int) -> dict[str, str]:
    """The variables of torchrun, and MASTER_ADDR's for scripts that do without it."""
    head = pod_address(0)
    host = str(index == 0).lower()
    return {
        "PET_NNODES": str(replicas),
        "PET_NODE_RANK": str(index),
        "PET_NPROC_PER_NODE": str(job.spec.ranks_per_replica),
        "PET_MASTER_ADDR": head,
        "PET_MASTER_PORT": str(port),
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"{head}:{port}",
        "PET_RDZV_ID": f"{uid}-{generation}",
        # Pod 0 keeps the store (guessed from addresses, every pod of one machine would try to); a node that
        # died is given up after 4 s, not 15, since its replacement cannot join before.
        "PET_RDZV_CONF": f"is_host={host},keep_alive_interval=1,keep_alive_max_attempt=4",
        "PET_LOCAL_ADDR": pod_address(index),
        "PET_MAX_RESTARTS": str(job.spec.max_restarts),
        # A new store for every round: ranks of one round must not meet the keys of another.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }


def trainer_env(
    job: Job, *, uid: str, generation: int, index: int, replicas: int, port: int, run_dir: Path
) -> dict[str, str]:
    """What is added to the environment of the trainer: the operator's variables win over the template's."""
    env = {
        # The machine's own name may lead nowhere, and all pods are here.
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONUNBUFFERED": "1",
    }
    env = {key: value for key, value in env.items() if key not in os.environ}
    # `python` and `torchrun` are those of the environment that `lanefeed` was installed in.
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    env = _written(job, env)
    own = {
        ENV_RUN_DIR: str(run_dir),
        ENV_JOB: job.metadata.name,
        ENV_PLAN_GENERATION: str(generation),
        ENV_POD_INDEX: str(index),
        ENV_WORLD: str(replicas * job.spec.ranks_per_replica),
    }
    torch = torch_env(job, uid=uid, generation=generation, index=index, replicas=replicas, port=port)
    return env | own | torch


def data_env(job: Job) -> dict[str, str]:
    """What sidecar and indexer get of the template's variables, as in a cluster: how stores are reached."""
    return {key: value for key, value in _written(job, {}).items() if reaches_data(key)}


def _written(job: Job, env: Mapping[str, str]) -> dict[str, str]:
    """`env` and the template's variables; what comes from a Secret is left to the environment that `lanefeed` has."""
    found = dict(env)
    for item in job.spec.template.trainer.env:
        if "valueFrom" not in (item.model_extra or {}):
            found[item.name] = expand(item.value or "", found)
    return found


def trainer_command(container: Container, env: Mapping[str, str]) -> list[str]:
    """command + args. Raises LocalError where there is none: here is no image whose entrypoint could be run."""
    if not container.command:
        raise LocalError(
            "container trainer has no command, and locally there is no image to take one from: set "
            "spec.template.spec.containers[].command, such as [torchrun, train.py]"
        )
    return [expand(part, env) for part in (*container.command, *container.args)]
