"""How a frame lies in a slot: shared by the sidecar, which writes it, and the trainer, which maps it.

A frame holds K consecutive steps of one rank, R rows each. Each column is one 64-byte aligned block: `[K, R, *shape]`
for fixed shapes; for ragged columns, values of all rows end to end plus int64 offsets `[K, R + 1]`, zero-based in
each step so that a step's offsets are a view. Sample ids `[K, R]` come with every frame, validity bytes `[K, R]` for
columns with nulls, a mask `[K, R]` where the step is padded.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lanefeed_core.errors import LayoutError

__all__ = [
    "ALIGN",
    "HEADER_BYTES",
    "MAGIC",
    "SLOT_HEADER_BYTES",
    "VERSION",
    "Column",
    "aligned",
    "check_batch_fits",
    "column_runs",
    "fixed_frame_bytes",
]

#: First bytes of the arena file, and the version of everything in this module.
MAGIC = b"LANEFEED"
VERSION = 1
#: The arena begins with this header (magic, u32 version, u32 slots, u64 slot bytes, u64 plan generation, 16 bytes
#: session); slot s begins at HEADER_BYTES + s * slot bytes.
HEADER_BYTES = 4096
#: A slot begins with u64 state (slots.SlotState), u64 sequence number, u64 first total step; blocks follow.
SLOT_HEADER_BYTES = 64
ALIGN = 64

FIXED = "fixed"
RAGGED = "ragged"


@dataclass(frozen=True, slots=True)
class Column:
    """One column as delivered.

    dtype: NumPy name of the elements ("uint8" for strings and binary). shape: of one row, () for scalars; always ()
    for ragged. kind: "fixed" or "ragged". logical: "", "string", "binary", "bool" or the Arrow type that the raw
    integers stand for, such as "timestamp[us]".
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    kind: str = FIXED
    nullable: bool = False
    logical: str = ""

    @property
    def ragged(self) -> bool:
        """Rows differ in length."""
        return self.kind == RAGGED

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return int(np.dtype(self.dtype).itemsize)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of a fixed column; of one element of a ragged one."""
        return self.itemsize * math.prod(self.shape)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "kind": self.kind,
            "nullable": self.nullable,
            "logical": self.logical,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Column":
        """The inverse of `to_dict`."""
        return cls(data["name"], data["dtype"], tuple(data["shape"]), data["kind"], data["nullable"], data["logical"])


def column_runs(columns: Sequence[Column], dtype: Callable[[Column], object] = lambda c: c.dtype) -> list[range]:
    """Runs of neighbouring fixed columns of one `dtype` and shape; any other column is a run of its own.

    In the sidecar a run of several lies in one buffer [columns, rows, *shape], so that a wide table is copied in a few
    large moves instead of many small ones, each of which costs as much as 10 KB; the trainer cuts it up at once.
    """
    runs: list[range] = []
    for at, column in enumerate(columns):
        before = columns[at - 1] if at else column
        joins = not (column.ragged or before.ragged) and (dtype(before), before.shape) == (dtype(column), column.shape)
        if at and joins:
            runs[-1] = range(runs[-1].start, at + 1)
        else:
            runs.append(range(at, at + 1))
    return runs


def aligned(size: int) -> int:
    """`size` rounded up to the alignment of blocks."""
    return -(-size // ALIGN) * ALIGN


def fixed_frame_bytes(columns: list[Column], rows: int, steps: int, *, mask: bool = False) -> int:
    """Bytes that a frame of `steps` x `rows` takes in a slot, without the values of ragged columns."""
    total = SLOT_HEADER_BYTES + aligned(8 * rows * steps)
    if mask:
        total += aligned(rows * steps)
    for column in columns:
        total += aligned(8 * (rows + 1) * steps) if column.ragged else aligned(column.row_bytes * rows * steps)
        if column.nullable:
            total += aligned(rows * steps)
    return total


def check_batch_fits(needed: int, slot_bytes: int, rows: int) -> None:
    """Raise LayoutError where one step's batch is larger than a slot."""
    if needed > slot_bytes:
        raise LayoutError(
            f"a rank batch of {rows} rows takes {needed} bytes and a slot holds {slot_bytes}: raise sidecar.slotBytes "
            f"to at least {needed}, or lower batching.globalBatchSize"
        )
