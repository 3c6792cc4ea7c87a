"""Blocks of slabs: whose they are, that none is lost, and that memory goes back to the system."""

import gc

import numpy as np

from lanefeed_core.layout import Column
from lanefeed_sidecar.pipeline import slabs
from lanefeed_sidecar.pipeline.pool import BufferPool
from lanefeed_sidecar.pipeline.slabs import Slabs, wide

COLUMNS = (
    Column("id", "int64"),
    Column("a", "int32", (1024,)),
    Column("s", "uint8", kind="ragged"),
    Column("b", "int16", (512,)),
)
ROWS = 64


def make(count: int = 3) -> Slabs:
    return Slabs(wide(COLUMNS), ROWS, count)


def test_wide_columns_are_fixed_ones_of_many_bytes() -> None:
    assert list(wide(COLUMNS)) == [1, 3]


def test_blocks_of_one_column_do_not_overlap() -> None:
    made = make()
    blocks = [made.take() for _ in range(3)]
    assert made.take() is None
    for block in blocks:
        assert block is not None
        for index in (1, 3):
            rows = block.rows(index, ROWS)
            assert rows.shape == (ROWS, *COLUMNS[index].shape)
            rows[:] = block.number + 1
    for block in blocks:
        assert block is not None
        for index in (1, 3):
            assert (made.arrays[index][block.first : block.first + ROWS] == block.number + 1).all()


def test_the_block_given_back_last_is_taken_first() -> None:
    made = make()
    first, second = made.take(), made.take()
    assert first is not None
    assert second is not None
    made.give(first)
    made.give(second)
    assert made.nbytes == 2 * made.block_bytes == 2 * ROWS * (4096 + 1024)
    taken = made.take()
    assert taken is not None
    assert taken.number == second.number


def test_a_block_that_dies_with_its_window_is_found_again() -> None:
    made = make(1)
    block = made.take()
    assert made.take() is None
    del block
    gc.collect()
    assert made.nbytes == made.block_bytes
    assert made.take() is not None


def test_freed_memory_goes_back_to_the_system() -> None:
    made = make()
    block = made.take()
    assert block is not None
    block.rows(1, ROWS)[:] = 7
    made.give(block)
    assert made.free()
    assert made.nbytes == 0
    assert not made.free()
    # Pages that were given back are zeros when they are touched again; those at the ends may belong to neighbours too.
    assert np.count_nonzero(made.arrays[1]) <= 2 * 4096 // 4


def test_the_pool_keeps_no_more_than_its_limit() -> None:
    size = ROWS * (4096 + 1024)
    pool = BufferPool(2 * size)
    blocks = [pool.block(COLUMNS, ROWS) for _ in range(4)]
    for block in blocks:
        assert block is not None
        pool.give_block(block)
    assert pool.nbytes == 2 * size
    pool.trim(size)
    assert pool.nbytes == size
    pool.trim(0)
    assert pool.nbytes == 0


def test_streams_without_wide_columns_have_none() -> None:
    assert BufferPool(1 << 20).block(COLUMNS[:1], ROWS) is None
    assert slabs.wide(COLUMNS[:1]) == {}
