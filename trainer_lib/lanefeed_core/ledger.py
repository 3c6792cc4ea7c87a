"""The proof of "nothing lost, nothing repeated" (G5).

Each sample's id is hashed to 64 bits; what a rank consumed is a count and the sum of the hashes mod 2**64, per epoch.
Sums do not depend on order, so ranks, restarts and resizes add up, and the total of an epoch is compared with what the
manifest says. The sidecar adds up frames, the trainer what it consumed, the control plane (`book`) the ranks.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lanefeed_core.errors import LedgerMismatch

__all__ = ["MASK64", "Entry", "Ledger", "hash_ids", "range_sum", "sum_ids", "sum_steps"]

MASK64 = (1 << 64) - 1

# The constants of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)

#: Rows hashed at once by `range_sum`: 64 Ki rows of scratch stay in the L2 cache.
_CHUNK = 1 << 16


def hash_ids(ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash sample ids (int64, any shape) to uint64 of the same shape; splitmix64's finalizer of id * gamma."""
    z = (ids.view(np.uint64) if ids.flags.c_contiguous else ids.astype(np.uint64)) + np.uint64(1)
    z *= _GAMMA
    z ^= z >> _S30
    z *= _MIX1
    z ^= z >> _S27
    z *= _MIX2
    z ^= z >> _S31
    return z


def sum_ids(ids: NDArray[np.int64]) -> int:
    """Sum of the hashes of `ids`, mod 2**64."""
    return int(hash_ids(ids).sum(dtype=np.uint64)) & MASK64


def sum_steps(ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Sums of hashes per step: ids int64 [steps, rows] -> uint64 [steps]."""
    sums: NDArray[np.uint64] = hash_ids(ids).sum(axis=1, dtype=np.uint64)
    return sums


def range_sum(start: int, stop: int) -> int:
    """Sum of the hashes of all ids in [start, stop), mod 2**64; O(stop - start), about 3 ns an id."""
    total = 0
    for low in range(start, stop, _CHUNK):
        total += sum_ids(np.arange(low, min(low + _CHUNK, stop), dtype=np.int64))
    return total & MASK64


@dataclass(frozen=True, slots=True)
class Entry:
    """What was consumed of one epoch: number of samples, and the sum of their hashes mod 2**64."""

    count: int = 0
    total: int = 0

    def __add__(self, other: "Entry") -> "Entry":
        return Entry(self.count + other.count, (self.total + other.total) & MASK64)

    def __sub__(self, other: "Entry") -> "Entry":
        return Entry(self.count - other.count, (self.total - other.total) & MASK64)


class Ledger:
    """Entries per epoch; a value type that is only changed by `add`."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Mapping[int, Entry] | None = None) -> None:
        """Start from `entries` (epoch -> Entry), copied."""
        self._entries: dict[int, Entry] = dict(entries or {})

    def add(self, epoch: int, count: int, total: int) -> None:
        """Count `count` samples whose hashes sum up to `total` into `epoch`."""
        self._entries[epoch] = self[epoch] + Entry(count, total & MASK64)

    def __getitem__(self, epoch: int) -> Entry:
        return self._entries.get(epoch, Entry())

    def __add__(self, other: "Ledger") -> "Ledger":
        result = Ledger(self._entries)
        for epoch, entry in other._entries.items():
            result.add(epoch, entry.count, entry.total)
        return result

    def __sub__(self, other: "Ledger") -> "Ledger":
        return Ledger({epoch: self[epoch] - other[epoch] for epoch in {*self._entries, *other._entries}})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self._nonzero() == other._nonzero()

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._nonzero().items(), key=lambda item: item[0])))

    def __repr__(self) -> str:
        return f"Ledger({self._entries!r})"

    def _nonzero(self) -> dict[int, Entry]:
        return {epoch: entry for epoch, entry in self._entries.items() if entry != Entry()}

    @property
    def epochs(self) -> list[int]:
        """The epochs that have an entry, ascending."""
        return sorted(self._entries)

    def since(self, epoch: int) -> "Ledger":
        """The entries of `epoch` and later; earlier ones were verified and need not be carried."""
        return Ledger({e: entry for e, entry in self._entries.items() if e >= epoch})

    def to_dict(self) -> dict[str, list[str]]:
        """JSON form: epoch -> [count, sum as 16 hex digits]."""
        return {str(e): [str(self[e].count), f"{self[e].total:016x}"] for e in self.epochs}

    @classmethod
    def from_dict(cls, data: Mapping[str, Iterable[str]]) -> "Ledger":
        """The inverse of `to_dict`."""
        entries = {}
        for epoch, (count, total) in ((e, tuple(v)) for e, v in data.items()):
            entries[int(epoch)] = Entry(int(count), int(total, 16))
        return cls(entries)

    def check(self, epoch: int, expected: Entry) -> None:
        """Raise LedgerMismatch unless `epoch` was consumed exactly as `expected`."""
        got = self[epoch]
        if got == expected:
            return
        if got.count > expected.count:
            what = f"{got.count - expected.count} samples were used more than once"
        elif got.count < expected.count:
            what = f"{expected.count - got.count} samples were never used"
        else:
            what = "the number is right but the samples are not: some were repeated and as many lost"
        raise LedgerMismatch(
            f"epoch {epoch}: {what} (consumed {got.count} with digest {got.total:016x}, the manifest says "
            f"{expected.count} with digest {expected.total:016x}). The model has not seen this epoch exactly once: "
            "restore an earlier checkpoint, and report this with the job's status and logs"
        )
