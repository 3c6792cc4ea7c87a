"""What a frame in a slot is: its description for the trainer, and where its blocks lie.

Called by `assemble`, which fills slots, and by the feed, which sends the description. `lanefeed_core.layout` has the rules.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lanefeed_core.layout import SLOT_HEADER_BYTES, Column, aligned

__all__ = ["Block", "EpochSum", "FrameMeta", "Layout", "lay_out"]


@dataclass(frozen=True, slots=True)
class Block:
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


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the blocks of a frame lie. `total` is the first byte after it."""

    ids: int
    mask: int
    blocks: tuple[Block, ...]
    total: int


def lay_out(
    columns: Sequence[Column], rows: int, steps: int, *, mask: bool, starts: Sequence[Sequence[int]] = ()
) -> Layout:
    """Blocks of a frame of `steps` x `rows`; `starts` holds, for each ragged column in order, its K + 1 element starts."""
    ids = at = SLOT_HEADER_BYTES
    at += aligned(8 * rows * steps)
    mask_at = at if mask else 0
    at += aligned(rows * steps) if mask else 0
    blocks = []
    ragged = iter(starts)
    for column in columns:
        offsets = validity = 0
        begins: tuple[int, ...] = ()
        if column.ragged:
            offsets = at
            at += aligned(8 * (rows + 1) * steps)
            begins = tuple(next(ragged))
        if column.nullable:
            validity = at
            at += aligned(rows * steps)
        values = at
        at += aligned(column.itemsize * begins[-1] if column.ragged else column.row_bytes * rows * steps)
        blocks.append(Block(values, offsets, validity, begins))
    return Layout(ids, mask_at, tuple(blocks), at)
