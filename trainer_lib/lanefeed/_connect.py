"""`lanefeed.connect()`: a loader on the sidecar that the operator or the local runner has started."""

from pathlib import Path
from typing import TYPE_CHECKING

from lanefeed import _env
from lanefeed._arguments import folder, seconds
from lanefeed._client.client import GrpcFeed, Target
from lanefeed._loader import Loader
from lanefeed._make import STALL_SECONDS, copier_for, make_loader, register_with, wrapper

if TYPE_CHECKING:
    from lanefeed._device.copier import Device

__all__ = ["connect"]


def connect(
    *,
    device: "str | Device | None" = None,
    tensors: str | None = None,
    rank: int | None = None,
    world: int | None = None,
    lookahead: str = "auto",
    attach_timeout: float | None = None,
    stall_timeout: float = STALL_SECONDS,
    run_dir: str | None = None,
    plan_generation: int | None = None,
) -> Loader:
    """A loader on this pod's sidecar; everything comes from the environment (docs/protocol.md).

    Args:
        device: where batches lie: None or "cpu" (views of shared memory), or "cuda:N" (copied one frame ahead).
        tensors: "torch", "numpy", or None for torch if it is installed.
        rank, world: data-parallel rank and size, where ranks are not all data-parallel. One process reads as one
            rank: of a model-parallel group one connects, and broadcasts its batches to the others.
        lookahead: how batches count as consumed: "auto" notices wrappers that read ahead, "off" counts what was
            yielded, "manual" what `mark_consumed` says.
        attach_timeout: seconds to wait for the sidecar (LANEFEED_ATTACH_SECONDS, 120).
        stall_timeout: seconds that a silent sidecar is waited for while the trainer needs a batch.
        run_dir, plan_generation: instead of LANEFEED_RUN_DIR and LANEFEED_PLAN_GENERATION.

    Does no I/O: the sidecar is looked for when something is asked of the loader. Raises NotConnected outside a job,
    UsageError for arguments or an environment that do not fit together.
    """
    place = _env.place(rank, world)
    wrap = wrapper(tensors)
    copier = copier_for(device, wrap)
    target = Target(
        run_dir=Path(folder("run_dir", run_dir) if run_dir else _env.run_dir()),
        rank=place.rank,
        world=place.world,
        plan_generation=_env.plan_generation() if plan_generation is None else plan_generation,
        attach_seconds=_env.attach_seconds(attach_timeout),
    )
    feed = GrpcFeed(target, register_with(copier))
    return make_loader(
        feed,
        rank=place.rank,
        world=place.world,
        wrap=wrap,
        copier=copier,
        stall_seconds=seconds("stall_timeout", stall_timeout),
        lookahead=lookahead,
    )
