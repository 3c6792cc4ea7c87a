"""One cold process, one loader, one workload: `run` starts it as `python -m bench.one SPAWNED JSON`.

Prints one line `RESULT {json}`. Modes: `rate` (warm-up, then a window), `first` (only the first batch), `save` (half an
epoch, then the state and the digests of what comes next) and `resume` (a new process goes on from that state).
"""

import json
import os
import pickle
import sys
import time
import warnings
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

from bench import measure as m
from bench import workloads
from bench.adapters import Loader, build

__all__ = ["Request"]

#: Batches whose digests must agree after a resume.
COMPARED = 20


@dataclass(slots=True, kw_only=True)
class Request:
    """What one process measures."""

    loader: str
    workload: str
    options: dict[str, Any] = field(default_factory=dict)
    mode: str = "rate"
    seconds: float = 3.0
    step: str = "none"
    step_ms: float = 0.0
    state_path: str = ""

    def to_json(self) -> str:
        """The command line's second argument."""
        return json.dumps(asdict(self))


def _check(workload: workloads.Workload, batch: Any) -> None:
    shapes = {tuple(array.shape) for array in m.leaves(batch)}
    if not workload.shapes <= shapes:
        raise SystemExit(f"{workload.name}: expected arrays of {sorted(workload.shapes)}, got {sorted(shapes)}")


def _rate(request: Request, loader: Loader) -> dict[str, Any]:
    window = m.measure(
        loader.batches,
        seconds=request.seconds,
        step=request.step,
        step_ms=request.step_ms,
        roots=lambda: [os.getpid(), *loader.helpers()],
    )
    return window.to_dict(workloads.WORKLOADS[request.workload].batch_bytes)


def _save(request: Request, loader: Loader) -> dict[str, Any]:
    """The first batch was taken already."""
    half = workloads.WORKLOADS[request.workload].batches_per_epoch // 2
    for _batch in islice(loader.batches, half - 1):
        pass
    if loader.state is None:
        raise SystemExit(f"{request.loader} has no state to save")
    state = pickle.dumps(loader.state(half))
    wanted = [m.digest(batch) for batch in islice(loader.batches, COMPARED)]
    with open(request.state_path, "wb") as file:
        pickle.dump({"state": state, "wanted": wanted}, file)
    return {"state_bytes": len(state), "half": half}


def _resume(loader: Loader, first: str, wanted: list[str]) -> dict[str, Any]:
    got = [first, *(m.digest(batch) for batch in islice(loader.batches, COMPARED - 1))]
    return {"exact": got == wanted}


def main() -> None:
    """Measure what the command line asks for."""
    warnings.filterwarnings("ignore")
    spawned, request = float(sys.argv[1]), Request(**json.loads(sys.argv[2]))
    saved: dict[str, Any] = {}
    if request.mode == "resume":
        with open(request.state_path, "rb") as file:
            saved = pickle.load(file)
    import torch  # noqa: F401  # every trainer has it imported before it builds a loader

    opened = time.monotonic()
    state = pickle.loads(saved["state"]) if saved else None
    loader = build(request.loader, request.workload, request.options, state=state)
    batch = next(loader.batches)
    first = time.monotonic()
    _check(workloads.WORKLOADS[request.workload], batch)
    got = m.digest(batch) if saved else ""
    # A ring that is freed in order (SPDL's arena) would stop for ever at a batch that is kept.
    del batch
    result: dict[str, Any] = {"first_from_spawn_s": first - spawned, "first_from_open_s": first - opened}
    if request.mode == "rate":
        result |= _rate(request, loader)
    elif request.mode == "save":
        result |= _save(request, loader)
    elif request.mode == "resume":
        result |= _resume(loader, got, saved["wanted"])
    print("RESULT " + json.dumps(result), flush=True)
    loader.close()


if __name__ == "__main__":
    main()
