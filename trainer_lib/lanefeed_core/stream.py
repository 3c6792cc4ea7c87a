"""The identity of a job's stream: everything that the order of samples depends on, besides the manifest.

Frozen at the first admission and carried by plan and cursor; a state whose spec differs is refused. World size,
threads, slots and timing are deliberately not here.
"""

from dataclasses import asdict, dataclass
from typing import Any

from lanefeed_core.errors import StreamError

__all__ = ["BOUNDARIES", "LAST_BATCHES", "StreamSpec", "default_lanes", "default_window"]

ALIGNED = "Aligned"
CONTINUOUS = "Continuous"
BOUNDARIES = (ALIGNED, CONTINUOUS)
DROP = "Drop"
PARTIAL = "Partial"
PAD = "Pad"
LAST_BATCHES = (DROP, PARTIAL, PAD)

#: Bounds of the automatic shuffle window, rows (design section 3).
MIN_WINDOW = 256
MAX_WINDOW = 8192
#: Where rows are so large that the open windows would not fit the budget otherwise (images).
LEAST_WINDOW = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpec:
    """The sizes and policies that fix the order of samples (G1)."""

    seed: int
    #: Samples per step over all ranks (G).
    global_batch_size: int
    #: Number of lanes (L), fixed for the job's life.
    lanes: int
    #: Rows that are shuffled together.
    window: int
    #: False: shards and rows in manifest order.
    shuffle: bool = True
    boundary: str = ALIGNED
    last_batch: str = DROP

    def __post_init__(self) -> None:
        """Refuse sizes that cannot work, naming the field of the job."""
        if not 0 <= self.seed < 1 << 64:
            raise StreamError(f"shuffle.seed is {self.seed}: it must lie in 0..2**64-1")
        if self.global_batch_size < 1:
            raise StreamError(f"batching.globalBatchSize is {self.global_batch_size}: it must be at least 1")
        if not 1 <= self.lanes <= self.global_batch_size:
            raise StreamError(
                f"batching.lanes is {self.lanes}: it must lie in 1..{self.global_batch_size} (globalBatchSize)"
            )
        if self.window < 1:
            raise StreamError(f"shuffle.window is {self.window}: it must be at least 1 row")
        if self.boundary not in BOUNDARIES:
            raise StreamError(f"epochBoundary is {self.boundary!r}: it must be one of {', '.join(BOUNDARIES)}")
        if self.last_batch not in LAST_BATCHES:
            raise StreamError(f"batching.lastBatch is {self.last_batch!r}: it must be one of {', '.join(LAST_BATCHES)}")

    @property
    def aligned(self) -> bool:
        """Epochs end at a step of their own (True), or lanes run on with no seam (False)."""
        return self.boundary == ALIGNED

    def to_dict(self) -> dict[str, Any]:
        """JSON form; the keys are the attribute names."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "StreamSpec":
        """The inverse of `to_dict`. Raises StreamError on unknown or missing keys."""
        try:
            return cls(**data)
        except TypeError as error:
            raise StreamError(f"not a stream spec: {error}") from None


def default_lanes(*, global_batch_size: int, ranks: int, row_groups: int) -> int:
    """Number of lanes for a job first admitted with `ranks` ranks: min(G, max(16, 4 D)), bounded by the data.

    No more than a quarter of the row groups (a row group that several lanes share is decoded again and again or kept
    over the whole epoch) and no fewer than the ranks.
    """
    wanted = max(16, 4 * ranks)
    bounded = min(wanted, max(1, row_groups // 4))
    return min(global_batch_size, max(bounded, ranks))


def default_window(*, lanes: int, row_bytes: float, budget_bytes: int) -> int:
    """Shuffle window in rows: the largest power of two in 256..8192 whose open windows take a quarter of the budget.

    Below 256 (down to 16) only where two of 256 a lane, and the row groups being decoded, would not fit the budget.
    """
    fits = budget_bytes / 4 / max(1.0, lanes * row_bytes)
    window = MIN_WINDOW
    while window * 2 <= min(fits, MAX_WINDOW):
        window *= 2
    if window <= fits * 3 / 2:
        return window
    while window > max(LEAST_WINDOW, fits):
        window //= 2
    return window
