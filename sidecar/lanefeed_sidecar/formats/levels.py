"""Do a page's levels say that every list is whole? Parquet stores for each value where lists begin and what is null.

Called by `whole_lists`, which skips the levels of a page only where this says yes: no null anywhere, and a list
begins at every `size`-th value; of lists of any length it asks where they begin. Levels come as runs and packed bits.
The answer depends on a page's bytes alone, and nearly all pages of a dataset have the same where lists are of one
length, so answers are remembered.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lanefeed_sidecar.formats.compact import unsigned

__all__ = ["all_present", "decode", "longest", "starts", "whole_lists"]

#: Level bytes of a page are about a thousandth of its values; larger ones are not worth remembering.
_REMEMBERED = 256


def decode(data: bytes, count: int, width: int) -> NDArray[np.uint8] | None:
    """`count` levels of `width` bits each (RLE / bit-packed hybrid); None where the bytes are anything else."""
    out = np.empty(count, np.uint8)
    at = filled = 0
    while filled < count:
        header = shift = 0
        while True:
            if at >= len(data) or shift > 28:
                return None
            byte = data[at]
            at += 1
            header |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        if header & 1:
            groups = header >> 1
            packed = data[at : at + groups * width]
            if not groups or len(packed) < groups * width:
                return None
            at += len(packed)
            bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little").reshape(-1, width)
            values = (bits << np.arange(width, dtype=np.uint8)).sum(axis=1, dtype=np.uint8)
            # The last group is filled up to eight.
            taken = min(len(values), count - filled)
            if len(values) - taken > 7:
                return None
            out[filled : filled + taken] = values[:taken]
            filled += taken
        else:
            run = header >> 1
            if not run or run > count - filled or at >= len(data):
                return None
            out[filled : filled + run] = data[at]
            at += 1
            filled += run
    return out if at == len(data) else None


@lru_cache(maxsize=_REMEMBERED)
def all_present(data: bytes, count: int, most: int) -> bool:
    """Whether all `count` definition levels are `most`: nothing is null, at any depth."""
    found = decode(data, count, most.bit_length())
    return found is not None and bool((found == most).all())


@lru_cache(maxsize=_REMEMBERED)
def whole_lists(data: bytes, count: int, first: int, size: int) -> bool:
    """Whether of `count` values from value `first` of the column on a list begins exactly at every `size`-th."""
    found = decode(data, count, 1)
    if found is None:
        return False
    wanted = (np.arange(first, first + count, dtype=np.int64) % size != 0).astype(np.uint8)
    return bool((found == wanted).all())


#: The bits of a byte that are 0; the only one, or 8 where there are more or none.
_ZEROS = [tuple(bit for bit in range(8) if not byte >> bit & 1) for byte in range(256)]
_ONLY = [zeros[0] if len(zeros) == 1 else 8 for zeros in _ZEROS]


def starts(data: bytes, count: int, most: int) -> list[int] | None:
    """At which of `count` values a list begins: those of level 0, of levels 0 and 1.

    None where there are more than `most`, or where the bytes are no such levels; IndexError at the bytes' end. One step
    a run and not an array of all levels: a list of a thousand values is two runs.
    """
    found: list[int] = []
    at = filled = 0
    while filled < count:
        header = data[at]
        at += 1
        if header > 127:
            header, at = unsigned(data, at - 1)
        values = header >> 1
        if not values:
            return None
        if header & 1:
            if at + values > len(data) or filled + 8 * values - count > 7:
                return None
            for byte in data[at : at + values]:
                if byte != 255:
                    only = _ONLY[byte]
                    if only < 8:
                        found.append(filled + only)
                    else:
                        found += [filled + bit for bit in _ZEROS[byte]]
                        if len(found) > most + 8:
                            return None
                filled += 8
            at += values
        else:
            level = data[at]
            at += 1
            if level > 1 or values > count - filled or (not level and values > most - len(found)):
                return None
            if not level:
                found += range(filled, filled + values)
            filled += values
    # The last byte is filled up to eight.
    while found and found[-1] >= count:
        found.pop()
    return found if at == len(data) and len(found) <= most else None


def longest(data: bytes, count: int, width: int, carried: int) -> tuple[int, int]:
    """(most values that follow each other in one row, those of the last row): `carried` came in the pages before.

    A row begins where the level is 0. Takes no more memory than the bytes, whatever their runs say. Raises ValueError,
    or IndexError at the bytes' end.
    """
    most = carried
    at = filled = 0
    while filled < count:
        header, at = unsigned(data, at)
        if header & 1:
            packed = data[at : at + (header >> 1) * width]
            at += len(packed)
            if not packed:
                raise ValueError("levels end before their count")
            bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
            starts = np.flatnonzero(~bits[: len(bits) // width * width].reshape(-1, width).any(axis=1))
            values = min(len(bits) // width, count - filled)
            starts = starts[starts < values]
            if len(starts):
                most = max(most, carried + int(starts[0]), int(np.diff(starts).max(initial=0)))
                carried = values - int(starts[-1])
            else:
                carried += values
            filled += values
        else:
            run = min(header >> 1, count - filled)
            if not run:
                raise ValueError("a run of no levels")
            size = (width + 7) // 8
            carried = carried + run if any(data[at : at + size]) else 1
            at += size
            filled += run
        most = max(most, carried)
    return most, carried
