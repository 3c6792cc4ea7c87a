"""Public bug reports about resuming, look-ahead, crashes and leftovers, replayed (../shared/cases.md).

Each test names its report. Real files, real sidecars, real processes.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import lanefeed
import lanefeed.torch
from support.lookahead import one_ahead
from support.worlds import make_rows, world

SMALL: dict[str, Any] = {"read_ahead_bytes": 32 << 20, "decode_threads": 1, "slots": 4}


def ids(batch: lanefeed.Batch) -> list[int]:
    assert np.asarray(batch["id"]).tolist() == np.asarray(batch.ids).tolist()
    return np.asarray(batch.ids).tolist()


def epochs(loader: lanefeed.Loader, count: int) -> list[list[list[int]]]:
    return [[ids(batch) for batch in loader] for _ in range(count)]


def opened(uri: Path, **options: Any) -> lanefeed.Loader:
    return lanefeed.open(uri, **{"tensors": "numpy", **SMALL, **options})


# ---- resuming -------------------------------------------------------------------------------------------------------


def test_case_1_a_state_saved_after_the_last_batch_gives_full_epochs(tmp_path: Path) -> None:
    """data#1437: save after the last batch of an epoch, load, run 2 epochs: 2 full epochs in the same order."""
    uri = make_rows(tmp_path / "d", [40, 24])
    with opened(uri, global_batch_size=8, epochs=3) as loader:
        first = epochs(loader, 1)
        state = json.loads(json.dumps(loader.state_dict()))
        want = epochs(loader, 2)
    with opened(uri, global_batch_size=8, epochs=3) as loader:
        loader.load_state_dict(state)
        assert epochs(loader, 2) == want
    assert [len(e) for e in first + want] == [8, 8, 8]
    assert first[0] != want[0] != want[1]


def test_case_3_epochs_after_a_resume_are_full(tmp_path: Path) -> None:
    """hf#7447: resume in mid-epoch, under a DataLoader with a persistent worker, then more epochs."""
    uri = make_rows(tmp_path / "d", [64])
    options: dict[str, Any] = {"global_batch_size": 4, "epochs": 4, "tensors": "torch", **SMALL}
    with lanefeed.open(uri, **options) as loader:
        it = iter(loader)
        done = [ids(next(it)) for _ in range(5)]
        state = loader.state_dict()
    dataset = lanefeed.torch.IterableDataset(lambda: lanefeed.open(uri, **options))
    dataset.load_state_dict(state)
    under = DataLoader(dataset, batch_size=None, num_workers=1, persistent_workers=True, multiprocessing_context="fork")
    got = [[batch.ids.tolist() for batch in under] for _ in range(3)]
    assert under._iterator is not None
    under._iterator._shutdown_workers()
    assert [len(e) for e in got] == [11, 16, 16]
    assert sorted(i for b in done + got[0] for i in b) == list(range(64))
    assert all(sorted(i for b in e for i in b) == list(range(64)) for e in got[1:])


def test_case_4_twelve_rows_one_shard_saved_at_two(tmp_path: Path) -> None:
    """hf#7901: 12 rows, 1 shard, shuffle seed 42, save at index 2, resume: the remaining 9 rows once each."""
    uri = make_rows(tmp_path / "d", [12])
    with opened(uri, global_batch_size=1, seed=42, epochs=1) as loader:
        it = iter(loader)
        done = [ids(next(it))[0] for _ in range(3)]
        state = loader.state_dict()
    with opened(uri, global_batch_size=1, seed=42, epochs=1) as loader:
        loader.load_state_dict(state)
        rest = [ids(batch)[0] for batch in loader]
    assert len(rest) == 9
    assert sorted(done + rest) == list(range(12))


def test_case_9_a_checkpoint_in_a_later_epoch_keeps_the_pending_batch(tmp_path: Path) -> None:
    """torchtitan#3008: checkpoint in epoch N > 0 with a batch fetched and not yet trained: kept, once."""
    uri = make_rows(tmp_path / "d", [30, 21])
    options: dict[str, Any] = {"global_batch_size": 6, "epochs": 3, "last_batch": "Partial"}
    with opened(uri, **options) as loader:
        want = [b for e in epochs(loader, 3) for b in e]
    for at in (10, 17, 18, 19, 26):
        got: list[list[int]] = []
        with opened(uri, **options) as loader:
            for _ in loader.epochs():
                for batch in one_ahead(loader):
                    got.append(ids(batch))
                    if len(got) == at:
                        state = loader.state_dict()
                        break
                if len(got) == at:
                    break
        with opened(uri, **options) as loader:
            loader.load_state_dict(state)
            got += [ids(b) for _ in loader.epochs() for b in one_ahead(loader)]
        assert got == want, at


