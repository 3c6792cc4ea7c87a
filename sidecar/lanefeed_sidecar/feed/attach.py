"""What an attaching trainer must agree with, as pure checks in the order of docs/protocol.md. Called by the hub."""

import json
from typing import Protocol

from lanefeed_core import errors as core_errors
from lanefeed_core.cursor import SavedState
from lanefeed_core.lanes import Lanes
from lanefeed_core.podconfig import PodConfig
from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.wire import PROTOCOL_VERSION
from lanefeed_sidecar.errors import PlanMismatch, ProtocolMismatch, StateMismatch

__all__ = ["check_not_replaced", "check_place", "check_protocol", "how", "start_of"]


class Holder(Protocol):
    """What is asked of the life that holds a rank."""

    #: Its trainer's process.
    pid: int
    #: Whether that has a stream open.
    streaming: bool


def check_protocol(request: pb.AttachRequest) -> None:
    """Raise ProtocolMismatch where trainer and sidecar speak other versions."""
    if request.protocol != PROTOCOL_VERSION:
        raise ProtocolMismatch(
            f"the trainer's lanefeed {request.version or '(unknown version)'} speaks protocol {request.protocol} and "
            f"this sidecar {PROTOCOL_VERSION}: install the same Lanefeed version in both images"
        )


def check_place(request: pb.AttachRequest, config: PodConfig) -> None:
    """Raise PlanMismatch where rank, world or plan generation are not the plan's."""
    plan = config.plan
    if request.plan_generation != plan.generation:
        raise PlanMismatch(
            f"the trainer is of plan generation {request.plan_generation} and this pod of {plan.generation}: it was "
            "started for another topology; let it exit"
        )
    ranks = plan.ranks(config.pod_index)
    if request.world != plan.world:
        raise PlanMismatch(
            f"the trainer says that there are {request.world} data-parallel ranks and the plan has {plan.world} "
            f"({plan.replicas} replicas x {plan.ranks_per_replica} ranks each): start torchrun with --nnodes "
            f"{plan.replicas} --nproc-per-node {plan.ranks_per_replica}, or give rank and world to lanefeed.connect"
        )
    if request.rank not in ranks:
        raise PlanMismatch(
            f"rank {request.rank} is not in this pod: pod {config.pod_index} has "
            + (f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}")
            + "; ranks must follow the pod index (RANK = pod index x ranks per replica + LOCAL_RANK)"
        )


def check_not_replaced(request: pb.AttachRequest, session: str, life: Holder | None) -> None:
    """Raise PlanMismatch where a process wants its rank back from another one that streams as the same rank."""
    if life is not None and life.streaming and request.session == session and life.pid != request.pid:
        raise PlanMismatch(
            f"rank {request.rank} is process {life.pid} now, which attached after process {request.pid} did: only one "
            "process reads as one data-parallel rank. Of the ranks of a model-parallel group let one read and "
            "broadcast its batches to the others"
        )


def start_of(request: pb.AttachRequest, config: PodConfig, lanes: Lanes, digest: str) -> int:
    """Total step at which the rank's stream begins. Raises StateMismatch for a state that is not this job's."""
    if request.resuming:
        return int(request.resume_at)
    if not request.state_json:
        return 0
    try:
        state = SavedState.from_dict(json.loads(request.state_json))
        state.check(manifest=digest, spec=config.spec, steps_per_epoch=lanes.steps_per_epoch)
    except core_errors.CoreError as error:
        raise StateMismatch(str(error)) from None
    except ValueError as error:
        raise StateMismatch(f"the state is not JSON ({error}): load what state_dict() gave") from None
    return state.cursor.total_steps(lanes.steps_per_epoch)


def how(request: pb.AttachRequest) -> str:
    """Where the rank begins, for the log."""
    if request.resuming:
        return "same trainer, new session"
    return "from a checkpoint" if request.state_json else "without a state"
