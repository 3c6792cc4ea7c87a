"""Starting before the configuration is there: `lanefeed.open` indexes and starts the sidecar at the same time.

Half of a sidecar's start is loading pyarrow and gRPC. With `--await PID` it does that first and then waits until its
configuration appears (written whole, by a rename), or until whoever started it is gone. Called by `main` only.
"""

import importlib
import os
import time
from pathlib import Path

from lanefeed_sidecar.errors import ConfigError

__all__ = ["await_file", "load"]

#: An index takes at most ten minutes for `lanefeed.open`; then it gives up and ends us.
AWAIT_SECONDS = 660.0
POLL_SECONDS = 0.005


def load() -> None:
    """Everything that a serving sidecar needs, now."""
    for name in ("pipeline.engine", "feed.server", "feed.service", "report", "metrics.collector"):
        importlib.import_module(f"lanefeed_sidecar.{name}")


def await_file(path: Path, starter: int, *, seconds: float = AWAIT_SECONDS) -> None:
    """Until the file exists. Raises ConfigError where our parent `starter` (a pid) has ended, or after `seconds`."""
    end = time.monotonic() + seconds
    while not path.exists():
        if os.getppid() != starter:
            raise ConfigError(f"whoever started this sidecar has ended and left no configuration at {path}")
        if time.monotonic() > end:
            raise ConfigError(f"no configuration appeared at {path} within {seconds:g} s")
        time.sleep(POLL_SECONDS)
