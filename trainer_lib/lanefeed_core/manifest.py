"""The manifest: the frozen, sorted list of a dataset's shards.

Made by the sidecar's indexer, read by everybody. A job is bound to its digest: the same dataset gives the same digest
on every machine, whatever the order of the listing or the times of the files. A sample's id is its row number in
the manifest: shard 0's rows first, then shard 1's, and so on. `manifest_codec` turns it into bytes. Where documents are
packed (`packing`) a sample is a sequence, and all counts of rows are of sequences, but for `Shard.file_rows`.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from json.encoder import encode_basestring_ascii as _quoted

import numpy as np
from numpy.typing import NDArray

from lanefeed_core.errors import ManifestError
from lanefeed_core.packing import Packing

__all__ = ["Field", "Manifest", "Shard"]


@dataclass(frozen=True, slots=True)
class Field:
    """One column as delivered: `type` is Arrow's name of it, after unifying all shards."""

    name: str
    type: str
    #: True if any shard has or may have nulls in it; only then is validity delivered.
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class Shard:
    """One immutable file of samples."""

    path: str
    size: int
    row_groups: tuple[int, ...]
    #: Bytes of each row group once decoded, as its metadata says (an estimate: never trusted for bounds).
    row_group_bytes: tuple[int, ...] = ()
    #: What the store says of the file's version (mtime in ns, or an ETag); not part of the digest.
    etag: str = ""
    #: Hash of the file's own metadata (a Parquet footer), part of the digest: a replaced file shows here.
    fingerprint: str = ""
    #: xxh3-64 of the whole file in hex, where it was read; checked by the sidecar, not part of the digest.
    content: str = ""
    #: Documents of each row group, where they are packed: `row_groups` counts the sequences that they give.
    documents: tuple[int, ...] = ()

    @property
    def file_rows(self) -> tuple[int, ...]:
        """Rows of each row group in the file itself."""
        return self.documents or self.row_groups

    @property
    def rows(self) -> int:
        """Number of samples."""
        return sum(self.row_groups)


@dataclass(frozen=True)
class Manifest:
    """Shards sorted by path, and the schema they share. Raises ManifestError where they do not fit together."""

    shards: tuple[Shard, ...]
    fields: tuple[Field, ...]
    #: "parquet" or "arrow".
    format: str = "parquet"
    #: Paths are relative to it; "" where they are absolute. Not part of the digest: a dataset may be moved.
    root: str = ""
    #: Shards set aside at indexing: path -> reason.
    quarantined: tuple[tuple[str, str], ...] = field(default=())
    #: How documents become samples; None: rows are samples.
    packing: Packing | None = None

    def __post_init__(self) -> None:
        """Check that the shards are sorted, distinct and not empty."""
        for before, after in pairwise(self.shards):
            if before.path >= after.path:
                how = "listed twice" if before.path == after.path else "out of order"
                raise ManifestError(f"shard {after.path} is {how}: shards must be sorted by path, each once")
        for shard in self.shards:
            if shard.rows < 1:
                raise ManifestError(f"shard {shard.path} has no rows: the indexer leaves empty shards out")
            if len(shard.documents) != (len(shard.row_groups) if self.packing else 0):
                raise ManifestError(
                    f"shard {shard.path} counts the documents of {len(shard.documents)} row groups and has "
                    f"{len(shard.row_groups)}: make the manifest again with `lanefeed index`"
                )

    @cached_property
    def shard_rows(self) -> NDArray[np.int64]:
        """Rows per shard, int64 [shards]."""
        return np.fromiter((sum(s.row_groups) for s in self.shards), dtype=np.int64, count=len(self.shards))

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """First sample id of each shard and, last, the number of samples: int64 [shards + 1]."""
        starts = np.zeros(len(self.shards) + 1, dtype=np.int64)
        np.cumsum(self.shard_rows, out=starts[1:])
        return starts

    @property
    def rows(self) -> int:
        """Number of samples in the dataset (N)."""
        return int(self.starts[-1])

    @cached_property
    def num_row_groups(self) -> int:
        """Number of row groups over all shards."""
        return sum(len(s.row_groups) for s in self.shards)

    @cached_property
    def bytes(self) -> int:
        """Bytes of all shards, as stored."""
        return sum(s.size for s in self.shards)

    @cached_property
    def row_bytes(self) -> float:
        """Mean decoded bytes of a sample, by the shards' own metadata."""
        decoded = sum(sum(s.row_group_bytes) for s in self.shards)
        return max(1.0, decoded / max(1, self.rows))

    @cached_property
    def digest(self) -> str:
        """32 hex digits (BLAKE2b-128) of what makes the dataset.

        That is paths, sizes, rows, row groups, footers, schema, and how documents are packed if they are.
        """
        h = hashlib.blake2b(digest_size=16)
        fields = [[f.name, f.type, f.nullable] for f in self.fields]
        head: dict[str, object] = {"v": 1, "format": self.format, "fields": fields}
        if self.packing is not None:
            head["packing"] = self.packing.identity()
        h.update(json.dumps(head, sort_keys=True, separators=(",", ":")).encode())
        for s in self.shards:
            h.update(_line(s).encode())
        return h.hexdigest()

    def locate(self, sample: int) -> tuple[int, int]:
        """Sample id -> (index of its shard, row in it). Raises IndexError outside 0..rows-1."""
        if not 0 <= sample < self.rows:
            raise IndexError(f"sample {sample} is not in a dataset of {self.rows} samples")
        shard = int(np.searchsorted(self.starts, sample, side="right")) - 1
        return shard, sample - int(self.starts[shard])

    def without(self, bad: Iterable[tuple[str, str]]) -> "Manifest":
        """A new manifest with the shards in `bad` (path, reason) quarantined; its digest differs."""
        reasons = dict(bad)
        kept = tuple(s for s in self.shards if s.path not in reasons)
        aside = tuple(sorted({**dict(self.quarantined), **reasons}.items()))
        return replace(self, shards=kept, quarantined=aside)

    def diff(self, other: "Manifest") -> str:
        """What differs between the frozen manifest (self) and a new listing, for a message; "" if nothing does."""
        mine, theirs = {s.path: s for s in self.shards}, {s.path: s for s in other.shards}
        gone = sorted(mine.keys() - theirs.keys())
        new = sorted(theirs.keys() - mine.keys())
        key = [(p, mine[p]) for p in sorted(mine.keys() & theirs.keys())]
        changed = [
            p
            for p, s in key
            if (s.size, s.row_groups, s.fingerprint) != (theirs[p].size, theirs[p].row_groups, theirs[p].fingerprint)
        ]
        parts = [
            f"{len(paths)} {what} ({', '.join(paths[:3])}{', ...' if len(paths) > 3 else ''})"
            for what, paths in (("missing", gone), ("new", new), ("changed", changed))
            if paths
        ]
        if not parts and self.fields != other.fields:
            parts.append(f"schema changed from {_schema(self.fields)} to {_schema(other.fields)}")
        if self.packing != other.packing:
            parts.append(f"packing changed from {self.packing} to {other.packing}")
        return "; ".join(parts)


def _line(s: Shard) -> str:
    """A shard in the digest: JSON of [path, size, row groups, fingerprint], put together by hand: json is slower."""
    groups = ",".join(map(str, s.row_groups))
    return f"\n[{_quoted(s.path)},{s.size},[{groups}],{_quoted(s.fingerprint)}]"


def _schema(fields: tuple[Field, ...]) -> str:
    return "{" + ", ".join(f"{f.name}: {f.type}" for f in fields) + "}"
