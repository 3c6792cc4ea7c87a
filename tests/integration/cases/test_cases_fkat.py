"""Case 49: what was measured on fkat's ShardedDataLoader (../shared/research/peers.md, C2), an item a test."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lanefeed
import lanefeed.torch
from support.lookahead import one_ahead
from support.worlds import make_rows, take, world

SMALL: dict[str, Any] = {"read_ahead_bytes": 32 << 20, "decode_threads": 1, "slots": 4}


def ids(batch: lanefeed.Batch) -> list[int]:
    assert np.asarray(batch["id"]).tolist() == np.asarray(batch.ids).tolist()
    return np.asarray(batch.ids).tolist()


def epochs(loader: lanefeed.Loader, count: int) -> list[list[list[int]]]:
    return [[ids(batch) for batch in loader] for _ in range(count)]


def opened(uri: Path, **options: Any) -> lanefeed.Loader:
    return lanefeed.open(uri, **{"tensors": "numpy", **SMALL, **options})


def wait_until_no_sidecar(root: Path) -> None:
    """Sidecars whose owner died end by themselves."""
    from lanefeed._local.folder import locked

    end = time.monotonic() + 60
    while any(locked(path) for path in root.glob("lanefeed-open-*/sidecar.pid")):
        assert time.monotonic() < end
        time.sleep(0.05)


# ---- case 49: what was measured on fkat's ShardedDataLoader (../shared/research/peers.md, C2) ----------------------


def shards_of(tmp_path: Path) -> Path:
    """Five shards of six rows, as in the measurement."""
    return make_rows(tmp_path / "d", [6] * 5, row_group=3)


def whole(uri: Path, **options: Any) -> list[list[int]]:
    with opened(uri, **options) as loader:
        return [b for e in epochs(loader, options["epochs"]) for b in e]


def test_case_49_1_a_state_in_a_shard_repeats_no_batch(tmp_path: Path) -> None:
    uri, options = shards_of(tmp_path), {"global_batch_size": 2, "epochs": 1}
    want = whole(uri, **options)
    for done in (1, 2, 3, 4):
        with opened(uri, **options) as loader:
            it = iter(loader)
            got = [ids(next(it)) for _ in range(done)]
            state = loader.state_dict()
        with opened(uri, **options) as loader:
            loader.load_state_dict(state)
            assert got + [ids(b) for b in loader] == want


def test_case_49_2_a_look_ahead_consumer_loses_no_batch_at_a_shards_end(tmp_path: Path) -> None:
    uri, options = shards_of(tmp_path), {"global_batch_size": 2, "epochs": 1}
    want = whole(uri, **options)
    with opened(uri, **options) as loader:
        steps = []
        got = []
        for batch in one_ahead(loader):
            got.append(ids(batch))
            steps.append(loader.state_dict()["cursor"])
    assert got == want
    spe = len(want)
    assert steps == [{"epoch": (k + 1) // spe, "step": (k + 1) % spe} for k in range(spe)]


def test_case_49_3_the_state_does_not_depend_on_timing(tmp_path: Path) -> None:
    uri, options = shards_of(tmp_path), {"global_batch_size": 2, "epochs": 2}
    states = []
    for pause in (0.0, 0.05):
        with opened(uri, **options) as loader:
            taken = []
            for _ in loader.epochs():
                for _batch in loader:
                    if loader.step % 3 == 0:
                        time.sleep(pause)
                        taken.append(json.dumps(loader.state_dict(), sort_keys=True))
        states.append(taken)
    assert states[0] == states[1]


def test_case_49_4_the_shuffled_order_of_shards_survives_a_resume(tmp_path: Path) -> None:
    uri = make_rows(tmp_path / "d", [6] * 8)
    options: dict[str, Any] = {"global_batch_size": 2, "epochs": 1, "seed": 7}
    want = whole(uri, **options)
    with opened(uri, **options) as loader:
        it = iter(loader)
        got = [ids(next(it)) for _ in range(12)]
        state = loader.state_dict()
    with opened(uri, **options) as loader:
        loader.load_state_dict(state)
        got += [ids(b) for b in loader]
    assert got == want
    assert sorted(i for b in got for i in b) == list(range(48))


@pytest.mark.parametrize(("shards", "ranks"), [(5, 4), (9, 8), (2, 3)])
def test_case_49_7_shards_need_not_divide_by_ranks(tmp_path: Path, shards: int, ranks: int) -> None:
    """No assertion, no tail that is never trained, no refusal of fewer shards than ranks."""
    uri = make_rows(tmp_path / "d", [6] * shards)
    with world(uri, ranks, global_batch_size=2 * ranks, epochs=1, last_batch="Pad", **SMALL) as loaders:
        batches = take(loaders)
    assert sorted(i for b in batches for i in b) == list(range(6 * shards))


def test_case_49_9_tensors_are_views_of_shared_memory_and_outlive_the_loader(tmp_path: Path) -> None:
    uri = make_rows(tmp_path / "d", [64], width=1000)
    with lanefeed.open(uri, global_batch_size=16, epochs=1, **SMALL) as loader:
        batch = next(iter(loader))
        x = batch["x"]
        address = x.data_ptr()
        with open("/proc/self/maps") as maps:
            where = next(m for m in maps if int(m.split("-")[0], 16) <= address < int(m.split()[0].split("-")[1], 16))
        assert "arena-" in where
    assert torch.equal(x[:, 999], batch.ids.float())


def test_case_49_11_a_killed_reader_is_noticed_at_once(tmp_path: Path, shm_root: Path) -> None:
    """A killed worker left the consumer blocked for 600 s there; here the sidecar comes back within seconds."""
    uri = make_rows(tmp_path / "d", [2000])
    with opened(uri, global_batch_size=4, epochs=1) as loader:
        it = iter(loader)
        got = [ids(next(it))]
        os.kill(int(next(shm_root.glob("lanefeed-open-*/sidecar.pid")).read_text()), signal.SIGKILL)
        began = time.monotonic()
        got += [ids(b) for b in it]
        assert time.monotonic() - began < 60
        assert len(got) == 500
        assert sorted(i for b in got for i in b) == list(range(2000))


def test_case_49_12_no_signal_handler_and_no_main_thread_needed(tmp_path: Path) -> None:
    import threading

    uri = make_rows(tmp_path / "d", [32])
    before = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1)}
    seen: list[int] = []

    def work() -> None:
        with opened(uri, global_batch_size=4, epochs=1) as loader:
            seen.extend(i for b in loader for i in ids(b))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert sorted(seen) == list(range(32))
    assert {s: signal.getsignal(s) for s in before} == before


def test_case_49_13_nothing_is_left_in_tmpfs(tmp_path: Path, shm_root: Path) -> None:
    uri = shards_of(tmp_path)
    with opened(uri, global_batch_size=2, epochs=1) as loader:
        epochs(loader, 1)
    assert list(shm_root.iterdir()) == []
