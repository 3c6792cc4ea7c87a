"""What a rank's lives add up to in this session. Kept by lives and the hub, shown by metrics."""

import math
from dataclasses import dataclass, field, replace

from lanefeed_core.proto import lanefeed_pb2 as pb

__all__ = ["Figures", "RankTotals"]


@dataclass(frozen=True, slots=True)
class Figures:
    """What a trainer counts itself, from its start on, and tells with every Progress."""

    wait_seconds: float = 0.0
    step_seconds: float = 0.0
    copied_batches: int = 0

    def __add__(self, other: "Figures") -> "Figures":
        return Figures(
            self.wait_seconds + other.wait_seconds,
            self.step_seconds + other.step_seconds,
            self.copied_batches + other.copied_batches,
        )

    @property
    def seconds(self) -> float:
        """All that was counted, waiting and training."""
        return self.wait_seconds + self.step_seconds

    def after(self, message: pb.Progress) -> "Figures":
        """They only grow; a rogue client's NaN changes nothing."""
        return Figures(
            _grown(self.wait_seconds, message.wait_seconds),
            _grown(self.step_seconds, message.step_seconds),
            max(self.copied_batches, message.copied_batches),
        )

    def continued(self, message: pb.Progress) -> bool:
        """Whether whoever tells this can be who told these: a counter that is less began anew."""
        return (
            message.wait_seconds >= self.wait_seconds
            and message.copied_batches >= self.copied_batches
            # A step that an attach cut short is told of and then forgotten: fewer seconds of steps are no sign.
            and (message.step_seconds > 0.0 or self.step_seconds == 0.0)
        )


@dataclass(slots=True)
class RankTotals:
    """Sums over a rank's lives in this session, so that its metrics only grow."""

    figures: Figures = field(default_factory=Figures)
    attaches: int = 0
    #: Step after the last one delivered in any life of this session.
    reached: int = 0

    def with_life(self, figures: Figures, delivered: int) -> "RankTotals":
        """The same and one more life."""
        return replace(self, figures=self.figures + figures, reached=max(self.reached, delivered))


def _grown(before: float, now: float) -> float:
    return now if math.isfinite(now) and now > before else before
