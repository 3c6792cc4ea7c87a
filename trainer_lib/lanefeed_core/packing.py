"""What packing is asked for, and what was settled: how documents of tokens become sequences of one length.

`PackingRequest` is what a user says (the job's `batching.packed`, `lanefeed.open(packed=...)`, the indexer's options);
the indexer settles it against the dataset's schema as a `Packing`, which the manifest keeps and everybody reads: the
sidecar to pack, the operator to know how wide a sample is. `pack` does the packing. No I/O, no policy.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lanefeed_core.errors import StreamError
from lanefeed_core.layout import Column

__all__ = [
    "BEST_FIT",
    "CONCAT",
    "DOCUMENT_IDS",
    "LENGTHS",
    "MAX_SEQUENCE",
    "MODES",
    "POSITION_IDS",
    "Packing",
    "PackingRequest",
]

#: Part of the manifest's digest: raise it when the same documents would become other sequences.
PACK_VERSION = 1
CONCAT, BEST_FIT = "Concat", "BestFit"
MODES = (CONCAT, BEST_FIT)
#: Columns that come with the tokens: real tokens of a sequence; with a mask, each token's document and its place there.
LENGTHS, DOCUMENT_IDS, POSITION_IDS = "lengths", "document_ids", "position_ids"
#: Tokens of a sequence, at most: a slot holds at least one sequence.
MAX_SEQUENCE = 1 << 24


@dataclass(frozen=True, slots=True)
class PackingRequest:
    """As the user says it. column: "" where the dataset has only one that it can be."""

    sequence_length: int
    column: str = ""
    eos_token: int | None = None
    mode: str = CONCAT
    cross_document_mask: bool = False

    def __post_init__(self) -> None:
        """Raise StreamError for what no dataset could satisfy."""
        length = self.sequence_length
        if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= MAX_SEQUENCE:
            raise StreamError(
                f"packed.sequenceLength is {length!r}: it must be a whole number from 1 to {MAX_SEQUENCE}"
            )
        if self.mode not in MODES:
            raise StreamError(f"packed.mode is {self.mode!r}: it must be {' or '.join(MODES)}")
        eos = self.eos_token
        if eos is not None and (isinstance(eos, bool) or not isinstance(eos, int) or eos < 0):
            raise StreamError(f"packed.eosToken is {eos!r}: it must be a token's number, 0 or more, or left out")
        if not isinstance(self.column, str):
            raise StreamError(f"packed.column is {self.column!r}: it must be a column's name, or left out")
        if not isinstance(self.cross_document_mask, bool):
            raise StreamError(f"packed.crossDocumentMask is {self.cross_document_mask!r}: it must be true or false")

    def options(self) -> tuple[str, ...]:
        """The indexer's command-line options that say this."""
        found = ["--sequence-length", str(self.sequence_length), "--pack-mode", self.mode]
        found += [f"--token-column={self.column}"] if self.column else []
        found += [f"--eos-token={self.eos_token}"] if self.eos_token is not None else []
        return (*found, "--cross-document-mask") if self.cross_document_mask else tuple(found)


@dataclass(frozen=True, slots=True)
class Packing:
    """As settled for one dataset: the column is known, and the NumPy type of its tokens. Raises StreamError."""

    column: str
    dtype: str
    sequence_length: int
    eos_token: int | None = None
    mode: str = CONCAT
    cross_document_mask: bool = False

    def __post_init__(self) -> None:
        """Raise StreamError where a token cannot be what it should be, or two columns would have one name."""
        kind = np.dtype(self.dtype)
        if kind.kind not in "iu":
            raise StreamError(f"column {self.column!r} holds {self.dtype}: only lists of whole numbers can be packed")
        limits = np.iinfo(kind)
        if self.eos_token is not None and not limits.min <= self.eos_token <= limits.max:
            raise StreamError(
                f"packed.eosToken is {self.eos_token}, and column {self.column!r} holds {self.dtype}, which goes from "
                f"{limits.min} to {limits.max}: name a token that it can hold, or write the column with a wider type"
            )
        if self.column in (LENGTHS, DOCUMENT_IDS, POSITION_IDS):
            raise StreamError(f"column {self.column!r} has the name of a column that packing adds: rename it")

    @property
    def pad(self) -> int:
        """The token that fills the last sequence of a row group."""
        return self.eos_token or 0

    def columns(self) -> tuple[Column, ...]:
        """The columns as delivered."""
        shape = (self.sequence_length,)
        found = (Column(self.column, self.dtype, shape), Column(LENGTHS, "int32"))
        if not self.cross_document_mask:
            return found
        return (*found, Column(DOCUMENT_IDS, "int32", shape), Column(POSITION_IDS, "int32", shape))

    @property
    def sequence_bytes(self) -> int:
        """Bytes of one sequence with all that comes with it."""
        return sum(column.row_bytes for column in self.columns())

    def identity(self) -> list[Any]:
        """What sequences depend on: in the manifest's digest, and in the key of what is kept decoded.

        Not the mask, which adds columns to the same sequences.
        """
        return [PACK_VERSION, self.column, self.dtype, self.sequence_length, self.eos_token, self.mode]

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Packing":
        """The inverse of `to_dict`. Raises StreamError, TypeError for what is none."""
        return cls(**data)
