"""Wide tables: columns that go in blocks come out as their rows, whatever pieces, nulls and types lie among them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lanefeed_core.manifest import Manifest
from lanefeed_core.stream import StreamSpec
from lanefeed_sidecar.formats import Chunk
from lanefeed_sidecar.formats.blocks import Blocks
from lanefeed_sidecar.pipeline import Engine, Stats, slabs
from lanefeed_sidecar.pipeline.stacks import Stack
from support.frames_oracle import Slot, config, until, view
from support.shards import index, write

#: Every value says which row and column it is of; the last bits make NaNs and -0.0 of some.
RNG = np.random.default_rng(11)
ROWS = 700
COLUMNS: dict[str, np.ndarray] = {
    **{f"f{c}": RNG.integers(0, 1 << 32, ROWS, np.uint32).view(np.float32) for c in range(6)},
    **{f"n{c}": RNG.integers(0, 1 << 31, ROWS).astype(np.int32) for c in range(5)},
    **{f"i{c}": RNG.integers(0, 1 << 62, ROWS) for c in range(4)},
    "pair0": RNG.integers(0, 9, ROWS).astype(np.int16),
    "pair1": RNG.integers(0, 9, ROWS).astype(np.int16),
}
COLUMNS["f0"][::3] = np.float32(-0.0)
#: Of one column of a run, and in some row groups only.
NULLS = {"n2": (np.arange(ROWS) % 13 == 0) & (np.arange(ROWS) < 300)}


def shards(folder: Path, kind: str) -> Manifest:
    arrays = {name: pa.array(v, mask=NULLS.get(name)) for name, v in COLUMNS.items()}
    table = pa.table(arrays)
    write(folder / f"a.{kind}", table.slice(0, 410), kind, 100)
    write(folder / f"b.{kind}", table.slice(410), kind, 33)
    return index(folder)


def read_epoch(manifest: Manifest, window: int, budget: int = 1 << 22) -> None:
    """Compare one epoch, bit for bit."""
    spec = StreamSpec(seed=3, global_batch_size=20, lanes=3, window=window, last_batch="Pad")
    engine = Engine(config(spec, epochs=1, read_ahead_bytes=budget, decode_threads=2), manifest, stats=Stats())
    slot, step, seen = Slot(engine.slot_bytes), 0, 0
    engine.start()
    try:
        while meta := engine.fill(0, step, slot.bytes, cancelled=until()):
            ids = view(slot.bytes, meta.ids_offset, "int64", meta.steps, meta.rows)
            for column, block in zip(engine.columns, meta.blocks, strict=True):
                got = view(slot.bytes, block.values, column.dtype, meta.steps, meta.rows)
                want, null = COLUMNS[column.name][ids], NULLS.get(column.name, np.zeros(ROWS, bool))[ids]
                want[null] = 0
                assert got.tobytes() == want.tobytes(), f"column {column.name}, step {step}"
                if block.validity:
                    valid = view(slot.bytes, block.validity, "bool", meta.steps, meta.rows)
                    assert (valid == ~null).all(), column.name
                else:
                    assert not null.any(), column.name
            step, seen = step + meta.steps, seen + meta.steps * meta.rows
            slot.spoil()
    finally:
        engine.close()
    assert seen >= ROWS


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("window", [1, 16, 33, 50, 64, 1024])
@pytest.mark.parametrize("wide", [slabs.WIDE_BYTES, 8, 1])
def test_every_column_is_that_of_its_row(
    kind: str, window: int, wide: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`wide`: which columns are gathered by whole rows: none, the int64, all."""
    monkeypatch.setattr(slabs, "WIDE_BYTES", wide)
    read_epoch(shards(tmp_path / "d", kind), window)


def test_row_groups_that_are_streamed(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    write(
        folder / "a.parquet",
        pa.table({name: pa.array(v, mask=NULLS.get(name)) for name, v in COLUMNS.items()}),
        "parquet",
    )
    read_epoch(index(folder), 32, budget=60_000)


def spoil(monkeypatch: pytest.MonkeyPatch, how: Callable[[np.ndarray], None]) -> None:
    """Have the decoder change each block that it gives."""
    real = Blocks.read

    def read(self: Blocks, *args: Any) -> dict[int, np.ndarray]:
        found = {start: block.copy() for start, block in real(self, *args).items()}
        for block in found.values():
            how(block)
        return found

    monkeypatch.setattr(Blocks, "read", read)


def test_tooth_two_rows_of_a_block_that_are_swapped_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def swap(block: np.ndarray) -> None:
        block[1, :2] = block[1, 1::-1].copy()

    spoil(monkeypatch, swap)
    with pytest.raises(AssertionError, match="column f1"):
        read_epoch(shards(tmp_path / "d", "parquet"), 64)


def test_tooth_one_bit_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flip(block: np.ndarray) -> None:
        block.view(np.uint8)[3, 5] ^= 1

    spoil(monkeypatch, flip)
    with pytest.raises(AssertionError, match="column f3"):
        read_epoch(shards(tmp_path / "d", "parquet"), 64)


def test_tooth_a_shuffle_that_is_off_by_one_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gather, shuffle = Stack._gather, Stack.shuffle
    monkeypatch.setattr(Stack, "_gather", lambda self, chunk, order: gather(self, chunk, np.roll(order, 1)))
    monkeypatch.setattr(Stack, "shuffle", lambda self, order, buffer: shuffle(self, np.roll(order, 1), buffer))
    with pytest.raises(AssertionError, match="column f0"):
        read_epoch(shards(tmp_path / "d", "parquet"), 64)


def test_blocks_are_made_where_they_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above would pass without any: three runs of enough columns, of which one has nulls at first."""
    chunks: list[Chunk] = []
    real = Chunk.__post_init__

    def note(self: Chunk) -> None:
        real(self)
        chunks.append(self)

    monkeypatch.setattr(Chunk, "__post_init__", note)
    read_epoch(shards(tmp_path / "d", "parquet"), 64)
    found = [set(chunk.blocks) for chunk in chunks]
    assert {0, 6, 11} in found
    assert {0, 11} in found
