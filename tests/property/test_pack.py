"""Packing, for any documents: every token is in exactly one place, and the pieces in which they come do not matter."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanefeed_core import pack as packer
from lanefeed_core.pack import Packed, Packer, pack, yield_of
from lanefeed_core.packing import BEST_FIT, CONCAT, Packing
from support.packed import Documents, check_packed, documents, packings

PLAIN = Packing("tokens", "int32", 4, None, CONCAT, True)


@given(documents(), packings())
def test_every_token_is_in_exactly_one_place(docs: Documents, packing: Packing) -> None:
    check_packed(pack(docs.values, docs.offsets, packing), docs, packing)


@given(documents(), packings())
def test_the_yield_is_known_from_the_lengths_alone(docs: Documents, packing: Packing) -> None:
    assert yield_of(docs.lengths, packing) == pack(docs.values, docs.offsets, packing).count


@given(documents(), packings(), st.data())
def test_pieces_of_any_size_give_the_same_sequences(docs: Documents, packing: Packing, data: st.DataObject) -> None:
    small = data.draw(st.booleans(), label="small blocks")
    with pytest.MonkeyPatch.context() as patch:
        if small:
            patch.setattr(packer, "BLOCK_DOCUMENTS", 3)
            patch.setattr(packer, "BLOCK_TOKENS", 17)
            patch.setattr(packer, "BLOCK_SEQUENCES", 2)
        whole = pack(docs.values, docs.offsets, packing)
        check_packed(whole, docs, packing)
        assert yield_of(docs.lengths, packing) == whole.count
        cuts = sorted(data.draw(st.lists(st.integers(0, len(docs.lengths)), max_size=6), label="cuts"))
        machine = Packer(packing)
        parts = []
        for low, high in pairwise([0, *cuts, len(docs.lengths)]):
            piece = docs.part(low, high)
            parts.append(machine.add(piece.values, piece.offsets, last=False))
        none = docs.part(0, 0)
        parts.append(machine.add(none.values, none.offsets, last=True))
    _assert_same(whole, parts)


@given(documents(), packings())
def test_a_mask_changes_no_sequence(docs: Documents, packing: Packing) -> None:
    with_mask = pack(docs.values, docs.offsets, replace(packing, cross_document_mask=True))
    without = pack(docs.values, docs.offsets, replace(packing, cross_document_mask=False))
    assert with_mask.tokens.tolist() == without.tokens.tolist()
    assert with_mask.lengths.tolist() == without.lengths.tolist()
    assert (without.documents, without.positions) == (None, None)


@given(documents(), packings())
def test_best_fit_cuts_no_document_that_fits_a_sequence(docs: Documents, packing: Packing) -> None:
    packing = replace(packing, mode=BEST_FIT, cross_document_mask=True)
    made = pack(docs.values, docs.offsets, packing)
    assert made.documents is not None
    longest = packing.sequence_length - (packing.eos_token is not None)
    places = Counter(int(number) for row in made.documents for number in set(row.tolist()))
    for number, length in enumerate(docs.lengths.tolist()):
        if length:
            extra = int(packing.eos_token is not None)
            assert places[number] == (1 if length <= longest else -(-(length + extra) // packing.sequence_length))


@given(documents(), packings())
def test_concat_pads_nothing_but_the_end_and_best_fit_leaves_no_two_that_fit_together(
    docs: Documents, packing: Packing
) -> None:
    made = pack(docs.values, docs.offsets, packing)
    short = made.lengths[made.lengths < packing.sequence_length].tolist()
    if packing.mode == CONCAT:
        assert len(short) <= 1
    else:
        # More than half full on average: else two of them would have been one.
        assert not short or 2 * sum(short) > (len(short) - 1) * packing.sequence_length


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int64", "uint64"])
@pytest.mark.parametrize("mode", [CONCAT, BEST_FIT])
def test_tokens_keep_their_type(dtype: str, mode: str) -> None:
    docs = Documents.of([[1, 2, 3], [], [4, 255, 6, 7, 8]], dtype)
    check_packed(pack(docs.values, docs.offsets, packing := Packing("t", dtype, 4, 9, mode, True)), docs, packing)


def _drop_the_last(made: Packed) -> None:
    made.lengths[-1] -= 1


def _swap_two(made: Packed) -> None:
    made.tokens[0, [0, 1]] = made.tokens[0, [1, 0]]


def _repeat_one(made: Packed) -> None:
    made.tokens[0, 1] = made.tokens[0, 0]


def _forget_a_document(made: Packed) -> None:
    assert made.documents is not None
    made.documents[0, 0] = 1


def _shift_positions(made: Packed) -> None:
    assert made.positions is not None
    made.positions += 1


FAULTS = [_drop_the_last, _swap_two, _repeat_one, _forget_a_document, _shift_positions]


@pytest.mark.parametrize("mode", [CONCAT, BEST_FIT])
@pytest.mark.parametrize("fault", FAULTS)
def test_tooth_a_packer_that_loses_swaps_or_misnames_a_token_is_caught(fault: object, mode: str) -> None:
    docs = Documents.of([[1, 2, 3], [4, 5], [6, 7, 8, 9, 10, 11]])
    packing = replace(PLAIN, mode=mode)
    made = pack(docs.values.copy(), docs.offsets, packing)
    check_packed(made, docs, packing)
    made.tokens = made.tokens.copy()
    assert callable(fault)
    fault(made)
    with pytest.raises(AssertionError):
        check_packed(made, docs, packing)


def _assert_same(whole: Packed, parts: list[Packed]) -> None:
    for name in ("tokens", "lengths", "documents", "positions"):
        wanted = getattr(whole, name)
        found = [getattr(part, name) for part in parts]
        if wanted is None:
            assert found == [None] * len(parts)
        else:
            joined = np.concatenate(found)
            assert joined.dtype == wanted.dtype
            assert joined.tolist() == wanted.tolist(), name
