"""Files of documents of tokens, and the sequences that they must become: packed here row group by row group."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lanefeed_core.manifest import Manifest
from lanefeed_core.pack import Packed, pack
from lanefeed_core.packing import Packing
from support.packed import Documents

__all__ = ["Lists", "expected", "lists", "write_documents"]

Lists = list[list[int] | None]


def lists(seed: int, count: int, longest: int = 30, *, empty: bool = True) -> Lists:
    """Documents of 0 (or 1) to `longest` tokens; with `empty` some are null."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0 if empty else 1, longest + 1, count)
    return [
        None if empty and number % 13 == 5 else rng.integers(1, 30000, length).tolist()
        for number, length in enumerate(lengths.tolist())
    ]


def write_documents(
    path: Path, documents: Lists, *, group: int = 16, dtype: str = "int32", kind: str = "parquet", **options: object
) -> Path:
    """One file with a column `tokens` of lists, in row groups of `group` documents."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"tokens": pa.array(documents, pa.list_(pa.type_for_alias(dtype)))})
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=group, **options)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=group)
    return path


def expected(manifest: Manifest, files: dict[str, Lists], group: int, packing: Packing) -> list[Packed]:
    """What each row group of the manifest must give, from the lists that its files were written from."""
    found = []
    for shard in manifest.shards:
        documents = files[shard.path]
        for at in range(0, len(documents), group):
            docs = Documents.of([one or [] for one in documents[at : at + group]], packing.dtype)
            found.append(pack(docs.values, docs.offsets, packing))
    return found
