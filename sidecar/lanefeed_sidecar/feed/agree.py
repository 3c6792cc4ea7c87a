"""The step at which the ranks of a job leave that lives in one pod: the sidecar knows them all and need ask nobody.

Called by the hub when a trainer says that its process was told to end (`Progress.stop_wanted`), as in an eviction. Like
the control plane's (docs/adr/0004), the step lies so far ahead that every rank hears of it before it gets there. Pure.
"""

import math
from collections.abc import Iterable

__all__ = ["REASON", "stop_step"]

REASON = "preemption"
#: Progress is told once a second at least, so the fastest rank may be a second further than is known.
AHEAD_SECONDS = 2.0
AHEAD_STEPS = 2
#: Steps are known at once, by the board; seconds with the next message, up to a second later. Ten steps after the few
#: milliseconds that the first message told of are no pace.
LEAST_SECONDS = 1.0


def stop_step(ranks: Iterable[tuple[int, int, float]]) -> int:
    """A total step ahead of every rank. `ranks`: (start, consumed, seconds that this took) of each."""
    known = list(ranks)
    fastest = max((consumed for _, consumed, _ in known), default=0)
    rate = max(((consumed - start) / max(LEAST_SECONDS, seconds) for start, consumed, seconds in known), default=0.0)
    return fastest + max(AHEAD_STEPS, math.ceil(AHEAD_SECONDS * rate))
