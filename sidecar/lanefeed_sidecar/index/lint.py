"""What would make a dataset read faster or restart finer: findings with remedies. Called by the index command."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lanefeed_core.layout import Column
from lanefeed_core.manifest import Manifest
from lanefeed_sidecar.formats.types import Unsupported, column_of

__all__ = ["Finding", "lint"]

_MIB = 1 << 20
#: A quarter of the default read-ahead: the sidecar decodes larger ones in pieces (pipeline/store.py).
_HUGE_BYTES = 128 * _MIB
#: Row groups that a finding names.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth changing: a short code, what is the case, and what to do."""

    code: str
    what: str
    remedy: str


def lint(manifest: Manifest, *, without_checksums: int = 0) -> list[Finding]:
    """All findings, the costliest kind first. without_checksums: shards whose pages carry none (IndexResult)."""
    sizes = np.array([b for s in manifest.shards for b in s.row_group_bytes], dtype=np.int64)
    found = [
        _huge(manifest),
        _tiny(sizes),
        _few(manifest),
        _skew(manifest),
        _checksums(manifest, without_checksums),
        *(_column(manifest, f.name, f.type, f.nullable) for f in manifest.fields if manifest.packing is None),
        _quarantined(manifest),
    ]
    return [f for f in found if f]


def _huge(manifest: Manifest) -> Finding | None:
    large = sorted(
        (
            (size, shard.path, number)
            for shard in manifest.shards
            for number, size in enumerate(shard.row_group_bytes)
            if size > _HUGE_BYTES
        ),
        reverse=True,
    )
    if not large:
        return None
    named = ", ".join(f"{path} #{number} ({size // _MIB} MiB)" for size, path, number in large[:_NAMED])
    more = f" and {len(large) - _NAMED} more" if len(large) > _NAMED else ""
    return Finding(
        "huge-row-groups",
        f"{len(large)} row groups decode to more than {_HUGE_BYTES // _MIB} MiB, a quarter of the default "
        f"sidecar.readAheadBytes: {named}{more}",
        "write row groups of 8 to 64 MiB; larger ones are decoded in pieces, where each lane that begins inside of one "
        "passes over the rows before it, or give sidecar.readAheadBytes four times their size",
    )


def _tiny(sizes: NDArray[np.int64]) -> Finding | None:
    small = int((sizes < _MIB).sum())
    if len(sizes) < 16 or small * 2 < len(sizes):
        return None
    return Finding(
        "tiny-row-groups",
        f"{small} of {len(sizes)} row groups decode to less than 1 MiB",
        "write larger row groups: each costs a fixed time to open",
    )


def _few(manifest: Manifest) -> Finding | None:
    if manifest.num_row_groups >= 64:
        return None
    return Finding(
        "few-row-groups",
        f"the dataset has {manifest.num_row_groups} row groups",
        "with fewer than 64 the job gets few lanes: shuffling is coarser and pods read the same row groups",
    )


def _skew(manifest: Manifest) -> Finding | None:
    rows = manifest.shard_rows
    if len(rows) < 4 or int(rows.max()) < 10 * int(np.median(rows)):
        return None
    largest = manifest.shards[int(rows.argmax())]
    return Finding(
        "skewed-shards",
        f"{largest.path} has {largest.rows} rows, the median shard {int(np.median(rows))}",
        "no harm to exactness (lanes cut across shards); split it where shards are copied or cached whole",
    )


def _checksums(manifest: Manifest, without: int) -> Finding | None:
    if not without or all(s.content for s in manifest.shards):
        return None
    return Finding(
        "no-page-checksums",
        f"{without} of {len(manifest.shards)} shards carry no page checksums, and the manifest has no content digests",
        "index with --digest Always, or write shards with page checksums (pyarrow: write_page_checksum=True): "
        "until then a flipped bit may pass unseen",
    )


def _column(manifest: Manifest, name: str, kind: str, nullable: bool) -> Finding | None:
    made = column_of(name, kind, nullable=nullable)
    if isinstance(made, Unsupported):
        return Finding("unsupported-column", f"column {name} ({kind}): {made.reason}", "leave it out with data.columns")
    if _could_be_fixed(made, manifest):
        return Finding(
            "list-column",
            f"column {name} is a {kind}",
            "if all rows have one length, write it as fixed_size_list: batches become one tensor without offsets",
        )
    return None


def _could_be_fixed(column: Column, manifest: Manifest) -> bool:
    return column.ragged and column.logical not in ("string", "binary") and manifest.format == "parquet"


def _quarantined(manifest: Manifest) -> Finding | None:
    if not manifest.quarantined:
        return None
    path, reason = manifest.quarantined[0]
    return Finding(
        "quarantined",
        f"{len(manifest.quarantined)} shards are set aside, such as {path}: {reason}",
        "repair them and index again; a manifest with other shards is another dataset",
    )
