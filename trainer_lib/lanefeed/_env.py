"""Reads what the control plane and torchrun have put into the environment (docs/protocol.md, Environment).

Called by `connect` and `open`. Arguments win over everything. In a pod of a job the data rank is made of the pod's
index and LOCAL_RANK: a sidecar serves its own pod's ranks only, and torchrun numbers nodes by the text of their host
names (pod 10 comes before pod 2). Where torchrun started another number of ranks than the plan has, or outside of a
job, RANK and WORLD_SIZE count.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from lanefeed._arguments import number, seconds
from lanefeed.errors import NotConnected, UsageError
from lanefeed_core import wire

__all__ = ["ATTACH_SECONDS", "ENV_ATTACH", "Place", "attach_seconds", "place", "run_dir"]

ENV_ATTACH = "LANEFEED_ATTACH_SECONDS"
#: torchrun's own name for the ranks of a node, where it does not say LOCAL_WORLD_SIZE.
ENV_NPROC = "PET_NPROC_PER_NODE"
#: How long a trainer waits for its sidecar.
ATTACH_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Place:
    """A data-parallel rank among `world`, and the ranks that share its machine."""

    rank: int
    world: int
    #: Ranks on this machine that were started together, and this one's number among them.
    local_world: int = 1
    local_rank: int = 0
    #: Number of the group of ranks that share a machine.
    pod: int = 0
    #: The processes started together have one parent that outlives them (torchrun).
    together: bool = False


def place(rank: int | None = None, world: int | None = None, env: Mapping[str, str] = os.environ) -> Place:
    """This process's rank. Raises UsageError where numbers are missing or do not fit together."""
    if (rank is None) != (world is None):
        raise UsageError(f"rank={rank} and world={world}: give both (dp_rank and dp_size) or neither")
    if rank is not None and world is not None:
        rank, world = number("rank", rank, 0), number("world", world, 1)
        return _checked(Place(rank, world, pod=rank), "the arguments rank and world")
    in_pod = _in_pod(env)
    if in_pod is not None:
        return _checked(in_pod, f"{wire.ENV_POD_INDEX} and LOCAL_RANK")
    if "RANK" in env and "WORLD_SIZE" in env:
        local_world = _number(env, "LOCAL_WORLD_SIZE", 1)
        rank = _number(env, "RANK")
        found = Place(
            rank=rank,
            world=_number(env, "WORLD_SIZE"),
            local_world=local_world,
            local_rank=_number(env, "LOCAL_RANK", 0),
            pod=_number(env, "GROUP_RANK", rank // max(1, local_world)),
            together=local_world > 1 or "TORCHELASTIC_RUN_ID" in env,
        )
        return _checked(found, "RANK and WORLD_SIZE")
    index, size = _number(env, wire.ENV_POD_INDEX, 0), _number(env, wire.ENV_WORLD, 1)
    return _checked(Place(index, size, pod=index), f"{wire.ENV_POD_INDEX} and {wire.ENV_WORLD}")


def _in_pod(env: Mapping[str, str]) -> Place | None:
    """The data rank by the pod's index; None outside of a job, and where torchrun's world is not the plan's."""
    if wire.ENV_POD_INDEX not in env or wire.ENV_WORLD not in env:
        return None
    index, world = _number(env, wire.ENV_POD_INDEX), _number(env, wire.ENV_WORLD)
    each = _number(env, "LOCAL_WORLD_SIZE", 0) or _number(env, ENV_NPROC, 1)
    if _number(env, "WORLD_SIZE", world) != world or each < 1 or world % each or index >= world // each:
        return None
    if each > 1 and "LOCAL_RANK" not in env:
        raise UsageError(
            f"this pod has {each} ranks and LOCAL_RANK is not set: start them with torchrun, or pass rank= and world="
        )
    local_rank = _number(env, "LOCAL_RANK", 0)
    together = each > 1 or "TORCHELASTIC_RUN_ID" in env
    return Place(index * each + local_rank, world, each, local_rank, pod=index, together=together)


def _checked(found: Place, what: str) -> Place:
    if not 0 <= found.rank < found.world:
        raise UsageError(
            f"rank {found.rank} of {found.world} ranks (from {what}): ranks run from 0 to {found.world - 1}; with "
            "several "
            "ranks in a pod start them with torchrun, or pass rank= and world="
        )
    return found


def _number(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = env.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise UsageError(f"{name} is {text!r}: it must be a whole number") from None


def run_dir(env: Mapping[str, str] = os.environ) -> str:
    """The run folder. Raises NotConnected where nobody has set one."""
    found = env.get(wire.ENV_RUN_DIR, "")
    if not found:
        raise NotConnected(
            f"{wire.ENV_RUN_DIR} is not set, so there is no sidecar to connect to: run this script through "
            "`lanefeed run job.yaml` or as a ShardedTrainingJob, or read files without either by "
            "lanefeed.open('data/*.parquet', global_batch_size=...)"
        )
    return found


def plan_generation(env: Mapping[str, str] = os.environ) -> int:
    """The plan generation that this process belongs to."""
    return _number(env, wire.ENV_PLAN_GENERATION, 0)


def attach_seconds(given: float | None, env: Mapping[str, str] = os.environ) -> float:
    """How long to wait for the sidecar: the argument, LANEFEED_ATTACH_SECONDS, or 120."""
    if given is not None:
        return seconds("attach_timeout", given)
    text = env.get(ENV_ATTACH, "")
    try:
        return seconds(ENV_ATTACH, float(text)) if text else ATTACH_SECONDS
    except ValueError:
        raise UsageError(f"{ENV_ATTACH} is {text!r}: it must be a number of seconds") from None
