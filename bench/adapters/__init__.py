"""One way to build any loader: `build(loader, workload, options)` gives batches, state, helpers and a way to close.

`lanefeed` is ours. Everything else is a peer, run through the shared adapters in $LANEFEED_PEERS (`peer.py`), in the
environment that `make bench-peers` makes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Loader", "build"]


@dataclass(slots=True)
class Loader:
    """A loader that is ready to be asked for batches, without end."""

    batches: Iterator[Any]
    #: State after the batches taken so far, picklable; None where the loader has none.
    state: Callable[[int], Any] | None = None
    #: Processes outside this one's tree whose CPU counts (a sidecar).
    helpers: Callable[[], list[int]] = field(default=list)
    close: Callable[[], None] = field(default=lambda: None)


def build(loader: str, workload: str, options: dict[str, Any], *, state: Any = None) -> Loader:
    """Build `loader` for `workload`; `state` is what an earlier process saved."""
    if loader == "lanefeed":
        from bench.adapters.lanefeed_ import build as make
    else:
        from bench.adapters.peer import build as make
    return make(loader, workload, options, state=state)
