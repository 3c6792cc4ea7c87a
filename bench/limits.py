"""What the machine does without a loader: the other side of our ratios.

`python -m bench.limits SPAWNED JSON` measures `decode`: pyarrow reading the workload's row groups with a thread per
shard, memory-mapped, no threads inside a row group, nothing delivered; W3's images are decoded by the sidecar's own
decoder. `python -m bench.limits` alone prints memcpy and page faults too. It counts in the same way as `measure`: one
second of warm-up, then a window.
"""

import itertools
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from bench import measure as m
from bench import workloads
from bench.one import Request

__all__ = ["decode", "memory_limits"]


class Pixels:
    """W3: the sidecar's own decoder, from the bytes of a row group into one place that is used again and again."""

    def __init__(self, images: tuple[dict[str, Any], ...]) -> None:
        from lanefeed_core.images import image_columns
        from lanefeed_sidecar.formats.images import ImageDecoder

        self._decoders = [ImageDecoder(spec, 128 << 20) for spec in image_columns(images)]

    def decode(self, table: Any) -> Iterator[int]:
        """Bytes of each image, as it was decoded."""
        for decoder in self._decoders:
            out = np.empty(decoder.spec.shape, np.uint8)
            for data in table[decoder.spec.column].to_pylist():
                decoder.decode(data, out)
                yield out.nbytes


@dataclass(slots=True)
class _Decoded:
    """What the decoding threads have done so far."""

    paths: "itertools.cycle[str]"
    images: "Pixels | None" = None
    stop: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    bytes: int = 0

    def run(self) -> None:
        """Decode whole shards, one after the other, until stopped."""
        import pyarrow.parquet as pq

        while not self.stop.is_set():
            with self.lock:
                path = next(self.paths)
            # One reader per thread: a ParquetFile must not be shared.
            with pq.ParquetFile(path, memory_map=True) as file:
                for group in range(file.num_row_groups):
                    table = file.read_row_group(group, use_threads=False)
                    for size in self.images.decode(table) if self.images is not None else [table.nbytes]:
                        with self.lock:
                            self.bytes += size
                        if self.stop.is_set():
                            return


def decode(request: Request) -> dict[str, float]:
    """MB/s of decoded values with `options["threads"]` threads, and the machine's noise meanwhile."""
    images = workloads.WORKLOADS[request.workload].images
    work = _Decoded(itertools.cycle(workloads.files(request.workload)), Pixels(images) if images else None)
    threads = [threading.Thread(target=work.run) for _ in range(request.options["threads"])]
    for thread in threads:
        thread.start()
    time.sleep(m.WARM_UP_SECONDS)
    noise, cpu, start, before = m.Noise.now(), m.tree_cpu([os.getpid()]), time.monotonic(), work.bytes
    time.sleep(request.seconds)
    wall, after, used = time.monotonic() - start, work.bytes, m.tree_cpu([os.getpid()]) - cpu
    found = m.noise_since(noise, used)
    work.stop.set()
    for thread in threads:
        thread.join()
    gigabytes = (after - before) / 1e9
    return {"mb_s": gigabytes * 1e3 / wall, "cores": used / wall, "cpu_s_per_gb": used / gigabytes, **found}


def _gigabytes_per_second(action: Callable[[], None], size: int, tries: int = 5) -> float:
    action()
    rates = []
    for _ in range(tries):
        start = time.perf_counter()
        action()
        rates.append(size / 1e9 / (time.perf_counter() - start))
    return median(rates)


def memory_limits() -> dict[str, float]:
    """GB/s of memcpy, of filling reused and fresh memory."""
    size = 256 << 20
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    batch = 16 * 2048 * 4

    def fresh() -> None:
        with mmap.mmap(-1, size) as memory:
            np.frombuffer(memory, np.uint8)[::4096].fill(1)

    def reused() -> None:
        for start in range(0, size, batch):
            np.copyto(target[:batch], source[start : start + batch])

    return {
        "memcpy_gb_s": _gigabytes_per_second(lambda: np.copyto(target, source), size),
        "batch_copy_gb_s": _gigabytes_per_second(reused, size),
        "fresh_memory_gb_s": _gigabytes_per_second(fresh, size),
    }


def main() -> None:
    """Measure decoding as asked for on the command line, or everything."""
    if len(sys.argv) > 2:
        print("RESULT " + json.dumps(decode(Request(**json.loads(sys.argv[2])))), flush=True)
        return
    for name, value in memory_limits().items():
        print(f"{name:24s} {value:8.2f}")
    for name in workloads.WORKLOADS:
        workloads.ensure(name)
        workloads.warm(name)
        for threads in (1, os.cpu_count() or 1):
            request = Request(loader="decode", workload=name, options={"threads": threads}, seconds=2.0)
            print(f"decode {name}, {threads} threads {decode(request)['mb_s']:8.1f} MB/s")


if __name__ == "__main__":
    main()
