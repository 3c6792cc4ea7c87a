"""Makes the demo's dataset: about 200 MB of Parquet in 12 files of unequal size with uneven row groups.

Rows are points around 10 random centres in 128 dimensions, so that a small model really learns something, with a
label and a short text. The same seed gives the same bytes.
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.progress import track

FILES = 12
DIMENSIONS = 128
CLASSES = 10
MEAN_ROWS = 31_000


def make(folder: Path, *, mean_rows: int = MEAN_ROWS) -> None:
    """Write the files into `folder`, unless they are there."""
    done = folder / "_SUCCESS"
    if done.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    centres = np.random.default_rng(0).standard_normal((CLASSES, DIMENSIONS), dtype=np.float32)
    words = np.array(["tiny", "small", "middle", "large", "huge", "odd", "plain", "noisy", "clear", "rare"])
    for index in track(range(FILES), description="making 200 MB of Parquet"):
        rng = np.random.default_rng([1, index])
        rows = int(mean_rows * rng.uniform(0.3, 1.7)) + index
        label = rng.integers(0, CLASSES, rows)
        points = centres[label] + 2 * rng.standard_normal((rows, DIMENSIONS), dtype=np.float32)
        table = pa.table(
            {
                "x": pa.FixedSizeListArray.from_arrays(pa.array(points.reshape(-1)), DIMENSIONS),
                "label": pa.array(label, pa.int64()),
                "text": pa.array(words[label]),
            }
        )
        with pq.ParquetWriter(folder / f"part-{index:02d}.parquet", table.schema, compression="zstd") as writer:
            at = 0
            while at < rows:
                size = int(rng.integers(700, 9_000))
                writer.write_table(table.slice(at, size), row_group_size=size)
                at += size
    done.touch()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
