"""The data plane: decodes row groups in the order of need, shuffles them into windows and assembles frames.

The feed sees `engine.Engine`, `frames.FrameMeta` and `stats.Stats` only.
"""

from lanefeed_sidecar.pipeline.engine import Engine
from lanefeed_sidecar.pipeline.frames import Block, EpochSum, FrameMeta
from lanefeed_sidecar.pipeline.stats import Stats

__all__ = ["Block", "Engine", "EpochSum", "FrameMeta", "Stats"]
