"""The data plane of one pod: positions of its ranks in, frames out.

The feed calls `seek` when a rank attaches and `fill` from one thread a rank. Everything else happens in decode threads.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lanefeed_core.lanes import Lanes
from lanefeed_core.layout import Column
from lanefeed_core.manifest import Manifest
from lanefeed_core.podconfig import PodConfig
from lanefeed_sidecar import formats
from lanefeed_sidecar.pipeline.frames import FrameMeta
from lanefeed_sidecar.pipeline.stats import Stats

__all__ = ["Engine"]

OpenShard = Callable[[Manifest, int, tuple[Column, ...]], formats.ShardReader]


class Engine:
    """Decodes, shuffles and batches for the ranks of one pod."""

    lanes: Lanes
    columns: tuple[Column, ...]
    #: Bytes of a slot: config.slot_bytes, or chosen from the row sizes.
    slot_bytes: int
    #: Total steps at which the stream ends; 0: never.
    total_steps: int
    ranks: range

    def __init__(
        self, config: PodConfig, manifest: Manifest, *, stats: Stats, open_shard: OpenShard = formats.open_shard
    ) -> None:
        """Check sizes and budget. Raises ConfigError."""
        raise NotImplementedError

    def start(self) -> None:
        """Start decoding."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop all threads; prompt, may be called again."""
        raise NotImplementedError

    def seek(self, rank: int, step: int) -> None:
        """The rank's stream goes on at total step `step`."""
        raise NotImplementedError

    def fill(
        self, rank: int, step: int, slot: NDArray[np.uint8], *, cancelled: Callable[[], bool]
    ) -> FrameMeta | None:
        """Assemble the frame that starts at total step `step`; None at the end or when cancelled."""
        raise NotImplementedError

    def memory(self) -> dict[str, int]:
        """Bytes by use."""
        raise NotImplementedError
