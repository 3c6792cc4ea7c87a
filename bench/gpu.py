"""What batches cost a GPU: is the copy to the device hidden behind the step, and do the bits arrive?

`python bench/gpu.py` makes its own data (134 MB), takes under five minutes and needs nothing else. Ways of getting a
batch onto the device, in interleaved rounds beside a step whose batch is there already: Lanefeed with the pinned arena,
Lanefeed with staging buffers (as where pinning is refused), and plain `tensor.to(device)` of Lanefeed's host batches,
from pageable memory, in the training step. Where there is no GPU it says so and measures nothing; `--dry-run` runs
every line that needs none.
"""

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

__all__ = ["WAYS", "make_data", "run"]

SHARDS, ROWS, WIDTH, BATCH = 8, 2048, 2048, 64
SEED = 3
#: Ways of getting a batch onto the device.
WAYS = ("pinned", "staged", "pageable")
COMPARED = 200


def make_data(folder: Path) -> str:
    """Parquet shards of fixed-size lists of int32; the glob that names them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(SEED)
    for number in range(SHARDS):
        flat = pa.array(rng.integers(0, 50257, ROWS * WIDTH, dtype=np.int32))
        table = pa.table({"tokens": pa.FixedSizeListArray.from_arrays(flat, WIDTH)})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=256, compression="lz4", use_dictionary=False)
    return str(folder / "*.parquet")


class _NeverPinned:
    """The CUDA device as it is where the driver refuses to pin the arena."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def register(self, arena: Any) -> None:
        """Refused."""

    def copy(self, source: Any) -> Any:
        """Through a staging buffer."""
        return self._device.copy(source)

    def cut(self, *args: Any) -> Any:
        """As the device does."""
        return self._device.cut(*args)

    def current(self) -> Any:
        """As the device does."""
        return self._device.current()


def _open(uri: str, way: str, device: str) -> Any:
    import lanefeed

    target: Any = None
    if device != "cpu" and way == "pinned":
        target = device
    elif device != "cpu" and way == "staged":
        from lanefeed._device.cuda import CudaDevice

        target = _NeverPinned(CudaDevice(device))
    return lanefeed.open(uri, global_batch_size=BATCH, seed=SEED, device=target, tensors="torch")


def _batches(loader: Any, way: str, device: str) -> Iterator[Any]:
    for _ in loader.epochs():
        for batch in loader:
            tokens = batch["tokens"]
            yield tokens.to(device) if way == "pageable" else tokens


def _exact(uri: str, way: str, device: str) -> bool:
    """Whether `COMPARED` batches on the device hold the bits that a host loader gives."""
    import torch

    with _open(uri, "pageable", "cpu") as host, _open(uri, way, device) as other:
        pairs = zip(_batches(host, "host", "cpu"), _batches(other, way, device), strict=False)
        for number, (wanted, got) in enumerate(pairs):
            if not torch.equal(wanted, got.cpu()):
                return False
            if number + 1 == COMPARED:
                return True
    return False


def _step(device: str, milliseconds: float) -> Callable[[Any], None]:
    """A training step of about `milliseconds` of matrix products that reads the whole batch."""
    import torch

    size = 4096 if device != "cpu" else 256
    weights = torch.randn(size, size, device=device)

    def once() -> None:
        torch.mm(weights, weights)

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize()

    for _ in range(5):
        once()
    wait()
    began = time.monotonic()
    for _ in range(20):
        once()
    wait()
    repeat = max(1, round(milliseconds / 1e3 / ((time.monotonic() - began) / 20)))
    total = torch.zeros((), dtype=torch.int64, device=device)

    def step(tokens: Any) -> None:
        total.add_(tokens.sum())
        for _ in range(repeat):
            once()
        # As an optimizer's step that reads the loss: the next batch is asked for when this one is done.
        wait()

    return step


def _rate(batches: Iterator[Any], step: Callable[[Any], None], steps: int) -> float:
    """Milliseconds a step."""
    for _ in range(20):
        step(next(batches))
    began = time.monotonic()
    for _ in range(steps):
        step(next(batches))
    return 1e3 * (time.monotonic() - began) / steps


def run(device: str, *, rounds: int, steps: int, milliseconds: float, folder: Path) -> dict[str, Any]:
    """All numbers: milliseconds a step by way, what data adds to a step in percent, and whether the bits arrived."""
    import torch

    uri = make_data(folder)
    step = _step(device, milliseconds)
    # What a step costs whose batch is there already.
    there = torch.zeros((BATCH, WIDTH), dtype=torch.int32, device=device)
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        found.setdefault("none", []).append(_rate(itertools.repeat(there), step, steps))
        for way in WAYS:
            with _open(uri, way, device) as loader:
                found.setdefault(way, []).append(_rate(_batches(loader, way, device), step, steps))
    numbers: dict[str, Any] = {f"step_ms.{way}": round(median(values), 3) for way, values in found.items()}
    for way in WAYS:
        added = [100 * (mine / bare - 1) for mine, bare in zip(found[way], found["none"], strict=True)]
        numbers[f"added_percent.{way}"] = round(median(added), 2)
        numbers[f"exact.{way}"] = _exact(uri, way, device)
    return numbers


def main() -> None:
    """Measure, print a table and a line of JSON; exit 1 where a bit was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--out", type=Path, default=None, help="write the numbers to this file too")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU: proves that the script runs, nothing else")
    args = parser.parse_args()
    import torch

    if not torch.cuda.is_available() and not args.dry_run:
        print("no GPU here (torch.cuda.is_available() is False): nothing was measured")
        print(json.dumps({"gpu": False}))
        return
    device = "cpu" if args.dry_run else "cuda:0"
    with tempfile.TemporaryDirectory() as folder:
        numbers = run(device, rounds=args.rounds, steps=args.steps, milliseconds=args.step_ms, folder=Path(folder))
    numbers |= {"gpu": not args.dry_run, "device": "cpu" if args.dry_run else torch.cuda.get_device_name(0)}
    for way in ("none", *WAYS):
        added = numbers.get(f"added_percent.{way}")
        tail = f"  +{added:.2f} %  bits {'equal' if numbers[f'exact.{way}'] else 'DIFFER'}" if added is not None else ""
        print(f"{way:9s} {numbers[f'step_ms.{way}']:8.3f} ms a step{tail}")
    print(json.dumps(numbers))
    if args.out:
        args.out.write_text(json.dumps(numbers, indent=1) + "\n")
    if not all(numbers[f"exact.{way}"] for way in WAYS):
        sys.exit("a batch on the device differs from the host's")


if __name__ == "__main__":
    main()
