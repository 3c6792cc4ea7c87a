"""Makes hello.parquet: 4,096 rows of ten clusters in 32 dimensions, coarse enough to fit into a ConfigMap."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS, WIDTH, LABELS = 4096, 32, 10
rng = np.random.default_rng(0)
labels = rng.integers(0, LABELS, ROWS)
x = rng.normal(size=(LABELS, WIDTH))[labels] + 0.7 * rng.normal(size=(ROWS, WIDTH))
x = (np.round(x * 2) / 2).clip(-3, 3).astype(np.float32)
table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), WIDTH), "label": pa.array(labels)})
pq.write_table(table, Path(__file__).with_name("hello.parquet"), row_group_size=512, compression="zstd")
