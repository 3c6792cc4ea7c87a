"""Neighbouring columns of vectors of one type and shape lie in one buffer: every element of each must come through."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lanefeed_core.stream import StreamSpec
from lanefeed_sidecar.pipeline import Engine, Stats
from support.frames_oracle import Slot, config, until, view
from support.shards import index, write

ROWS = 300
RNG = np.random.default_rng(5)


@pytest.mark.parametrize("shape", [(1,), (5,), (2, 3), (4, 1, 2)])
def test_two_neighbours(tmp_path: Path, shape: tuple[int, ...]) -> None:
    data = {name: RNG.integers(0, 1 << 31, (ROWS, *shape)).astype(np.int32) for name in ("a", "b")}
    columns = {}
    for name, values in data.items():
        array: pa.Array = pa.array(values.reshape(-1))
        for size in reversed(shape):
            array = pa.FixedSizeListArray.from_arrays(array, size)
        columns[name] = array
    write(tmp_path / "d" / "a.parquet", pa.table(columns), "parquet", 70)
    spec = StreamSpec(seed=3, global_batch_size=20, lanes=3, window=16)
    engine = Engine(config(spec, epochs=1, decode_threads=1), index(tmp_path / "d"), stats=Stats())
    slot, step = Slot(engine.slot_bytes), 0
    engine.start()
    try:
        while meta := engine.fill(0, step, slot.bytes, cancelled=until()):
            ids = view(slot.bytes, meta.ids_offset, "int64", meta.steps, meta.rows)
            for column, block in zip(engine.columns, meta.blocks, strict=True):
                got = view(slot.bytes, block.values, column.dtype, meta.steps, meta.rows, *column.shape)
                assert got.tolist() == data[column.name][ids].tolist(), f"column {column.name}, step {step}"
            step += meta.steps
            slot.spoil()
    finally:
        engine.close()
    assert step == engine.total_steps
