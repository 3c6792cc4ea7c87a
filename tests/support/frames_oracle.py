"""The oracle of the data plane: random datasets and topologies, and what every byte of every frame must be.

All values of a row follow from its sample id: a row that came to a wrong place, or a value to a wrong row, shows.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from lanefeed_core import ledger
from lanefeed_core.cursor import Cursor
from lanefeed_core.manifest import Manifest
from lanefeed_core.plan import Plan
from lanefeed_core.podconfig import PodConfig
from lanefeed_core.slices import rank_slice
from lanefeed_core.stream import StreamSpec
from lanefeed_sidecar.errors import SidecarError
from lanefeed_sidecar.index import build_manifest
from lanefeed_sidecar.pipeline import Engine, FrameMeta, Stats

DEADLINE_SECONDS = 100.0


def text(i: int) -> str | None:
    """The string of sample i: null for every fifth, of lengths from 0 to 17 letters more than its number."""
    return None if i % 5 == 0 else "x" * (i % 17) + str(i)


def tokens(i: int) -> list[int]:
    """The list of sample i; empty for every eleventh."""
    return [i * 3 + j for j in range(i % 11)]


def table(first: int, rows: int) -> pa.Table:
    """Rows [first, first + rows) of the dataset: fixed, nullable, fixed-size list, string and list columns."""
    ids = np.arange(first, first + rows)
    flat = pa.array(np.repeat(ids, 6).astype(np.int32))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "vector": pa.FixedSizeListArray.from_arrays(flat, 6),
            "small": pa.array([i % 120 if i % 7 else None for i in ids.tolist()], pa.int8()),
            "text": pa.array([text(i) for i in ids.tolist()], pa.string()),
            "tokens": pa.array([tokens(i) for i in ids.tolist()], pa.list_(pa.int32())),
        }
    )


def write_shards(folder: Path, shards: list[tuple[int, int]], kind: str = "parquet") -> Manifest:
    """Write (rows, rows of a row group) shards and index them."""
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for number, (rows, group) in enumerate(shards):
        data, path = table(first, rows), folder / f"{number:03d}.{kind}"
        if kind == "parquet":
            pq.write_table(data, path, row_group_size=group, write_page_checksum=True)
        else:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, data.schema) as writer:
                writer.write_table(data, max_chunksize=group)
        first += rows
    return build_manifest([str(folder)], digest="Never").manifest


def config(spec: StreamSpec, *, replicas: int = 1, ranks: int = 1, pod: int = 0, **more: object) -> PodConfig:
    """A pod configuration with what tests need."""
    given = {"job": "test", "job_uid": "u", "pod_uid": "p", "manifest_path": "", "run_dir": "", **more}
    plan = Plan(1, replicas, ranks, Cursor(), allow_uneven=True)
    return PodConfig(pod_index=pod, plan=plan, spec=spec, **given)  # type: ignore[arg-type]


@dataclass
class Slot:
    """A slot with guard bytes behind it: a frame that writes past its end is caught."""

    size: int
    memory: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.memory = np.zeros(self.size + 4096, np.uint8)
        self.spoil()

    @property
    def bytes(self) -> np.ndarray:
        return self.memory[: self.size]

    def spoil(self) -> None:
        """Fill with garbage, so that what a frame does not write is never right by chance."""
        self.memory[:] = 0xAB

    def check_guard(self) -> None:
        assert (self.memory[self.size :] == 0xAB).all(), "the frame was written past the slot's end"
        assert (self.memory[:64] == 0xAB).all(), "the slot's header belongs to the feed"


@dataclass
class Reader:
    """Reads frames as the trainer does and compares all of it with the reference order."""

    engine: Engine
    world: int
    _batches: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    def reference(self, rank: int, total: int) -> tuple[np.ndarray, np.ndarray]:
        """Sample ids and mask of the rank's batch at a total step, from `Lanes.batch` alone."""
        lanes = self.engine.lanes
        at = Cursor.from_total(total, lanes.steps_per_epoch or 1, aligned=lanes.spec.aligned)
        if (at.epoch, at.step) not in self._batches:
            self._batches[at.epoch, at.step] = lanes.batch(at.epoch, at.step)
        ids, mask = self._batches[at.epoch, at.step]
        low, high = rank_slice(len(ids), self.world, rank)
        return ids[low:high], mask[low:high]

    def check(self, rank: int, total: int, meta: FrameMeta, slot: Slot) -> None:
        """Compare a whole frame; AssertionError names the step."""
        slot.check_guard()
        assert meta.first_step == total
        assert meta.steps >= 1
        for k in range(meta.steps):
            self._check_step(rank, total + k, k, meta, slot.bytes)

    def _check_step(self, rank: int, total: int, k: int, meta: FrameMeta, raw: np.ndarray) -> None:
        want, mask = self.reference(rank, total)
        rows = meta.rows
        ids = view(raw, meta.ids_offset, "int64", meta.steps, rows)[k]
        assert ids.tolist() == want.tolist(), f"rank {rank}, step {total}: other samples or another order"
        got = view(raw, meta.mask_offset, "bool", meta.steps, rows)[k] if meta.mask_offset else np.ones(rows, bool)
        assert got.tolist() == mask.tolist(), f"step {total}: wrong mask"
        lanes = self.engine.lanes
        at = Cursor.from_total(total, lanes.steps_per_epoch or 1, aligned=lanes.spec.aligned)
        assert meta.samples == int(mask.sum())
        assert meta.global_samples == lanes.step_samples(at.step)
        self._check_sums(rank, total, k, meta, want[mask], at.epoch)
        for column, block in zip(self.engine.columns, meta.blocks, strict=True):
            valid = np.ones(rows, bool)
            if block.validity:
                valid = view(raw, block.validity, "bool", meta.steps, rows)[k]
            if column.ragged:
                offsets = view(raw, block.offsets, "int64", meta.steps, rows + 1)[k]
                size = np.dtype(column.dtype).itemsize
                low, high = (block.values + size * block.starts[k + i] for i in (0, 1))
                values = raw[low:high].view(column.dtype)
                assert offsets[0] == 0
                assert offsets[-1] == len(values)
                rows_of = [values[offsets[i] : offsets[i + 1]] for i in range(rows)]
                self._check_ragged(column.name, want.tolist(), rows_of, valid)
            else:
                values = view(raw, block.values, column.dtype, meta.steps, rows, *column.shape)[k]
                self._check_fixed(column.name, want, values, valid)

    def _check_sums(self, rank: int, total: int, k: int, meta: FrameMeta, ids: np.ndarray, epoch: int) -> None:
        parts = [s for s in meta.epoch_sums if s.step == k]
        if parts:
            assert sum(s.count for s in parts) == len(ids)
            assert sum(s.total for s in parts) & ledger.MASK64 == ledger.sum_ids(ids)
            laps = self._laps(rank, total)
            for part in parts:
                mine = ids[laps == part.epoch]
                assert (len(mine), ledger.sum_ids(mine)) == (part.count, part.total)
            return
        assert meta.sums[k] == ledger.sum_ids(ids)
        assert meta.epoch == epoch

    def _laps(self, rank: int, total: int) -> np.ndarray:
        """Continuous: the lanes' own epoch of each row of the rank's batch."""
        lanes = self.engine.lanes
        runs = [run for lane in range(lanes.spec.lanes) for run in lanes.runs(lane, 0, total, 1)]
        laps = np.concatenate([np.full(run.stop - run.start, run.epoch) for run in runs])
        low, high = rank_slice(len(laps), self.world, rank)
        return laps[low:high]

    def _check_fixed(self, name: str, ids: np.ndarray, values: np.ndarray, valid: np.ndarray) -> None:
        if name == "small":
            assert valid.tolist() == (ids % 7 != 0).tolist()
            assert values.tolist() == np.where(valid, ids % 120, 0).tolist()
            return
        assert valid.all()
        wanted = np.repeat(ids, 6).reshape(-1, 6) if name == "vector" else ids
        assert values.tolist() == wanted.tolist(), f"column {name} holds rows of other samples"

    def _check_ragged(self, name: str, ids: list[int], rows: list[np.ndarray], valid: np.ndarray) -> None:
        if name == "tokens":
            assert [r.tolist() for r in rows] == [tokens(i) for i in ids]
            return
        assert valid.tolist() == [text(i) is not None for i in ids]
        assert [bytes(r).decode() for r in rows] == [text(i) or "" for i in ids]


