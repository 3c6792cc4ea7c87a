"""`lanefeed.open` with real sidecars: order, sharing, revival, leftovers, and what bad input gets."""

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import lanefeed
from lanefeed.testing import assert_exact_resume
from lanefeed_core import manifest_codec
from lanefeed_core.lanes import Lanes
from lanefeed_core.podconfig import PodConfig
from support.worlds import make_rows, take, world

SMALL: dict[str, Any] = {"read_ahead_bytes": 32 << 20, "decode_threads": 1, "slots": 4}


def folders(root: Path) -> list[Path]:
    return sorted(root.glob("lanefeed-open-*"))


def sidecars(root: Path) -> list[int]:
    return [int((f / "sidecar.pid").read_text()) for f in folders(root)]


def lanes_of(root: Path) -> Lanes:
    """The order that the running sidecar should deliver, from its own configuration."""
    folder = folders(root)[0]
    config = PodConfig.from_json((folder / "pod.json").read_text())
    return Lanes(config.spec, manifest_codec.decode(Path(config.manifest_path).read_bytes()).shard_rows)


def wait_for(done: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def mixed(folder: Path) -> Path:
    """Two files with every kind of column."""
    folder.mkdir()
    at = 0
    for number, n in enumerate((37, 64)):
        ids = np.arange(at, at + n)
        at += n
        floats = np.where(ids % 3 == 0, -0.0, ids / 7.0)
        floats[ids % 5 == 0] = np.array([0x7FF8DEADBEEF0001], dtype=np.uint64).view(np.float64)[0]
        table = {
            "id": ids,
            "f": pa.array(floats),
            "b": pa.array((ids % 2 == 0).tolist()),
            "maybe": pa.array([None if i % 4 == 0 else int(i) for i in ids], pa.int32()),
            "s": pa.array([None if i % 6 == 0 else f"caf\u00e9 {i}" * (i % 3) for i in ids]),
            "l": pa.array([list(range(i % 5)) for i in ids], pa.list_(pa.int16())),
            "v": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(ids, 3).astype(np.float32)), 3),
        }
        pq.write_table(pa.table(table), folder / f"{number}.parquet", row_group_size=16)
    return folder


@pytest.mark.parametrize("tensors", ["torch", "numpy"])
def test_every_kind_of_column_bit_for_bit(tmp_path: Path, tensors: str) -> None:
    uri = mixed(tmp_path / "d")
    table = pa.concat_tables([pq.read_table(p) for p in sorted(uri.iterdir())])
    floats = table["f"].to_numpy()
    with lanefeed.open(uri, global_batch_size=8, epochs=1, last_batch="Partial", tensors=tensors, **SMALL) as loader:
        seen = []
        for batch in loader:
            ids = np.asarray(batch.ids)
            seen += ids.tolist()
            rows = table.take(pa.array(ids))
            assert np.asarray(batch["id"]).tolist() == ids.tolist()
            assert np.asarray(batch["f"]).tobytes() == floats[ids].tobytes()
            assert np.asarray(batch["b"]).dtype == np.bool_
            assert np.asarray(batch["b"]).tolist() == rows["b"].to_pylist()
            assert batch["s"].to_list() == rows["s"].to_pylist()
            assert batch["l"].to_list() == rows["l"].to_pylist()
            assert np.asarray(batch["v"])[:, 2].tolist() == ids.astype(np.float32).tolist()
            valid = np.asarray(batch.validity["maybe"])
            got = [v if ok else None for v, ok in zip(np.asarray(batch["maybe"]).tolist(), valid, strict=True)]
            assert got == rows["maybe"].to_pylist()
        assert sorted(seen) == list(range(101))


def test_kept_and_changed_batches_over_a_whole_epoch(tmp_path: Path, shm_root: Path) -> None:
    """All tensors kept: never changed by the sidecar; written in place: nobody else sees it."""
    uri = make_rows(tmp_path / "d", [200, 56])
    with lanefeed.open(uri, global_batch_size=8, epochs=2, **SMALL) as loader:
        with pytest.warns(lanefeed.KeptBatchesWarning):
            kept = list(loader)
        for batch in kept:
            assert torch.equal(batch["x"][:, 0], batch.ids.float())
            batch["x"].mul_(-1)
        again = list(loader)
        for batch in again:
            assert torch.equal(batch["x"][:, 0], batch.ids.float())
        for batch in kept:
            assert torch.equal(batch["x"][:, 0], -batch.ids.float())
        want = lanes_of(shm_root)
        assert [b.ids.tolist() for b in kept + again] == [
            want.batch(e, s)[0].tolist() for e in range(2) for s in range(32)
        ]
    assert torch.equal(kept[0]["x"][:, 0], -kept[0].ids.float())


