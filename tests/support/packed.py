"""Documents of tokens, and what is true of any packing of them."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from lanefeed_core.pack import Packed
from lanefeed_core.packing import MODES, Packing

__all__ = ["Documents", "check_packed", "documents", "packings"]


@dataclass(frozen=True)
class Documents:
    """Documents end to end, as a column of lists has them."""

    values: NDArray[np.generic]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, lists: list[list[int]], dtype: str = "int32") -> "Documents":
        """From lists of tokens."""
        offsets = np.cumsum([0, *(len(one) for one in lists)], dtype=np.int64)
        return cls(np.array([token for one in lists for token in one], dtype), offsets)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each."""
        return np.diff(self.offsets)

    def part(self, low: int, high: int) -> "Documents":
        """Documents [low, high)."""
        first, last = int(self.offsets[low]), int(self.offsets[high])
        return Documents(self.values[first:last], self.offsets[low : high + 1] - first)

    def lists(self) -> list[list[int]]:
        """As lists."""
        return [self.part(at, at + 1).values.tolist() for at in range(len(self.lengths))]


@st.composite
def documents(draw: st.DrawFn) -> Documents:
    """Up to 40 documents of 0 to 30 tokens, all tokens distinct: each can be found again."""
    lengths = draw(st.lists(st.integers(0, 30), max_size=40))
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    return Documents((np.arange(offsets[-1]) + 1).astype(np.int32), offsets)


@st.composite
def packings(draw: st.DrawFn) -> Packing:
    """Any packing, with a short sequence."""
    return Packing(
        "tokens",
        "int32",
        draw(st.integers(1, 12)),
        draw(st.sampled_from([None, 0, 60000])),
        draw(st.sampled_from(MODES)),
        draw(st.booleans()),
    )


def check_packed(made: Packed, docs: Documents, packing: Packing) -> None:
    """Every token of every document is in one place, in order, and nothing else is; asserts."""
    size, eos = packing.sequence_length, packing.eos_token
    assert made.tokens.shape == (made.count, size)
    assert made.tokens.dtype == docs.values.dtype
    assert made.lengths.dtype == np.int32
    assert all(0 < length <= size for length in made.lengths.tolist())
    wanted = [one + ([eos] if eos is not None and one else []) for one in docs.lists()]
    real = np.arange(size) < made.lengths[:, None]
    assert (made.tokens[~real] == packing.pad).all()
    assert sorted(made.tokens[real].tolist()) == sorted(token for one in wanted for token in one)
    if made.documents is None or made.positions is None:
        assert not packing.cross_document_mask
        return
    assert (made.documents[~real] == -1).all()
    found: list[dict[int, int]] = [{} for _ in wanted]
    for row, column in zip(*np.nonzero(real), strict=True):
        document, place = int(made.documents[row, column]), int(made.positions[row, column])
        assert place not in found[document], f"token {place} of document {document} is there twice"
        found[document][place] = int(made.tokens[row, column])
        if column:
            _check_neighbours(made.documents[row], made.positions[row], int(column))
    assert [sorted(one.items()) for one in found] == [list(enumerate(one)) for one in wanted]


def _check_neighbours(documents: NDArray[np.int32], positions: NDArray[np.int32], column: int) -> None:
    """Within a sequence a document's tokens are side by side, and another document begins with its first."""
    if documents[column] == documents[column - 1]:
        assert positions[column] == positions[column - 1] + 1