def view(raw: np.ndarray, offset: int, dtype: str, *shape: int) -> np.ndarray:
    """Bytes of a slot as an array."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return raw[offset : offset + size].view(dtype).reshape(shape)


def until(seconds: float = DEADLINE_SECONDS) -> Callable[[], bool]:
    """A `cancelled` that becomes true after a while, so that no test hangs."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def drain(engine: Engine, rank: int, slot: Slot, reader: Reader, start: int = 0, stop: int = 0) -> int:
    """Read and check a rank's stream up to `stop` (or its end); returns the step reached."""
    at = start
    while not stop or at < stop:
        slot.spoil()
        meta = engine.fill(rank, at, slot.bytes, cancelled=until())
        if meta is None:
            break
        reader.check(rank, at, meta, slot)
        at += meta.steps
    return at


def until_error(engine: Engine, rank: int, slot: Slot, look: Callable[[int, FrameMeta], None]) -> tuple[int, Exception]:
    """Read a stream from its start until it fails; returns the step reached and the error."""
    at = 0
    try:
        while meta := engine.fill(rank, at, slot.bytes, cancelled=until()):
            look(at, meta)
            slot.spoil()
            at += meta.steps
    except SidecarError as error:
        return at, error
    raise AssertionError(f"the stream ended at step {at} without an error")