TRAIN = """
import json, os, sys, time
import lanefeed
out, uri, stop, every = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
loader = lanefeed.open(uri, global_batch_size=4, epochs=2, tensors="numpy", read_ahead_bytes=32 << 20,
                       decode_threads=1, slots=4)
seen = []
if os.path.exists(out + "/state"):
    saved = json.load(open(out + "/state"))
    loader.load_state_dict(saved["loader"])
    seen = saved["seen"]
for _ in loader.epochs():
    for batch in loader:
        seen.append(batch["id"].tolist())
        if loader.step % every == 0:
            json.dump({"loader": loader.state_dict(), "seen": seen}, open(out + "/new", "w"))
            os.replace(out + "/new", out + "/state")
            loader.commit(f"s{loader.step}")
        print(loader.step, flush=True)
        if loader.step == stop:
            time.sleep(600)
print("done", json.dumps(seen), flush=True)
loader.close()
"""


class Training:
    """A training process over one dataset, to be killed."""

    def __init__(self, uri: Path, out: Path, stop: int, every: int, **env: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", TRAIN, str(out), str(uri), str(stop), str(every)],
            env=os.environ | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until(self, step: int) -> None:
        """Read its output up to a step."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == str(step):
                return
        raise AssertionError(f"it ended before step {step}: {self.process.communicate()[1]}")

    def end(self, number: int) -> None:
        """Signal it and wait; again after a while, as a person would: Python loses a Ctrl-C that meets a finalizer."""
        for left in (2, 1, 0):
            self.process.send_signal(number)
            try:
                self.process.communicate(timeout=60)
                return
            except subprocess.TimeoutExpired:
                if not left:
                    self.process.kill()
                    raise

    def result(self) -> list[list[int]]:
        """What its model has seen, as its checkpoints say."""
        output, errors = self.process.communicate(timeout=100)
        assert self.process.returncode == 0, errors
        seen: list[list[int]] = json.loads(output.splitlines()[-1].removeprefix("done "))
        return seen


def test_case_16_a_kill_long_after_the_checkpoint_goes_back_to_it(tmp_path: Path) -> None:
    """tf#63079: checkpoint at a step, killed at nearly twice as many: the resume goes on after the checkpoint."""
    uri = make_rows(tmp_path / "d", [256])
    with opened(uri, global_batch_size=4, epochs=2) as loader:
        want = [b for e in epochs(loader, 2) for b in e]
    run = Training(uri, tmp_path, 95, 50)
    run.until(95)
    run.end(signal.SIGKILL)
    assert Training(uri, tmp_path, 0, 50).result() == want


def test_case_17_a_killed_rank_that_held_prefetched_frames(tmp_path: Path, shm_root: Path) -> None:
    """ray#62787: a rank is killed with frames prefetched for it and replaced: they are served again, none is lost."""
    uri = make_rows(tmp_path / "d", [200, 56])
    outs = [tmp_path / f"rank{r}" for r in range(2)]
    base = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "r"}
    ranks = [{**base, "RANK": str(r), "LOCAL_RANK": str(r)} for r in range(2)]
    for out in outs:
        out.mkdir()
    runs = [Training(uri, out, 10, 4, **env) for out, env in zip(outs, ranks, strict=True)]
    for run in runs:
        run.until(10)
    # As torchrun does: the other workers are ended too, and all start again on the warm sidecar.
    runs[1].end(signal.SIGKILL)
    runs[0].end(signal.SIGTERM)
    state = json.loads((outs[0] / "state").read_text())["loader"]
    assert state["cursor"] == {"epoch": 0, "step": 8}
    final = [Training(uri, out, 0, 4, **env) for out, env in zip(outs, ranks, strict=True)]
    left, right = (run.result() for run in final)
    spec = state["spec"]
    with opened(uri, global_batch_size=4, epochs=2, lanes=spec["lanes"], window=spec["window"]) as loader:
        assert [a + b for a, b in zip(left, right, strict=True)] == [b for e in epochs(loader, 2) for b in e]
    wait_until_gone(shm_root)


