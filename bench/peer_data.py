"""The workloads in the peers' own formats, for `make bench-peers`: `python -m bench.peer_data FORMAT WORKLOAD`.

Runs in the environment of the peer that reads the format (its writer is there). The rows are those of our Parquet
files, in the same order, in the folders where the shared adapters look. Row formats of W2 (MDS, LitData) hold its first
two shards, as in the shared specification: their writers take a minute for each, and the peers loop over them.
"""

import shutil
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import workloads

__all__ = ["FORMATS", "missing", "warm"]

#: Peer -> (format, the workloads that it is measured on); the others read the Parquet files.
FORMATS: dict[str, tuple[str, tuple[str, ...]]] = {
    "wds": ("tar", ("W4", "W1")),
    "mosaic": ("mds", ("W4", "W2", "W1")),
    "lit": ("litdata", ("W4", "W2", "W1")),
    "hf": ("hf", ("W4", "W2", "W1")),
}
SMALL_SHARDS = 2
CHUNK_BYTES = 64 << 20
#: Workloads of tokens, and those of a sequence.
_TOKENS = {"W4": 2048, "W1": 2049}


def _folder(form: str, name: str) -> Path:
    return workloads.data_root() / form / name


def missing(peer: str, name: str) -> bool:
    """Whether the peer's files of a workload have yet to be made."""
    if peer not in FORMATS:
        return False
    form, names = FORMATS[peer]
    return name not in names or not _folder(form, name).with_suffix(".done").exists()


def warm(peer: str, name: str) -> None:
    """Into the page cache, as the Parquet files are."""
    if peer in FORMATS:
        block = bytearray(16 << 20)
        for path in sorted(_folder(FORMATS[peer][0], name).rglob("*")):
            if path.is_file():
                with path.open("rb", buffering=0) as file:
                    while file.readinto(block):
                        pass


def _read(path: str) -> Any:
    import pyarrow.parquet as pq

    return pq.read_table(path)


def _rows4(shard: int) -> NDArray[np.int32]:
    """W4: the sequences of one shard."""
    column = _read(workloads.files("W4")[shard])["tokens"].combine_chunks()
    rows: NDArray[np.int32] = column.flatten().to_numpy().reshape(-1, 2048)
    return rows


def _documents(shard: int) -> Iterator[NDArray[np.int32]]:
    """W1: the documents of one shard."""
    column = _read(workloads.files("W1")[shard])["tokens"].combine_chunks()
    values, ends = column.flatten().to_numpy(), column.offsets.to_numpy()
    return (values[low:high] for low, high in pairwise(ends.tolist()))


def rows(name: str, shard: int) -> Iterator[dict[str, Any]]:
    """The samples of one shard as the row formats hold them: W2's columns side by side, by kind; W1's documents."""
    if name == "W1":
        for document in _documents(shard):
            yield {"tokens": document}
        return
    if name == "W4":
        for row in _rows4(shard):
            yield {"tokens": row}
        return
    table = _read(workloads.files("W2")[shard])
    features = np.stack([table[f"f{c}"].to_numpy() for c in range(64)], axis=1)
    ids = np.stack([table[f"i{c}"].to_numpy() for c in range(8)], axis=1)
    for x, i, y in zip(features, ids, table["label"].to_numpy(), strict=True):
        yield {"x": x, "ids": i, "y": int(y)}


def _shards(name: str) -> list[int]:
    return list(range(SMALL_SHARDS if name == "W2" else workloads.WORKLOADS[name].shards))


def _tar(name: str, target: Path) -> None:
    import webdataset as wds

    target.mkdir(parents=True)
    for shard in _shards(name):
        with wds.TarWriter(str(target / f"{shard:03d}.tar")) as tar:
            for number, row in enumerate(rows(name, shard)):
                tar.write({"__key__": f"{shard:03d}-{number:05d}", "npy": row["tokens"]})


def _mds(name: str, target: Path) -> None:
    from streaming import MDSWriter

    wide = {"x": "ndarray:float32:64", "ids": "ndarray:int64:8", "y": "int"}
    columns = {"W4": {"tokens": "ndarray:int32:2048"}, "W1": {"tokens": "ndarray:int32"}}.get(name, wide)
    with MDSWriter(out=str(target), columns=columns, size_limit=CHUNK_BYTES) as writer:
        for shard in _shards(name):
            for row in rows(name, shard):
                writer.write(row)


def lit_rows(task: tuple[str, int]) -> Iterator[Any]:
    """What LitData's writer asks for; at the top of the module, since it is sent to another process."""
    name, shard = task
    for row in rows(name, shard):
        if name in _TOKENS:
            import torch

            yield torch.from_numpy(row["tokens"].copy())
        else:
            yield row


def _litdata(name: str, target: Path) -> None:
    import litdata

    how: dict[str, Any] = {"chunk_bytes": "64MB"}
    if name in _TOKENS:
        how = {"item_loader": litdata.TokensLoader(), "chunk_size": _TOKENS[name] * 2048}
    tasks = [(name, shard) for shard in _shards(name)]
    litdata.optimize(lit_rows, tasks, str(target), num_workers=1, verbose=False, **how)


def _hf(name: str, target: Path) -> None:
    import datasets
    import pyarrow as pa

    datasets.disable_progress_bars()
    table = pa.concat_tables([_read(path) for path in workloads.files(name)])
    datasets.Dataset(table).save_to_disk(str(target), num_shards=len(workloads.files(name)))


WRITERS: dict[str, Callable[[str, Path], None]] = {"tar": _tar, "mds": _mds, "litdata": _litdata, "hf": _hf}


def main() -> None:
    """Make one format of one workload; it counts when it is whole."""
    form, name = sys.argv[1:3]
    target = _folder(form, name)
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    WRITERS[form](name, target)
    target.with_suffix(".done").touch()


if __name__ == "__main__":
    # As a module of that name, so that a writer's own processes can import what it is sent.
    from bench.peer_data import main as run

    run()
