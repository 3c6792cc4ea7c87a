"""One rank's life over a real arena, driven by hand, with or without a board. For unit tests of `feed.life`."""

import time
from pathlib import Path

import numpy as np

from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.slots import SlotState
from lanefeed_sidecar.arena import Arena
from lanefeed_sidecar.arena.board import Board
from lanefeed_sidecar.errors import SidecarError
from lanefeed_sidecar.feed.life import Life
from lanefeed_sidecar.pipeline.stats import Stats
from support.feed_engine import SmallEngine
from support.feed_pod import MANIFEST, Pod

__all__ = ["Rig", "wait"]


class Rig:
    """See the module. `slots`: those of the arena that are the rank's; `board`: set before the first life, or never."""

    def __init__(self, tmp_path: Path, slots: range, *, ranks: int = 0) -> None:
        self.pod = Pod(tmp_path, tmp_path)
        self.stats = Stats()
        self.engine = SmallEngine(self.pod.config, MANIFEST, self.stats)
        self.slots = slots
        self.arena = Arena(
            tmp_path / "arena",
            session="ab" * 16,
            slots=slots.stop,
            slot_bytes=self.engine.slot_bytes,
            plan_generation=1,
            ranks=ranks,
        )
        self.board: Board | None = None
        self.errors: list[SidecarError] = []
        self.lives: list[Life] = []

    def life(self, start: int = 0, held: tuple[int, ...] = (), resuming: bool = False) -> Life:
        """A new life, begun."""
        life = Life(
            0,
            start,
            from_state=False,
            resuming=resuming,
            slots=self.slots,
            held=held,
            arena=self.arena,
            engine=self.engine,
            stats=self.stats,
            on_error=lambda _life, error: self.errors.append(error),
            board=self.board,
        )
        self.lives.append(life)
        life.begin()
        return life

    def end(self, life: Life) -> None:
        """Close it and wait for its thread."""
        life.close()
        assert life.join(60)

    def close(self) -> None:
        """End all lives, and the arena."""
        for life in self.lives:
            self.end(life)
        self.arena.close()

    def ids(self, frame: pb.Frame) -> list[list[int]]:
        """Sample ids of each step of a frame, as they lie in the slot."""
        raw = self.arena.view(frame.slot)[frame.ids_offset :][: 8 * frame.steps * frame.rows]
        return raw.view(np.int64).reshape(frame.steps, frame.rows).tolist()


def wait(life: Life, state: SlotState, number: int) -> None:
    """Until so many slots are in that state."""
    end = time.monotonic() + 60
    while life.count(state) != number:
        assert time.monotonic() < end, f"{life.count(state)} slots are {state.name}, not {number}"
        time.sleep(0.002)