def test_every_state_of_a_real_stream_resumes_exactly(tmp_path: Path) -> None:
    uri = mixed(tmp_path / "d")
    options: dict[str, Any] = {"global_batch_size": 16, "epochs": 2, "last_batch": "Pad", "tensors": "numpy", **SMALL}
    assert assert_exact_resume(lambda: lanefeed.open(uri, **options), every=5, tail=4) == 3


def test_states_go_to_other_loaders_whatever_was_chosen_for_them(tmp_path: Path, shm_root: Path) -> None:
    """Lanes and window that nobody gave come with the state: a resume with more ranks would choose others."""
    uri = make_rows(tmp_path / "d", [4000], row_group=10)
    options: dict[str, Any] = {"global_batch_size": 40, "epochs": 1, **SMALL}
    with lanefeed.open(uri, **options, tensors="numpy") as loader:
        first = [b.ids.tolist() for _, b in zip(range(5), loader, strict=False)]
        state, lanes = json.loads(json.dumps(loader.state_dict())), lanes_of(shm_root)
    assert lanes.spec.lanes == 16
    assert first == [lanes.batch(0, s)[0].tolist() for s in range(5)]
    with world(uri, 5, **options) as loaders:
        len(loaders[0])
        for each in loaders:
            each.load_state_dict(state)
        assert take(loaders, 3) == [lanes.batch(0, s)[0].tolist() for s in range(5, 8)]


def test_a_state_from_far_ahead_loads_into_a_loader_that_has_read(tmp_path: Path) -> None:
    uri = make_rows(tmp_path / "d", [900])
    options: dict[str, Any] = {"global_batch_size": 4, "epochs": 3, "tensors": "numpy", **SMALL}
    with lanefeed.open(uri, **options) as loader:
        for _ in loader:
            pass
        far = loader.state_dict()
        want = next(iter(loader)).ids.tolist()
    with lanefeed.open(uri, **options) as loader:
        next(iter(loader))
        loader.load_state_dict(far)
        assert next(iter(loader)).ids.tolist() == want


def test_two_loaders_at_once_each_have_their_own(tmp_path: Path, shm_root: Path) -> None:
    uri = make_rows(tmp_path / "d", [64])
    options: dict[str, Any] = {"global_batch_size": 8, "tensors": "numpy", **SMALL}
    with lanefeed.open(uri, **options) as one, lanefeed.open(uri, **options) as two:
        a, b = iter(one), iter(two)
        assert next(a).ids.tolist() == next(b).ids.tolist()
        assert len(folders(shm_root)) == 2
        assert [x.ids.tolist() for x in a] == [x.ids.tolist() for x in b]
    assert folders(shm_root) == []


def test_epochs_without_end(tmp_path: Path) -> None:
    uri = make_rows(tmp_path / "d", [16])
    with lanefeed.open(uri, global_batch_size=8, tensors="numpy", **SMALL) as loader:
        epochs = []
        for epoch in loader.epochs():
            epochs.append((epoch, sorted(i for b in loader for i in b.ids.tolist())))
            if epoch == 4:
                break
    assert epochs == [(e, list(range(16))) for e in range(5)]


# ---- sidecars that die or hang --------------------------------------------------------------------------------------


def test_a_killed_sidecar_is_started_again_and_nothing_is_lost(tmp_path: Path, shm_root: Path) -> None:
    uri = make_rows(tmp_path / "d", [400, 112])
    with lanefeed.open(uri, global_batch_size=4, epochs=1, tensors="numpy", **SMALL) as loader:
        got, kept = [], []
        for batch in loader:
            got.append(batch.ids.tolist())
            if len(got) in (3, 60):
                kept.append(batch)
                os.kill(sidecars(shm_root)[0], signal.SIGKILL)
            assert batch["id"].tolist() == got[-1]
        lanes = lanes_of(shm_root)
        assert got == [lanes.batch(0, s)[0].tolist() for s in range(128)]
        assert [b["id"].tolist() for b in kept] == [got[2], got[59]]
        loader.commit("end")
        wait_for(lambda: loader.last_commit == lanefeed.Commit(128, "end", 1))


