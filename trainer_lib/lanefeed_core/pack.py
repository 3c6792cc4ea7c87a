"""Packs the documents of one row group into sequences of one length: a pure function of these documents.

Because a row group alone decides, how many sequences it gives can be counted once, by the indexer (`yield_of`), and a
sequence is then a sample like any other: numbered, shuffled, resumed and proven as rows are (docs/adr/0012). The
sidecar's readers call `pack`, or a `Packer` where a row group comes in pieces; both give the same sequences, whatever
the pieces. Every token is in exactly one place; nothing is dropped and nothing repeated. Knows no file.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanefeed_core.packing import BEST_FIT, Packing

__all__ = ["BLOCK_DOCUMENTS", "BLOCK_SEQUENCES", "BLOCK_TOKENS", "Packed", "Packer", "pack", "yield_of"]

#: Documents that are fitted to each other: a block ends with the one that brings it to so many documents, or to so many
#: tokens (or sequences, where these are more): row groups of any size can be packed as they are read, and who reads one
#: in pieces holds no more than a block. Part of the order: raise PACK_VERSION with them.
BLOCK_DOCUMENTS = 1024
BLOCK_TOKENS = 1 << 19
BLOCK_SEQUENCES = 64

_Ints = NDArray[np.int64]
_Tokens = NDArray[np.generic]
#: (elements, dtype) -> an array of them, whatever is in it.
Empty = Callable[[int, np.dtype[Any]], _Tokens]
#: Sequences that are still open, by the room they have: (room << _SHIFT) + number, sorted.
_SHIFT = 32


@dataclass(slots=True)
class Packed:
    """Sequences [n, S]. documents: each token's row in its row group, -1 for padding; positions: its place there."""

    tokens: _Tokens
    #: Real tokens of each sequence, int32 [n]; padding comes after them.
    lengths: NDArray[np.int32]
    #: Both int32 [n, S], or None where nobody asked; padding counts from 0, like a document of its own.
    documents: NDArray[np.int32] | None
    positions: NDArray[np.int32] | None

    @property
    def count(self) -> int:
        """Number of sequences."""
        return len(self.lengths)


def pack(values: _Tokens, offsets: _Ints, packing: Packing, empty: Empty = np.empty) -> Packed:
    """All sequences of a row group. values: all documents end to end; offsets: int64 [documents + 1], from 0.

    `empty` gives memory, as `np.empty` does: fresh pages cost more than all that is done here.
    """
    return Packer(packing, empty).add(values, offsets, last=True)


