"""What a rank's lives add up to in this session. Kept by the hub, shown by metrics."""

from dataclasses import dataclass

__all__ = ["RankTotals"]


@dataclass(slots=True)
class RankTotals:
    """Sums over a rank's former lives in this session, so that its metrics only grow."""

    wait_seconds: float = 0.0
    step_seconds: float = 0.0
    copied_batches: int = 0
    attaches: int = 0
    #: Step after the last one delivered in any life of this session.
    reached: int = 0
