"""Environment of the trainer: Lanefeed's variables and torchrun's `PET_*`, so that `torchrun train.py` is enough.

torchrun ranks nodes by the text of PET_LOCAL_ADDR. Host names have no leading zeros, so from eleven pods on RANK is not
pod index x ranksPerReplica + LOCAL_RANK. A data rank must be made of those, since a sidecar serves its own ranks only.
"""

import re
from collections.abc import Mapping
from typing import Any

from lanefeed_core.plan import Plan
from lanefeed_core.wire import ENV_JOB, ENV_PLAN_GENERATION, ENV_POD_INDEX, ENV_POD_UID, ENV_RUN_DIR, ENV_WORLD
from lanefeed_operator.api.rules import reaches_data, reserved
from lanefeed_operator.api.spec import Job
from lanefeed_operator.render import constants as c
from lanefeed_operator.render import names
from lanefeed_operator.render.settings import Settings

__all__ = ["data_variables", "index_variable", "trainer_variables", "uid_variable"]

#: `$(NAME)` in a value; `$$` is a dollar.
_REFERENCE = re.compile(r"\$\$|\$\(([^)]+)\)")


def index_variable(name: str) -> dict[str, Any]:
    """The pod's index. The annotation, not the label: it is there in every supported Kubernetes."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{c.INDEX_LABEL}']"}}}


def uid_variable() -> dict[str, Any]:
    """The pod's UID: reports are accepted from the living pod of an index only."""
    return {"name": ENV_POD_UID, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}


def trainer_variables(job: Job, plan: Plan, settings: Settings) -> list[dict[str, Any]]:
    """In this order: later ones refer to earlier ones by $(NAME)."""
    name, generation = job.metadata.name, plan.generation
    head = names.pod_host(name, generation, job.metadata.namespace, 0)
    port = settings.rendezvous_port
    plain = {
        ENV_RUN_DIR: c.RUN_PATH,
        ENV_JOB: name,
        ENV_PLAN_GENERATION: str(generation),
        ENV_WORLD: str(plan.world),
        "PET_NNODES": str(plan.replicas),
        "PET_NPROC_PER_NODE": str(plan.ranks_per_replica),
        "PET_MASTER_ADDR": head,
        "PET_MASTER_PORT": str(port),
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"{head}:{port}",
        # With the plan generation in id and host no agent of an old plan can join.
        "PET_RDZV_ID": f"{job.metadata.uid}-{generation}",
        # A node that died is given up after 4 s, not 15: its replacement cannot join before.
        "PET_RDZV_CONF": "keep_alive_interval=1,keep_alive_max_attempt=4",
        "PET_LOCAL_ADDR": names.pod_host(name, generation, job.metadata.namespace, f"$({ENV_POD_INDEX})"),
        "PET_MAX_RESTARTS": str(job.spec.max_restarts),
        # A new store for every round: ranks of one round must not meet the keys of another.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    fixed = [{"name": key, "value": value} for key, value in plain.items()]
    return [index_variable(ENV_POD_INDEX), index_variable("PET_NODE_RANK"), *fixed]


def data_variables(trainer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What sidecar and indexer get of the trainer's environment: how stores are reached, and with which keys.

    As written (a key stays a reference to its Secret), in the trainer's order, with what values refer to by $(NAME).
    """
    written = [item for item in trainer.get("env") or () if not reserved(item["name"])]
    values = {item["name"]: str(item.get("value") or "") for item in written}
    wanted: set[str] = set()
    left = [name for name in values if reaches_data(name)]
    while left:
        name = left.pop()
        if name not in wanted:
            wanted.add(name)
            left += [other for other in _REFERENCE.findall(values[name]) if other in values]
    return [item for item in written if item["name"] in wanted]