def yield_of(lengths: _Ints, packing: Packing) -> int:
    """How many sequences documents of these lengths give."""
    lengths = lengths + (lengths > 0) if packing.eos_token is not None else lengths
    size = packing.sequence_length
    if packing.mode != BEST_FIT:
        return -(-int(lengths.sum()) // size)
    ends = np.cumsum(lengths)
    return sum(_fit(lengths[low:high], size).sequences for low, high in _blocks(ends, size, last=True))


class Packer:
    """Packs a row group that comes in pieces, one after the other. Keeps what no sequence could be made of yet."""

    def __init__(self, packing: Packing, empty: Empty = np.empty) -> None:
        """Of one row group, from its first document on. `empty`: see `pack`."""
        self._packing, self._empty = packing, empty
        self._best_fit = packing.mode == BEST_FIT
        #: Concat: the end of the stream that fills no sequence: tokens and, with a mask, documents and positions.
        self._rest: list[_Tokens] = []
        #: BestFit: documents of a block that has not ended: (tokens, lengths).
        self._open: list[tuple[_Tokens, _Ints]] = []
        self._open_documents = self._open_tokens = 0
        #: Number of the first document that is not in `_open`, or of the next one.
        self._document = 0

    def add(self, values: _Tokens, offsets: _Ints, *, last: bool) -> Packed:
        """The sequences that are whole now; `last`: no piece follows, so that the last one is padded."""
        if self._packing.eos_token is not None:
            values, offsets = _terminated(values, offsets, self._packing.eos_token)
        return self._fitted(values, offsets, last) if self._best_fit else self._cut(values, offsets, last)

    # ---- Concat ------------------------------------------------------------------------------------------------

    def _cut(self, values: _Tokens, offsets: _Ints, last: bool) -> Packed:
        """Documents end to end, cut wherever a sequence is full."""
        size, streams = self._packing.sequence_length, [values]
        if self._packing.cross_document_mask:
            streams += _numbers(offsets, self._document)
        self._document += len(offsets) - 1
        rest = self._rest or [stream[:0] for stream in streams]
        have = len(rest[0]) + len(values)
        count = -(-have // size) if last else have // size
        if not count:
            self._rest = [np.concatenate([old, new]) for old, new in zip(rest, streams, strict=True)]
            return _packed([new[:0].reshape(0, size) for new in streams], np.zeros(0, np.int32))
        missing = max(0, count * size - have)
        taken = min(len(values), count * size - len(rest[0]))
        self._rest = [stream[taken:].copy() for stream in streams]
        made = [
            self._joined(old, new[:taken], fill).reshape(count, size)
            for old, new, fill in zip(rest, streams, self._fills(missing), strict=False)
        ]
        lengths = np.full(count, size, np.int32)
        lengths[-1] -= missing
        return _packed(made, lengths)

    def _joined(self, *parts: _Tokens) -> _Tokens:
        """One array; a view where there is but one part."""
        full = [part for part in parts if len(part)]
        if len(full) == 1:
            return full[0]
        out, at = self._empty(sum(map(len, full)), full[0].dtype), 0
        for part in full:
            out[at : at + len(part)] = part
            at += len(part)
        return out

    def _fills(self, missing: int) -> list[_Tokens]:
        """Padding of tokens, documents and positions."""
        return [
            np.full(missing, self._packing.pad, self._packing.dtype),
            np.full(missing, -1, np.int32),
            np.arange(missing, dtype=np.int32),
        ]

    # ---- BestFit -----------------------------------------------------------------------------------------------

    def _fitted(self, values: _Tokens, offsets: _Ints, last: bool) -> Packed:
        """Documents fitted to each other, block by block."""
        self._open.append((values, np.diff(offsets)))
        self._open_documents += len(offsets) - 1
        self._open_tokens += len(values)
        size = self._packing.sequence_length
        if not last and self._open_documents < BLOCK_DOCUMENTS and self._open_tokens < _block_tokens(size):
            return self._placed(values[:0], [], 0)
        parts, self._open = self._open, []
        values = np.concatenate([part for part, _ in parts]) if len(parts) > 1 else parts[0][0]
        lengths = np.concatenate([part for _, part in parts])
        ends = np.cumsum(lengths)
        fits, done, tokens, sequences = [], 0, 0, 0
        for low, high in _blocks(ends, size, last=last):
            fit = _fit(lengths[low:high], size)
            fits.append(fit.moved(self._document + low, tokens, sequences))
            done, tokens, sequences = high, int(ends[high - 1]), sequences + fit.sequences
        made = self._placed(values, fits, sequences)
        self._document += done
        if done < len(lengths):
            self._open = [(values[tokens:].copy(), lengths[done:])]
        self._open_documents, self._open_tokens = len(lengths) - done, len(values) - tokens
        return made

    def _placed(self, values: _Tokens, fits: "list[_Fit]", count: int) -> Packed:
        """Tokens moved to where the fits put them."""
        size, masked = self._packing.sequence_length, self._packing.cross_document_mask
        fills = self._fills(size)
        flat = [self._empty(count * size, fill.dtype) for fill in (fills if masked else fills[:1])]
        made = [array.reshape(count, size) for array in flat]
        lengths = np.zeros(count, np.int32)
        for fit in fits:
            lengths[fit.first_sequence : fit.first_sequence + fit.sequences] = fit.filled
            for to, source, length, document, start in fit.moves(size):
                flat[0][to : to + length] = values[source : source + length]
                if masked:
                    flat[1][to : to + length] = document
                    flat[2][to : to + length] = np.arange(start, start + length, dtype=np.int32)
        for number in np.flatnonzero(lengths < size).tolist():
            length = int(lengths[number])
            for array, fill in zip(made, fills, strict=False):
                array[number, length:] = fill[: size - length]
        return _packed(made, lengths)


@dataclass(frozen=True, slots=True)
class _Fit:
    """Where a block's documents go, piece by piece, in the order of sequences and in each of documents."""

    #: Of each piece: its document (in the block), the first of its tokens there, how many, its sequence, its place.
    document: _Ints
    start: _Ints
    length: _Ints
    sequence: _Ints
    place: _Ints
    #: Of each document: its first token, in the block.
    base: _Ints
    #: Tokens in each sequence.
    filled: _Ints
    #: The block's first document, token and sequence in what is packed with it.
    first_document: int = 0
    first_token: int = 0
    first_sequence: int = 0

    @property
    def sequences(self) -> int:
        """How many there are."""
        return len(self.filled)

    def moved(self, document: int, token: int, sequence: int) -> "_Fit":
        """The same, with other blocks before it."""
        return _Fit(
            self.document,
            self.start,
            self.length,
            self.sequence,
            self.place,
            self.base,
            self.filled,
            document,
            token,
            sequence,
        )

    def moves(self, size: int) -> Iterator[tuple[int, int, int, int, int]]:
        """(to, from, tokens, document, place in the document) of each piece; a slice each: copies are what costs."""
        to = (self.sequence + self.first_sequence) * size + self.place
        source = self.base[self.document] + self.start + self.first_token
        document = self.document + self.first_document
        return zip(
            to.tolist(),
            source.tolist(),
            self.length.tolist(),
            document.tolist(),
            self.start.tolist(),
            strict=True,
        )


def _fit(lengths: _Ints, size: int) -> _Fit:
    """Cut what is longer than a sequence into whole ones and a rest; place rests, longest first, where they fit best.

    Sequences are numbered by their first document, so that a row group's order stays about the file's.
    """
    whole, rest = np.divmod(lengths, size)
    number = np.arange(len(lengths))
    cut = np.repeat(number, whole)
    first = np.cumsum(whole) - whole
    part = np.arange(len(cut)) - np.repeat(first, whole)
    short = number[rest > 0]
    bins, count = _best_fit(rest[short], size)
    document = np.concatenate([cut, short])
    start = np.concatenate([part * size, whole[short] * size])
    length = np.concatenate([np.full(len(cut), size, np.int64), rest[short]])
    sequence = np.concatenate([np.arange(len(cut)), len(cut) + bins])
    leader = np.concatenate([cut, np.full(count, len(lengths), np.int64)])
    np.minimum.at(leader, sequence, document)
    rank = np.empty(len(leader), np.int64)
    rank[np.argsort(leader, kind="stable")] = np.arange(len(leader))
    sequence = rank[sequence]
    order = np.lexsort((document, sequence))
    document, start, length, sequence = document[order], start[order], length[order], sequence[order]
    filled = np.bincount(sequence, weights=length, minlength=len(leader)).astype(np.int64)
    before = np.cumsum(length) - length
    place = before - (np.cumsum(filled) - filled)[sequence]
    return _Fit(document, start, length, sequence, place, np.cumsum(lengths) - lengths, filled)


def _best_fit(lengths: _Ints, size: int) -> tuple[_Ints, int]:
    """For each length (1 to size - 1) the number of its sequence, and how many there are."""
    found = np.zeros(len(lengths), np.int64)
    room: list[int] = []
    count = 0
    order = np.argsort(-lengths, kind="stable")
    chosen = []
    for length in lengths[order].tolist():
        at = bisect_left(room, length << _SHIFT)
        if at == len(room):
            number, left = count, size - length
            count += 1
        else:
            left, number = divmod(room.pop(at), 1 << _SHIFT)
            left -= length
        chosen.append(number)
        if left:
            insort(room, (left << _SHIFT) + number)
    found[order] = chosen
    return found, count


def _block_tokens(size: int) -> int:
    return max(BLOCK_TOKENS, BLOCK_SEQUENCES * size)


def _blocks(ends: _Ints, size: int, *, last: bool) -> Iterator[tuple[int, int]]:
    """Documents [low, high) of each block, by where documents end; without `last` only of those that are over."""
    low = before = 0
    while low < len(ends):
        full = int(np.searchsorted(ends, before + _block_tokens(size))) + 1
        high = min(low + BLOCK_DOCUMENTS, full)
        if high > len(ends):
            if not last:
                return
            high = len(ends)
        yield low, high
        low, before = high, int(ends[high - 1])


def _terminated(values: _Tokens, offsets: _Ints, eos: int) -> tuple[_Tokens, _Ints]:
    """Each document that has a token with `eos` after it."""
    lengths = np.diff(offsets)
    ends = offsets[1:][lengths > 0] + np.arange(np.count_nonzero(lengths))
    longer = np.empty(len(values) + len(ends), values.dtype)
    real = np.ones(len(longer), np.bool_)
    real[ends] = False
    longer[real] = values
    longer[ends] = eos
    moved = np.zeros(len(offsets), np.int64)
    np.cumsum(lengths + (lengths > 0), out=moved[1:])
    return longer, moved


def _numbers(offsets: _Ints, first: int) -> list[_Tokens]:
    """The document of each token, numbered from `first`, and the token's place in it."""
    lengths = np.diff(offsets)
    documents = np.repeat(np.arange(first, first + len(lengths), dtype=np.int32), lengths)
    positions = np.arange(offsets[-1], dtype=np.int32) - np.repeat(offsets[:-1].astype(np.int32), lengths)
    return [documents, positions]


def _packed(made: list[_Tokens], lengths: NDArray[np.int32]) -> Packed:
    documents, positions = made[1:] if len(made) > 1 else (None, None)
    return Packed(made[0], lengths, documents, positions)  # type: ignore[arg-type]
