"""What a frame in a slot is: its description for the trainer, and where its blocks lie.

Called by `assemble`, which fills slots, and by the feed, which sends the description. `lanefeed_core.layout` has the
rules.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Block", "EpochSum", "FrameMeta"]


class Block(NamedTuple):
    """One column of a frame: offsets from the slot's start, as in lanefeed.proto; 0: not there."""

    values: int
    offsets: int = 0
    validity: int = 0
    #: Ragged: element index at which each step's values begin and, last, the end: K + 1 numbers.
    starts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EpochSum:
    """Continuous: the samples of one epoch in step `step` of the frame, and their ledger sum."""

    step: int
    epoch: int
    count: int
    total: int


@dataclass(frozen=True, slots=True)
class FrameMeta:
    """The proto's Frame without slot and sequence; see lanefeed.proto for each field."""

    first_step: int
    epoch: int
    steps: int
    rows: int
    samples: int
    global_samples: int
    blocks: tuple[Block, ...]
    ids_offset: int
    mask_offset: int = 0
    #: Ledger sum of each step; empty where `epoch_sums` replaces it.
    sums: tuple[int, ...] = ()
    epoch_sums: tuple[EpochSum, ...] = field(default=())
