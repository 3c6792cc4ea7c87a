"""Memory is bounded by the spec on skewed row groups: one of 512 MB decoded among small ones, a budget of 128 MB.

The files compress to next to nothing, so that what they say of themselves says nothing. Measured by the kernel: the
peak of the sidecar's own cgroup (page cache and tmpfs included) and the high-water mark of its RSS.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lanefeed_core.stream import StreamSpec
from lanefeed_sidecar.index import build_manifest
from support import skewed as k
from support.cgroup import memory_cgroup

#: What the design allows above arena and read-ahead.
OVERHEAD = 200 * k.MIB
#: Passes over the huge row group, at most, for each rank that reads a lane of it.
PASSES = 2
SPECS = {
    "flat": StreamSpec(seed=3, global_batch_size=4096, lanes=4, window=8192),
    "lists": StreamSpec(seed=3, global_batch_size=64, lanes=4, window=256),
    "fixed_lists": StreamSpec(seed=3, global_batch_size=64, lanes=4, window=256),
    "texts": StreamSpec(seed=3, global_batch_size=16, lanes=2, window=64),
}


def run(
    folder: Path, kind: str, *, huge: int, budget: int, ranks: int = 1, seconds: float = 300, fault: str = ""
) -> k.Fed:
    """One epoch, every value compared; the bounds hold and no row group is decoded for each window anew."""
    manifest = k.write(folder, kind, huge, 8 * k.MIB)
    spec = SPECS[kind]
    with memory_cgroup() as cgroup, k.run_folder() as place:
        pod = k.config(place, manifest, spec, ranks=ranks, budget=budget, epochs=1, decode_threads=2)
        fed = k.feed(cgroup, pod, manifest, k.KINDS[kind][0], seconds=seconds, fault=fault)
    assert not fed.errors
    assert fed.steps == sum(manifest.shard_rows) // spec.global_batch_size
    assert fed.peak <= fed.arena + budget + OVERHEAD, k.figures(fed, budget)
    assert fed.rss <= fed.arena + budget + OVERHEAD, k.figures(fed, budget)
    decoded = float(re.search(r"^lanefeed_rows_decoded_total (\S+)", fed.metrics, re.MULTILINE)[1])  # type: ignore[index]
    # A reader of a lane passes over the rows before its own once, half of the row group on average; ranks that run
    # ahead of each other read for themselves. A pass for each window would be hundreds.
    readers = max(ranks, spec.lanes)
    assert decoded <= sum(manifest.shard_rows) + PASSES * readers * (huge // k.KINDS[kind][1]), (
        "decoded again and again"
    )
    return fed


@pytest.mark.parametrize(
    ("kind", "ranks"), [pytest.param("fixed_lists", 1, marks=pytest.mark.slow), ("lists", 2), ("texts", 2)]
)
def test_a_row_group_four_times_the_budget(kind: str, ranks: int, tmp_path: Path) -> None:
    run(tmp_path / "data", kind, huge=512 * k.MIB, budget=128 * k.MIB, ranks=ranks)


@pytest.mark.slow
@pytest.mark.timeout(1300)
@pytest.mark.parametrize("kind", list(SPECS))
def test_a_row_group_of_two_gigabytes(kind: str, tmp_path: Path) -> None:
    if shutil.disk_usage(tmp_path).free < 1 << 30:
        pytest.skip("needs 1 GiB of disk")
    run(tmp_path / "data", kind, huge=2048 * k.MIB, budget=256 * k.MIB, ranks=4, seconds=1200)


#: Ranks are served in bursts, so that each is ahead of the others in turn, by more windows than are kept open.
BURSTS = """
import time
from lanefeed_sidecar.pipeline.engine import Engine
fill, calls = Engine.fill, {}
def late(self, rank, *given, **named):
    calls[rank] = calls.get(rank, 0) + 1
    if (calls[rank] // 6 + rank) % 2:
        time.sleep(0.05)
    return fill(self, rank, *given, **named)
Engine.fill = late
"""


def test_ranks_that_run_ahead_of_each_other_in_turn(tmp_path: Path) -> None:
    run(tmp_path / "data", "texts", huge=1024 * k.MIB, budget=128 * k.MIB, ranks=4, fault=BURSTS)


#: What a file says of its sizes is believed.
BELIEVES = """
from lanefeed_sidecar.formats.reader import ParquetReader, Weight
ParquetReader.weigh = lambda self, row_group, most: Weight(0, 0)
"""


def test_tooth_a_sidecar_that_believes_sizes_is_caught(tmp_path: Path) -> None:
    manifest, budget = k.write(tmp_path / "data", "texts", 512 * k.MIB, 8 * k.MIB), 128 * k.MIB
    with memory_cgroup() as cgroup, k.run_folder() as place:
        pod = k.config(place, manifest, SPECS["texts"], ranks=1, budget=budget, epochs=1, decode_threads=2)
        fed = k.feed(cgroup, pod, manifest, None, fault=BELIEVES)
    assert fed.peak > fed.arena + budget + OVERHEAD, k.figures(fed, budget)


# ---- hostile files -------------------------------------------------------------------------------------------------


def one_text(path: Path) -> None:
    """A thousand rows of the same megabyte: 500 bytes."""
    numbers = pa.array(np.zeros(1000, np.int32))
    table = pa.table({"s": pa.DictionaryArray.from_arrays(numbers, pa.array(["x" * k.MIB]))})
    pq.write_table(table, path, compression="zstd")


def one_page(path: Path) -> None:
    """320 MB in one page: 15 KB."""
    table = pa.table({"s": pa.array(["x" * k.MIB] * 320, pa.large_string())})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, data_page_size=4 << 30)


def one_row(path: Path) -> None:
    """A list of 80 million numbers among empty ones: 500 bytes."""
    values, ends = pa.array(np.zeros(80_000_000, np.int32)), np.zeros(1001, np.int32)
    ends[-1] = len(values)
    pq.write_table(pa.table({"x": pa.ListArray.from_arrays(pa.array(ends), values)}), path, compression="zstd")


@pytest.mark.parametrize(
    ("write", "window", "words"),
    [
        (one_text, 8192, "windows that the next step needs hold 1000 rows and take more than sidecar.readAheadBytes"),
        (one_page, 8, "a page at byte 4 that decompresses to 335545607 bytes, and sidecar.readAheadBytes allows"),
        (one_row, 8, "a row of 80000000 numbers, which take 320000000 bytes, and sidecar.readAheadBytes allows"),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_a_few_kilobytes_that_decode_to_more_than_the_budget(
    write: Callable[[Path], None], window: int, words: str, late: bool, tmp_path: Path
) -> None:
    """A clear error, and memory that stays within the spec until then.

    `late`: what was read ahead has failed when the rank attaches, and is read again: the first reading must be gone.
    """
    data = tmp_path / "data"
    data.mkdir()
    write(data / "a.parquet")
    assert (data / "a.parquet").stat().st_size < 50_000
    manifest, budget = build_manifest([str(data)], digest="Never").manifest, 128 * k.MIB
    spec = StreamSpec(seed=3, global_batch_size=8, lanes=1, window=window)
    with memory_cgroup() as cgroup, k.run_folder() as place:
        pod = k.config(place, manifest, spec, ranks=1, budget=budget, epochs=1, decode_threads=2)
        fed = k.feed(cgroup, pod, manifest, None, after=words if late else "")
    assert len(fed.errors) == 1
    assert words in fed.errors[0]
    assert "Traceback" not in fed.log
    assert fed.peak <= 32 * k.MIB + budget + OVERHEAD, k.figures(fed, budget)
