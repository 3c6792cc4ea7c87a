"""The workloads: their sizes, where their files lie, and how they are made.

The same shapes, values and seeds as the shared workload specification, so that the peers' adapters find the files that
they expect when PEERS_DATA is `data_root()`. Imported by every measuring process, also in the peers' environment:
only NumPy at the top, pyarrow and rich where files are made.
"""

import io
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["WORKLOADS", "Workload", "data_root", "ensure", "files", "folder", "image", "tokens", "warm"]

SEED = 20260101
VOCAB = 50257
END_OF_DOCUMENT = VOCAB - 1

Tables = Callable[[int], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One workload: how it lies on disk, and what a batch of it is."""

    name: str
    shards: int
    rows_per_shard: int
    row_group: int
    compression: str
    #: Samples of a batch, and payload bytes of one sample as delivered.
    batch: int
    sample_bytes: int
    #: Number of the random stream; a shard's generator is seeded with [SEED, stream, shard].
    stream: int
    #: The name under which the peers' adapters deliver the same batches, and their shapes.
    peer_name: str
    shapes: frozenset[tuple[int, ...]]
    #: Rows are documents, packed into sequences of so many tokens; 0: rows are samples.
    sequence_length: int = 0
    #: Sequences of all documents, where rows are these.
    sequences: int = 0
    #: What `lanefeed.open(images=...)` is asked for.
    images: tuple[dict[str, Any], ...] = ()

    @property
    def batch_bytes(self) -> int:
        """Payload of one batch."""
        return self.batch * self.sample_bytes

    @property
    def batches_per_epoch(self) -> int:
        """Whole batches of an epoch."""
        return (self.sequences or self.shards * self.rows_per_shard) // self.batch

    @property
    def opened_with(self) -> dict[str, Any]:
        """What `lanefeed.open` is told beside files and batch."""
        packed = {"packed": {"sequence_length": self.sequence_length}} if self.sequence_length else {}
        return packed | ({"images": list(self.images)} if self.images else {})


#: W2's features as a model takes them: one matrix a type. The label is left.
MATRICES = (tuple(f"f{c}" for c in range(64)), tuple(f"i{c}" for c in range(8)))

WORKLOADS = {
    "W1": Workload(
        name="W1",
        shards=64,
        rows_per_shard=3200,
        row_group=800,
        compression="zstd",
        batch=8,
        sample_bytes=2049 * 4,
        stream=1,
        peer_name="W1",
        shapes=frozenset({(8, 2049)}),
        sequence_length=2049,
        sequences=99_100,
    ),
    "W2": Workload(
        name="W2",
        shards=32,
        rows_per_shard=131072,
        row_group=16384,
        compression="snappy",
        batch=4096,
        sample_bytes=64 * 4 + 8 * 8 + 8,
        stream=2,
        peer_name="W2d",
        shapes=frozenset({(4096,)}),
    ),
    "W3": Workload(
        name="W3",
        shards=12,
        rows_per_shard=500,
        row_group=64,
        compression="none",
        batch=64,
        sample_bytes=3 * 224 * 224,
        stream=3,
        peer_name="W3",
        shapes=frozenset({(64, 3, 224, 224)}),
        images=({"column": "image", "height": 224, "width": 224},),
    ),
    "W4": Workload(
        name="W4",
        shards=64,
        rows_per_shard=2048,
        row_group=256,
        compression="zstd",
        batch=16,
        sample_bytes=2048 * 4,
        stream=4,
        peer_name="W4",
        shapes=frozenset({(16, 2048)}),
    ),
}


def data_root() -> Path:
    """Folder of the generated files: $LANEFEED_BENCH_DATA, by default ~/.cache/lanefeed-bench."""
    return Path(os.environ.get("LANEFEED_BENCH_DATA", "~/.cache/lanefeed-bench")).expanduser() / "data"


def folder(name: str) -> Path:
    """Folder of one workload's Parquet files."""
    return data_root() / "parquet" / name


def files(name: str) -> list[str]:
    """The workload's files, sorted."""
    return sorted(str(path) for path in folder(name).glob("*.parquet"))


def warm(name: str) -> None:
    """Read every file once, so that the page cache has them and no run pays for the disk."""
    block = bytearray(16 << 20)
    for path in files(name):
        with open(path, "rb", buffering=0) as file:
            while file.readinto(block):
                pass


def _generator(*key: int) -> np.random.Generator:
    return np.random.default_rng([SEED, *key])


@lru_cache(maxsize=1)
def _vocabulary() -> NDArray[np.int32]:
    """A million tokens whose frequencies fall as 1 / rank; drawing from it is drawing from Zipf's law, quickly."""
    weights = 1.0 / np.arange(1, VOCAB) ** 1.0
    drawn = _generator(0).choice(VOCAB - 1, size=1 << 20, p=weights / weights.sum())
    return drawn.astype(np.int32)


def tokens(generator: np.random.Generator, count: int) -> NDArray[np.int32]:
    """`count` tokens, int32."""
    picked: NDArray[np.int32] = _vocabulary()[generator.integers(0, 1 << 20, count, dtype=np.int32)]
    return picked


def _table_w1(workload: Workload, shard: int) -> Any:
    """Documents of a log-normal length, median 600; each ends with END_OF_DOCUMENT, so that Concat puts nothing in."""
    import pyarrow as pa

    generator, rows = _generator(workload.stream, shard), workload.rows_per_shard
    lengths = np.maximum(2, np.exp(generator.normal(np.log(600), 1.0, rows))).astype(np.int32)
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    values = tokens(generator, int(offsets[-1]))
    values[offsets[1:] - 1] = END_OF_DOCUMENT
    return pa.table({"tokens": pa.ListArray.from_arrays(offsets, values)})


def _table_w2(workload: Workload, shard: int) -> Any:
    import pyarrow as pa

    generator, rows = _generator(workload.stream, shard), workload.rows_per_shard
    features = generator.standard_normal((rows, 64), dtype=np.float32)
    features[:, 32:] = np.round(features[:, 32:], 2)
    ids = (generator.random((rows, 8)) ** 4 * 1_000_000).astype(np.int64)
    label = (generator.random(rows) < 0.1).astype(np.int64)
    columns = {f"f{c}": np.ascontiguousarray(features[:, c]) for c in range(64)}
    columns |= {f"i{c}": np.ascontiguousarray(ids[:, c]) for c in range(8)}
    return pa.table({**columns, "label": label})


def image(number: int) -> tuple[bytes, int]:
    """Image `number` of W3 and its label: a JPEG of 256 to 400 pixels a side, 20 to 40 KB: fields, edges and grain."""
    from PIL import Image, ImageDraw

    generator = _generator(3, number)
    width, height = (int(n) for n in generator.integers(256, 401, 2))
    field = np.zeros((height, width, 3), np.float32)
    for cells, amplitude in ((4, 90), (12, 50), (40, 28), (110, 16)):
        coarse = generator.standard_normal((cells, cells, 3)).astype(np.float32)
        for channel in range(3):
            plane = Image.fromarray(coarse[..., channel]).resize((width, height), Image.Resampling.BICUBIC)
            field[..., channel] += amplitude * np.asarray(plane)
    field += 110 + 5 * generator.standard_normal((height, width, 1)).astype(np.float32)
    picture = Image.fromarray(np.clip(field, 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    for _ in range(6):
        left, top = (int(n) for n in generator.integers(0, 256, 2))
        box = (left, top, left + int(generator.integers(20, 120)), top + int(generator.integers(20, 120)))
        draw.ellipse(box, outline=tuple(int(n) for n in generator.integers(0, 255, 3)), width=3)
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=85)
    return out.getvalue(), int(generator.integers(0, 1000))


def _table_w3(workload: Workload, shard: int) -> Any:
    import pyarrow as pa

    first = shard * workload.rows_per_shard
    numbers = range(first, first + workload.rows_per_shard)
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        made = list(pool.map(image, numbers, chunksize=50))
    images, labels = zip(*made, strict=True)
    return pa.table({"image": pa.array(images, pa.binary()), "label": pa.array(labels, pa.int64())})


def _table_w4(workload: Workload, shard: int) -> Any:
    import pyarrow as pa

    rows = workload.rows_per_shard
    values = tokens(_generator(workload.stream, shard), rows * 2048)
    return pa.table({"tokens": pa.FixedSizeListArray.from_arrays(pa.array(values), 2048)})


_TABLES: dict[str, Callable[[Workload, int], Any]] = {
    "W1": _table_w1,
    "W2": _table_w2,
    "W3": _table_w3,
    "W4": _table_w4,
}


def ensure(name: str) -> None:
    """Make the workload's files that are missing, showing progress. A file appears whole or not at all."""
    import pyarrow.parquet as pq
    from rich.progress import Progress

    workload, target = WORKLOADS[name], folder(name)
    target.mkdir(parents=True, exist_ok=True)
    paths = [target / f"{shard:03d}.parquet" for shard in range(workload.shards)]
    missing = [(shard, path) for shard, path in enumerate(paths) if not path.exists()]
    if not missing:
        return
    with Progress(transient=True) as progress:
        task = progress.add_task(f"making {name} in {target}", total=len(missing))
        for shard, path in missing:
            part = path.with_suffix(".part")
            table = _TABLES[name](workload, shard)
            pq.write_table(table, part, compression=workload.compression, row_group_size=workload.row_group)
            part.rename(path)
            progress.advance(task)
    print(f"made {len(missing)} shards of {name} in {target}")