# ---- leftovers and ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_case_21_stopped_hard_and_started_again(tmp_path: Path, shm_root: Path, how: int) -> None:
    """streaming#781, #573: Ctrl-C or SIGKILL of a multi-rank run, start again: no FileExistsError, no hang."""
    uri = make_rows(tmp_path / "d", [256])
    base = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "r"}
    ranks = [{**base, "RANK": str(r), "LOCAL_RANK": str(r)} for r in range(2)]
    for number in range(2):
        runs = [Training(uri, tmp_path / f"{number}-{e['RANK']}", 7, 1000, **e) for e in ranks]
        for run in runs:
            run.until(7)
        for run in runs:
            run.end(how)
    began = time.monotonic()
    final = [Training(uri, tmp_path / f"f{e['RANK']}", 0, 1000, **e) for e in ranks]
    seen = [run.result() for run in final]
    assert time.monotonic() - began < 100
    assert Counter(i for s in seen for b in s for i in b) == Counter(2 * list(range(256)))
    wait_until_gone(shm_root)


def test_case_23_a_new_iterator_after_epoch_one_with_ranks_at_different_times(tmp_path: Path) -> None:
    """streaming#617: the iterator is made again after epoch 1 while ranks finish at different times."""
    uri = make_rows(tmp_path / "d", [96])
    with world(uri, 2, global_batch_size=8, epochs=2) as (fast, slow):
        quick = epochs(fast, 1)[0]
        second = iter(fast)
        early = [ids(next(second)) for _ in range(2)]
        late = epochs(slow, 1)[0]
        assert sorted(i for b in quick + late for i in b) == list(range(96))
        rest, other = [ids(b) for b in second], epochs(slow, 1)[0]
    assert sorted(i for b in early + rest + other for i in b) == list(range(96))


def test_case_26_leftovers_and_locks_of_an_earlier_run_do_not_hang(tmp_path: Path, shm_root: Path) -> None:
    """litData#398: cache and lock files of an earlier run are there: no hang, and they go."""
    left = shm_root / "lanefeed-open-0123456789abcdef"
    left.mkdir()
    for name in ("users.lock", "start.lock", "sidecar.pid", "feed.sock", "arena-" + "0" * 32, "token", "pod.json"):
        (left / name).write_bytes(b"1\n")
    uri = make_rows(tmp_path / "d", [32])
    began = time.monotonic()
    with opened(uri, global_batch_size=4, epochs=1) as loader:
        assert len(epochs(loader, 1)[0]) == 8
    assert time.monotonic() - began < 100
    assert not left.exists()


def test_case_39_a_loop_of_kills_does_not_fill_the_tmpfs(tmp_path: Path, shm_root: Path) -> None:
    """sglang#28089, vllm#51317: SIGKILL in a loop leaves files until tmpfs is full; here each start reclaims them."""
    uri = make_rows(tmp_path / "d", [512])
    sizes = []
    for number in range(4):
        run = Training(uri, tmp_path, 5 * (number + 1), 5)
        run.until(5 * (number + 1))
        run.end(signal.SIGKILL)
        wait_until_no_sidecar(shm_root)
        sizes.append(sum(f.stat().st_size for f in shm_root.rglob("*") if f.is_file()))
    assert sizes[-1] <= 2 * sizes[0], sizes
    assert len(Training(uri, tmp_path, 0, 50).result()) == 256
    wait_until_gone(shm_root)


def wait_until_no_sidecar(root: Path) -> None:
    """Sidecars whose owner died end by themselves."""
    from lanefeed._local.folder import locked

    end = time.monotonic() + 60
    while any(locked(path) for path in root.glob("lanefeed-open-*/sidecar.pid")):
        assert time.monotonic() < end
        time.sleep(0.05)


def wait_until_gone(root: Path) -> None:
    """No run folder is left, reclaiming what killed runs left behind."""
    from lanefeed._local.folder import reclaim

    wait_until_no_sidecar(root)
    end = time.monotonic() + 60
    while list(root.glob("lanefeed-open-*")):
        reclaim(root)
        assert time.monotonic() < end, list(root.glob("lanefeed-open-*/*"))
        time.sleep(0.05)