def test_a_stopped_sidecar_is_an_error_after_the_deadline(tmp_path: Path, shm_root: Path) -> None:
    uri = make_rows(tmp_path / "d", [4000])
    loader = lanefeed.open(uri, global_batch_size=4, tensors="numpy", stall_timeout=60.0, **SMALL)
    it = iter(loader)
    next(it)
    # Neither the first batch nor those after it goes on are part of the silence.
    loader._stream._stall_seconds = 1.0
    pid = sidecars(shm_root)[0]
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(lanefeed.SidecarLost, match=r"no word from the sidecar for \d+ s. step \d+: waiting for"):
            for _ in it:
                pass
    finally:
        os.kill(pid, signal.SIGCONT)
    loader._stream._stall_seconds = 60.0
    assert sum(1 for _ in zip(range(20), loader, strict=False)) == 20
    loader.close()


# ---- who else is there ----------------------------------------------------------------------------------------------

SCRIPT = """
import os, sys, time
import lanefeed
with lanefeed.open(sys.argv[1], global_batch_size=8, epochs=1, tensors="numpy", read_ahead_bytes=32 << 20,
                   decode_threads=1, slots=4) as loader:
    for batch in loader:
        print(loader.rank, *batch.ids.tolist(), flush=True)
        time.sleep(float(sys.argv[2]))
    loader.commit("end")
"""


@contextmanager
def script(uri: Path, seconds: float, **env: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(uri), str(seconds)],
        env=os.environ | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_local_ranks_share_one_sidecar(tmp_path: Path, shm_root: Path) -> None:
    uri = make_rows(tmp_path / "d", [100, 28])
    both = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "t"}
    with (
        script(uri, 0.02, RANK="0", LOCAL_RANK="0", **both) as a,
        script(uri, 0.05, RANK="1", LOCAL_RANK="1", **both) as b,
    ):
        most, end = 0, time.monotonic() + 100
        while a.poll() is None or b.poll() is None:
            most = max(most, len(folders(shm_root)))
            assert time.monotonic() < end
            time.sleep(0.02)
        outputs = [p.communicate() for p in (a, b)]
    assert [p.returncode for p in (a, b)] == [0, 0], outputs
    assert most == 1
    rows = [[list(map(int, line.split()[1:])) for line in out.splitlines()] for out, _ in outputs]
    assert {len(r) for r in rows} == {16}
    assert {len(x) for r in rows for x in r} == {4}
    assert sorted(i for r in rows for x in r for i in x) == list(range(128))
    assert folders(shm_root) == []


