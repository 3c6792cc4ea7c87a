"""What the feed needs of others, as protocols: the engine that fills slots, and whoever keeps the job's commits."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lanefeed_core.lanes import Lanes
from lanefeed_core.layout import Column
from lanefeed_sidecar.pipeline.frames import FrameMeta

__all__ = ["FeedEngine"]


class FeedEngine(Protocol):
    """`pipeline.engine.Engine`, as the feed sees it. One thread fills for one rank; seeks come from any."""

    lanes: Lanes
    columns: tuple[Column, ...]
    slot_bytes: int
    total_steps: int
    ranks: range

    def start(self) -> None:
        """Start decoding."""

    def close(self) -> None:
        """Stop all threads; prompt, may be called again."""

    def seek(self, rank: int, step: int) -> None:
        """The rank's stream goes on at total step `step`."""

    def forget(self, rank: int) -> None:
        """Nothing is read ahead for the rank until it seeks again."""

    def fill(self, rank: int, step: int, slot: NDArray[np.uint8], *, cancelled: Callable[[], bool]) -> FrameMeta | None:
        """Assemble the frame that starts at total step `step`; None at the end or when cancelled."""

    def memory(self) -> dict[str, int]:
        """Bytes by use, and `open_windows`, a number."""
