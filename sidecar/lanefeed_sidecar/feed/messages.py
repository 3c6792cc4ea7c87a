"""Protobuf messages of the feed, built in one place: off the stream's handler, once per frame."""

from lanefeed_core.lanes import Lanes
from lanefeed_core.podconfig import PodConfig
from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.slices import rank_slice
from lanefeed_core.wire import StreamInfo
from lanefeed_sidecar.errors import SidecarError
from lanefeed_sidecar.feed.seams import FeedEngine
from lanefeed_sidecar.pipeline.frames import FrameMeta

__all__ = ["MAX_TEXT", "failure_message", "frame_message", "stream_info"]

#: gRPC puts a status text into headers, which have a bound.
MAX_TEXT = 4000


def frame_message(meta: FrameMeta, slot: int, sequence: int) -> pb.Frame:
    """The frame's signal."""
    frame = pb.Frame(
        slot=slot,
        sequence=sequence,
        first_step=meta.first_step,
        steps=meta.steps,
        rows=meta.rows,
        ids_offset=meta.ids_offset,
        mask_offset=meta.mask_offset,
        sums=meta.sums,
        samples=meta.samples,
        epoch=meta.epoch,
        global_samples=meta.global_samples,
    )
    for b in meta.blocks:
        # Each field that is named costs half a microsecond, also where it is what it would be anyway.
        if b.offsets or b.validity:
            frame.blocks.add(values=b.values, offsets=b.offsets, validity=b.validity, starts=b.starts)
        else:
            frame.blocks.add(values=b.values)
    for s in meta.epoch_sums:
        frame.epoch_sums.add(step=s.step, epoch=s.epoch, count=s.count, total=s.total)
    return frame


def failure_message(error: SidecarError) -> pb.Failure:
    """The error for the trainer and the control plane."""
    return pb.Failure(kind=error.kind, message=str(error)[:MAX_TEXT], retryable=error.retryable)


def stream_info(config: PodConfig, engine: FeedEngine, digest: str, rank: int) -> StreamInfo:
    """What the rank must know of its stream."""
    lanes: Lanes = engine.lanes
    low, high = rank_slice(config.spec.global_batch_size, config.plan.world, rank)
    return StreamInfo(
        job=config.job,
        manifest=digest,
        rows=lanes.rows,
        spec=config.spec,
        columns=tuple(engine.columns),
        steps_per_epoch=lanes.steps_per_epoch,
        epochs=config.epochs,
        max_steps=config.max_steps,
        rank_batch=high - low,
        plan_generation=config.plan.generation,
    )
