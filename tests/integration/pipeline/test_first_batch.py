"""What a first batch costs, counted and never timed: nothing where the sidecar is warm, one window a lane elsewhere."""

import os
import re
import time
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lanefeed
from lanefeed_core.cursor import Cursor, SavedState
from lanefeed_core.layout import Column
from lanefeed_core.manifest import Manifest, Shard
from lanefeed_core.plan import Plan
from lanefeed_core.stream import StreamSpec
from lanefeed_sidecar import formats
from lanefeed_sidecar.index import build_manifest
from lanefeed_sidecar.pipeline import Engine, Stats
from support import skewed as k
from support.cgroup import memory_cgroup
from support.frames_oracle import Slot, config, until

SPEC = StreamSpec(seed=5, global_batch_size=16, lanes=4, window=64)


def write(folder: Path) -> Manifest:
    folder.mkdir()
    for number in range(8):
        ids = np.arange(number * 512, (number + 1) * 512)
        pq.write_table(pa.table({"x": ids}), folder / f"{number}.parquet", row_group_size=32)
    return build_manifest([str(folder)], digest="Never").manifest


def decoded(run_dir: Path) -> float:
    connection = HTTPConnection((run_dir / "metrics.addr").read_text().strip(), timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found = re.search(r"^lanefeed_row_groups_decoded_total (\S+)", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def await_rest(run_dir: Path) -> None:
    """Until it has decoded something, and decodes no more: a busy machine may well stop it for a second."""
    end, before, same = time.monotonic() + 100, -1.0, 0
    while time.monotonic() < end:
        try:
            now = decoded(run_dir)
        except OSError:
            now = 0.0
        same = same + 1 if now and now == before else 0
        if same == 12:
            return
        before = now
        time.sleep(0.25)
    raise AssertionError("the sidecar has decoded nothing within 100 s, or comes to no rest")


def first_batch(tmp_path: Path, *, plan: int, state: int) -> None:
    """Of a sidecar whose plan begins at one step and whose trainer comes to another, with nothing left to read."""
    manifest = write(tmp_path / "data")
    with memory_cgroup() as cgroup, k.run_folder() as place:
        pod = k.config(place, manifest, SPEC, ranks=1, budget=32 * k.MIB)
        pod = replace(pod, plan=Plan(1, 1, 1, Cursor(0, plan)))
        with k.sidecar(cgroup, pod):
            await_rest(place)
            for shard in manifest.shards:
                os.truncate(tmp_path / "data" / shard.path, 0)
            loader = lanefeed.connect(rank=0, world=1, tensors="numpy", run_dir=str(place), plan_generation=1)
            try:
                if state:
                    loader.load_state_dict(SavedState(manifest.digest, SPEC, Cursor(0, state)).to_dict())
                batch = next(iter(loader))
                assert batch.step == state
                assert np.array_equal(batch["x"], batch.ids)
            finally:
                loader.close()


@pytest.mark.parametrize("step", [0, 200])
def test_a_warm_sidecar_has_the_first_batch_before_anybody_asks(step: int, tmp_path: Path) -> None:
    """It reads ahead from where the plan begins: a trainer that comes there waits for no reading and no decoding."""
    first_batch(tmp_path, plan=step, state=step)


def test_tooth_elsewhere_something_has_to_be_read(tmp_path: Path) -> None:
    with pytest.raises(lanefeed.DataError, match="restore the file"):
        first_batch(tmp_path, plan=0, state=200)


class Counting:
    """100,000 shards, all of them one real file: which are opened."""

    def __init__(self, real: Manifest) -> None:
        self.real, self.opened = real, []

    def open(self, _manifest: Manifest, shard: int, columns: tuple[Column, ...]) -> formats.ShardReader:
        self.opened.append(shard)
        return formats.open_shard(self.real, 0, columns)


@pytest.fixture(scope="module")
def huge(tmp_path_factory: pytest.TempPathFactory) -> tuple[Manifest, Manifest]:
    """(a manifest of 100,000 shards of 1 MB, 100 GB in all; the one real file behind them)."""
    folder = tmp_path_factory.mktemp("huge")
    pq.write_table(pa.table({"x": np.arange(512)}), folder / "a.parquet", row_group_size=64)
    real = build_manifest([str(folder)], digest="Never").manifest
    about = real.shards[0]
    shards = [Shard(f"{i:06}.parquet", 1 << 20, about.row_groups, about.row_group_bytes) for i in range(100_000)]
    return Manifest(tuple(shards), real.fields, "parquet", str(folder)), real


def cost(huge: tuple[Manifest, Manifest], share: float) -> tuple[int, int, int]:
    """(shards opened, row groups decoded, rows decoded) up to the first batch at a share of the epoch."""
    manifest, real = huge
    counting, stats = Counting(real), Stats()
    made = config(SPEC, epochs=1, decode_threads=1, read_ahead_bytes=64 << 20)
    engine = Engine(made, manifest, stats=stats, open_shard=counting.open)
    assert counting.opened == []
    slot = Slot(engine.slot_bytes)
    step = int(engine.total_steps * share)
    engine.seek(0, step)
    engine.start()
    try:
        meta = engine.fill(0, step, slot.bytes, cancelled=until())
        assert meta is not None
        assert meta.first_step == step
    finally:
        engine.close()
    counts = stats.snapshot().counts
    return len(set(counting.opened)), counts["row_groups"], counts["rows"]


def test_a_resume_touches_what_its_windows_need_wherever_it_is(huge: tuple[Manifest, Manifest]) -> None:
    """At most three windows a lane are read, of 64 rows: one more row group each where they cross one."""
    most = SPEC.lanes * 3
    for share in (0.0, 0.123, 0.5, 0.9999):
        opened, groups, rows = cost(huge, share)
        assert opened <= 2 * most, share
        assert groups <= 2 * most, share
        assert rows <= 2 * most * 64, share