def test_a_trainer_that_is_killed_leaves_nothing_for_long(tmp_path: Path, shm_root: Path) -> None:
    uri = make_rows(tmp_path / "d", [800])
    with script(uri, 0.05) as process:
        assert process.stdout is not None
        process.stdout.readline()
        pid = sidecars(shm_root)[0]
        process.kill()
        process.wait()
    end = time.monotonic() + 60
    while psutil.pid_exists(pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert not psutil.pid_exists(pid)
    assert len(folders(shm_root)) == 1
    with lanefeed.open(uri, global_batch_size=8, epochs=1, tensors="numpy", **SMALL) as loader:
        assert len(loader) == 100
        assert len(folders(shm_root)) == 1
    assert folders(shm_root) == []


def test_ctrl_c_is_clean(tmp_path: Path, shm_root: Path) -> None:
    uri = make_rows(tmp_path / "d", [800])
    with script(uri, 0.05) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert said.strip().endswith("KeyboardInterrupt")
    assert "Exception ignored" not in said
    assert "Fatal" not in said
    assert folders(shm_root) == []


def test_a_loader_that_is_forgotten_is_closed(tmp_path: Path, shm_root: Path) -> None:
    uri = make_rows(tmp_path / "d", [64])
    loader = lanefeed.open(uri, global_batch_size=8, tensors="numpy", **SMALL)
    batch = next(iter(loader))
    del loader
    gc.collect()
    assert folders(shm_root) == []
    assert batch["id"].tolist() == batch.ids.tolist()


# ---- bad input ------------------------------------------------------------------------------------------------------


def opened(uri: Any, **kwargs: Any) -> None:
    kwargs = {"global_batch_size": 8, "epochs": 1, "tensors": "numpy", **SMALL, **kwargs}
    with lanefeed.open(uri, **kwargs) as loader:
        for _ in loader:
            pass


def test_bad_input_names_what_is_wrong(tmp_path: Path, shm_root: Path) -> None:
    uri = make_rows(tmp_path / "d", [64])
    with pytest.raises(lanefeed.DataError, match=r"none\*\.parquet"):
        opened(tmp_path / "none*.parquet")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.parquet").write_bytes(b"PAR1 this is none PAR1")
    with pytest.raises(lanefeed.DataError, match=r"x\.parquet"):
        opened(tmp_path / "bad")
    with pytest.raises(lanefeed.LanefeedError, match="nope"):
        opened(uri, columns=["nope"])
    with pytest.raises(lanefeed.UsageError, match=r"globalBatchSize 100.*lower globalBatchSize|fewer than"):
        opened(uri, global_batch_size=100)
    with pytest.raises(lanefeed.UsageError, match="smaller than the 9 ranks"):
        opened(uri, rank=0, world=9)
    with pytest.raises(lanefeed.UsageError, match=r"set batching\.uneven to Allow"):
        opened(uri, rank=0, world=3)
    with pytest.raises(lanefeed.UsageError, match="lastBatch is 'Keep'"):
        opened(uri, last_batch="Keep")
    with pytest.raises(lanefeed.UsageError, match="epochs is 0"):
        opened(uri, epochs=0)
    with pytest.raises(lanefeed.UsageError, match="no path"):
        opened([])
    with pytest.raises(lanefeed.BatchTooLarge, match=r"slotBytes"):
        opened(make_rows(tmp_path / "w", [64], width=512), slot_bytes=128)
    assert folders(shm_root) == []


def test_a_changed_dataset_refuses_the_old_state(tmp_path: Path) -> None:
    uri = make_rows(tmp_path / "d", [64, 64])
    options: dict[str, Any] = {"global_batch_size": 8, "epochs": 1, "tensors": "numpy", **SMALL}
    with lanefeed.open(uri, **options) as loader:
        next(iter(loader))
        state = loader.state_dict()
    make_rows(tmp_path / "e", [64])
    os.rename(tmp_path / "e" / "0000.parquet", uri / "0009.parquet")
    with lanefeed.open(uri, **options) as loader:
        loader.load_state_dict(state)
        with pytest.raises(lanefeed.StateMismatch, match="files were added"):
            next(iter(loader))


def test_without_the_sidecars_package_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n == "pyarrow" else find(n, *a))
    with pytest.raises(lanefeed.UsageError, match=r"pip install 'lanefeed\[sidecar\]'"):
        lanefeed.open("x", global_batch_size=1)


def test_a_cache_folder_serves_the_next_run_without_decoding(tmp_path: Path, shm_root: Path) -> None:
    uri, cache = make_rows(tmp_path / "d", [150, 120, 130]), tmp_path / "cache"
    seen = []
    for _ in range(2):
        with lanefeed.open(uri, global_batch_size=8, epochs=3, cache_dir=cache, **SMALL) as loader:
            rows = []
            for _ in loader.epochs():
                for batch in loader:
                    rows.append(batch.ids.tolist())
                    # A trainer that is slower than decoding: the sidecar has time to write.
                    time.sleep(0.002)
            seen.append(rows)
            config = PodConfig.from_json((folders(shm_root)[0] / "pod.json").read_text())
            assert (config.cache_dir, config.cache_bytes) == (str(cache), 32 << 30)
    assert seen[0] == seen[1]
    assert list(cache.glob("*/*")), "nothing was cached"


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path: Path, shm_root: Path) -> None:
    uri = make_rows(tmp_path / "d", [40])
    (tmp_path / "file").write_text("")
    with (
        lanefeed.open(uri, global_batch_size=8, cache_dir=tmp_path / "file" / "c", **SMALL) as loader,
        pytest.raises(lanefeed.UsageError, match=r"the cache folder .*/file/c cannot be used: Not a directory"),
    ):
        next(iter(loader))
