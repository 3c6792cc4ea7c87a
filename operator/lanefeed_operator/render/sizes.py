"""Memory of a pod's sidecar: the arena in tmpfs, and the limit that its container needs.

The container that first writes a tmpfs page pays for it: that is the sidecar, so its memory holds the arena. A session
that follows another makes a new arena while the trainer may still read from the old one (docs/adr/0003), whose pages
are then the pod's; the pod's limit is the sum of its containers', so the limit and the tmpfs have room for two. Called
by `pods`, and by the shell for status; agrees with the sidecar's own choice of slot size.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from lanefeed_core.board import board_bytes
from lanefeed_core.images import ImageColumn
from lanefeed_core.layout import HEADER_BYTES, Column, fixed_frame_bytes
from lanefeed_core.manifest import Field, Manifest
from lanefeed_core.plan import Plan
from lanefeed_core.slices import rank_slice
from lanefeed_operator.api.spec import Spec

__all__ = ["OVERHEAD_BYTES", "SPARE_BYTES", "Sizes", "sizes", "width"]

#: What a sidecar uses besides arena and read-ahead (design section 9).
OVERHEAD_BYTES = 200 << 20
#: In the tmpfs besides arenas: socket, token, commits.
SPARE_BYTES = 16 << 20
MIN_SLOT_BYTES = 4 << 20
PAGE = 4096
#: Decoded over stored bytes of ragged columns, at most.
RAGGED_FACTOR = 4

_FIXED_LIST = re.compile(r"^fixed_size_list<(?:[^:<>]+: )?(.+)>\[(\d+)\]$")
_BINARY = re.compile(r"^fixed_size_binary\[(\d+)\]$")
_WIDTHS = (
    (re.compile(r"^(bool|u?int8)$"), 1),
    (re.compile(r"^(u?int16|halffloat)$"), 2),
    (re.compile(r"^(u?int32|float|date32\[.*|time32\[.*)$"), 4),
    (re.compile(r"^(u?int64|double|date64\[.*|time64\[.*|timestamp\[.*|duration\[.*)$"), 8),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes, all of one pod. `memory` is what the sidecar uses, `limit` also holds the arena of its former life."""

    slot: int
    arena: int
    tmpfs: int
    memory: int
    limit: int


def sizes(spec: Spec, plan: Plan, manifest: Manifest) -> Sizes:
    """What a pod of the plan needs."""
    slot = spec.sidecar.slot_bytes or _choose(spec, plan, manifest)
    slot = -(-slot // PAGE) * PAGE
    arena = HEADER_BYTES + plan.ranks_per_replica * (spec.sidecar.slots * slot + board_bytes(spec.sidecar.slots))
    memory = arena + SPARE_BYTES + spec.sidecar.read_ahead_bytes + OVERHEAD_BYTES
    return Sizes(
        slot=slot,
        arena=arena,
        tmpfs=_up(2 * arena + SPARE_BYTES),
        memory=_up(memory),
        limit=_up(memory + arena),
    )


def _choose(spec: Spec, plan: Plan, manifest: Manifest) -> int:
    """As the sidecar chooses it: the largest rank batch of the pod fits."""
    slices = (rank_slice(spec.batching.global_batch_size, plan.world, rank) for rank in range(plan.world))
    rows = max(stop - start for start, stop in slices)
    if manifest.packing is not None:
        columns, ragged = list(manifest.packing.columns()), False
    else:
        columns, ragged = _columns(manifest.fields, spec.data.columns, spec.data.image_columns)
    batch = fixed_frame_bytes(columns, rows, 1, mask=True)
    if ragged:
        batch += int(RAGGED_FACTOR * rows * manifest.row_bytes)
    return max(MIN_SLOT_BYTES, batch)


def _columns(fields: Iterable[Field], wanted: list[str], images: tuple[ImageColumn, ...]) -> tuple[list[Column], bool]:
    """Columns as wide as those that are delivered, and whether one of them is ragged."""
    found, ragged = [], False
    pixels = {image.column: image.nbytes for image in images}
    for field in fields:
        if wanted and field.name not in wanted:
            continue
        bytes_ = pixels.get(field.name) or width(field.type)
        ragged |= bytes_ is None
        if bytes_ is None:
            found.append(Column(field.name, "uint8", (), "ragged", field.nullable))
        else:
            found.append(Column(field.name, "uint8", (bytes_,), "fixed", field.nullable))
    return found, ragged


def width(kind: str) -> int | None:
    """Bytes of a value, by Arrow's name of its type; None where values differ in length."""
    if match := _FIXED_LIST.match(kind):
        inner = width(match[1].removesuffix(" not null"))
        return None if inner is None else inner * int(match[2])
    if match := _BINARY.match(kind):
        return int(match[1])
    return next((size for pattern, size in _WIDTHS if pattern.match(kind)), None)


def _up(value: int) -> int:
    """To whole MiB: quantities that a person reads."""
    return -(-value // (1 << 20)) << 20