@dataclass
class Case:
    """One random dataset, stream and topology."""

    shards: list[tuple[int, int]]
    spec: StreamSpec
    replicas: int
    ranks: int
    epochs: int
    threads: int
    slot_bytes: int
    budget: int

    @property
    def world(self) -> int:
        return self.replicas * self.ranks

    @classmethod
    def draw(cls, rng: random.Random) -> Case:
        """Any sizes that make a stream, small enough to be quick and odd enough to hit every edge."""
        shards = [(rng.randint(1, 90), rng.randint(1, 60)) for _ in range(rng.choice([1, 1, 2, 4, 7]))]
        total = sum(rows for rows, _ in shards)
        size = rng.randint(1, 24)
        lanes = rng.randint(1, size)
        boundary = rng.choice(["Aligned", "Aligned", "Continuous"])
        last = rng.choice(["Drop", "Partial", "Pad"])
        if (boundary == "Aligned" and last == "Drop" and total < size) or (boundary != "Aligned" and total < size):
            size, lanes = 1, 1
        world = rng.randint(1, size)
        replicas = rng.choice([p for p in range(1, world + 1) if world % p == 0])
        spec = StreamSpec(
            seed=rng.getrandbits(64),
            global_batch_size=size,
            lanes=lanes,
            window=rng.choice([1, 3, 8, 32, 128]),
            shuffle=rng.random() < 0.9,
            boundary=boundary,
            last_batch=last,
        )
        slot_bytes = rng.choice([0, 4096 + size * 600, 1 << 16])
        budget = rng.choice([256 << 10, 1 << 20, 64 << 20])
        return cls(shards, spec, replicas, world // replicas, rng.randint(1, 3), rng.randint(1, 3), slot_bytes, budget)

    def engine(self, manifest: Manifest, pod: int, stats: Stats | None = None) -> Engine:
        """The engine of a pod."""
        steps = self.epochs * sum(r for r, _ in self.shards) // self.spec.global_batch_size + 2
        made = config(
            self.spec,
            replicas=self.replicas,
            ranks=self.ranks,
            pod=pod,
            epochs=self.epochs,
            max_steps=0 if self.spec.aligned else steps,
            decode_threads=self.threads,
            slot_bytes=self.slot_bytes,
            read_ahead_bytes=self.budget,
        )
        return Engine(made, manifest, stats=stats or Stats())
