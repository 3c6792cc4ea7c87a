"""Documents of token numbers, of lengths as in real corpora: a few are a hundred times as long as most."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

VOCABULARY = 256
rng = np.random.default_rng(0)
Path("data").mkdir(exist_ok=True)
for shard in range(4):
    lengths = np.exp(rng.normal(4.0, 1.0, 400)).astype(int)
    documents = [rng.integers(1, VOCABULARY, length) for length in lengths]
    table = pa.table({"tokens": pa.array(documents, pa.list_(pa.int32()))})
    pq.write_table(table, f"data/{shard}.parquet", row_group_size=100)
