"""Peers, through the shared adapters: nothing of them is copied here.

$LANEFEED_PEERS names their folder (default ../shared/bench/peers beside the repository); PEERS_DATA must name our data
before their modules are imported.
"""

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import workloads
from bench.adapters import Loader

__all__ = ["build", "peers_folder"]

#: Our name of a peer -> the shared adapter's module.
MODULES = {
    "tdnodes": "tdnodes",
    "spdl": "spdl_",
    "sdl": "torchdl",
    "torchdl": "torchdl",
    "wds": "wds_",
    "mosaic": "mosaic",
    "lit": "lit",
    "hf": "hf",
    "fkat": "fkat_",
}
#: Whose files hold W2's columns side by side by kind: features, ids and label, three arrays a batch instead of 73.
BLOCKS = {"mosaic", "lit"}


def peers_folder() -> Path:
    """Where the shared adapters lie."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "bench" / "peers"
    return Path(os.environ.get("LANEFEED_PEERS", beside))


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def build(loader: str, workload: str, options: dict[str, Any], *, state: Any = None) -> Loader:
    """Build a peer for `workload`. `options` are the adapter's own."""
    os.environ["PEERS_DATA"] = str(workloads.data_root())
    sys.path.insert(0, str(peers_folder()))
    module = importlib.import_module("adapters." + MODULES[loader])
    name = workload if loader in BLOCKS else workloads.WORKLOADS[workload].peer_name
    made = module.build(name, dict(options), state=state)
    iterable, get_state, close = (*made, None, None)[:3] if isinstance(made, tuple) else (made, None, None)
    found = Loader(_endless(iterable))
    if get_state:
        found.state = lambda taken: get_state(None, taken)
    if close:
        found.close = close
    return found
