"""Trainers that break out of loops, keep every tensor, or fork: real sidecars, real processes."""

import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch.utils.data

import lanefeed
import lanefeed.torch
from support.badinput import SMALL, folder, read


def test_breaking_out_of_a_loop_loses_nothing(tmp_path: Path) -> None:
    uri = folder(tmp_path / "d")
    seen: list[int] = []
    with lanefeed.open(uri, **SMALL) as loader:
        while len(seen) < 64:
            for number, batch in enumerate(loader):
                seen += batch["id"].tolist()
                if number == 1:
                    break
    assert sorted(seen) == list(range(64))


def test_a_loop_that_reads_nothing_is_told_so(tmp_path: Path) -> None:
    with lanefeed.open(folder(tmp_path / "d"), **SMALL) as loader, pytest.raises(lanefeed.UsageError) as caught:
        for _ in loader.epochs():
            pass
    assert str(caught.value) == (
        "the body of epochs() read no batch at step 0: write `for batch in loader:` in it, and break out of epochs() "
        "too when you want to stop"
    )


LEAVE = """
import sys, lanefeed, json
loader = lanefeed.open(sys.argv[1], **json.loads(sys.argv[2]))
for batch in loader:
    break
if sys.argv[3] == "raise":
    raise ValueError("the model diverged")
"""


@pytest.mark.parametrize("how", ["end", "raise"])
def test_a_trainer_that_leaves_in_mid_epoch_ends_at_once(tmp_path: Path, shm_root: Path, how: str) -> None:
    """No close(), no with: the process ends on its own and leaves no sidecar, no folder."""
    import json

    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", LEAVE, str(folder(tmp_path / "d", rows=800)), json.dumps(SMALL), how]
    began = time.monotonic()
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert time.monotonic() - began < 50
    assert done.returncode == (1 if how == "raise" else 0), done.stderr
    assert done.stderr.count("Traceback") == (1 if how == "raise" else 0)
    assert list(shm_root.glob("lanefeed-open-*")) == []


def test_keeping_every_tensor_starves_nobody(tmp_path: Path) -> None:
    uri = folder(tmp_path / "d", rows=400)
    with warnings.catch_warnings(record=True) as caught, lanefeed.open(uri, **(SMALL | {"tensors": "torch"})) as loader:
        warnings.simplefilter("always")
        kept = [(batch["id"], batch.ids.clone()) for batch in loader]
    assert sorted(int(i) for ids, _ in kept for i in ids) == list(range(800))
    assert all(bool((ids == want).all()) for ids, want in kept), "a kept tensor changed"
    texts = [str(w.message) for w in caught if w.category is lanefeed.KeptBatchesWarning]
    assert len(texts) == 1
    assert texts[0].startswith("kept batches hold 3 of this rank's 4 slots: further batches are copied")
    assert texts[0].endswith("Keep clones (tensor.clone()) of the few that you need, or raise sidecar.slots")


def test_a_fork_is_told_and_the_parent_goes_on(tmp_path: Path) -> None:
    with lanefeed.open(folder(tmp_path / "d"), **SMALL) as loader:
        seen = next(iter(loader))["id"].tolist()
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            try:
                next(iter(loader))
            except BaseException as error:
                os.write(writer, f"{type(error).__name__}: {error}".encode())
            os._exit(0)
        os.close(writer)
        os.waitpid(child, 0)
        with os.fdopen(reader) as pipe:
            text = pipe.read()
        seen += [i for batch in loader for i in batch["id"].tolist()]
    assert text.startswith(f"ForkError: this loader was made in process {os.getpid()} and used in its fork {child}")
    assert "use lanefeed.torch.IterableDataset with num_workers=0" in text
    assert sorted(seen) == list(range(64))


@pytest.mark.parametrize(
    ("workers", "given", "text"),
    [
        (2, False, "num_workers is 2: the sidecar reads, decodes and shuffles already"),
        (1, True, "this dataset was given a loader, which stays in the process that made it: use num_workers=0"),
    ],
)
def test_workers_of_a_dataloader(tmp_path: Path, workers: int, given: bool, text: str) -> None:
    uri = folder(tmp_path / "d")
    options = SMALL | {"tensors": "torch"}
    with lanefeed.open(uri, **options) as loader:
        dataset = lanefeed.torch.IterableDataset(loader if given else lambda: lanefeed.open(uri, **options))
        batches = iter(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers))
        with pytest.raises(lanefeed.LanefeedError, match="(?s)" + text):
            next(batches)
        batches._shutdown_workers()  # the exception's traceback keeps the iterator, and so its workers, alive
        assert sum(len(batch["id"]) for batch in loader) == 64


def test_a_closed_loader_says_so(tmp_path: Path) -> None:
    loader = lanefeed.open(folder(tmp_path / "d"), **SMALL)
    batch = next(iter(loader))
    loader.close()
    with pytest.raises(lanefeed.NotConnected, match="the loader was closed: make a new one"):
        next(iter(loader))
    assert np.array_equal(batch["id"], batch.ids), "batches in hand stay valid"


def test_sigkill_of_a_trainer_then_the_next_one(tmp_path: Path, shm_root: Path) -> None:
    """What a killed trainer leaves behind is reclaimed at the next start."""
    import json

    uri = folder(tmp_path / "d")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    program = LEAVE.replace("    break", "    print('on', flush=True); import time; time.sleep(60)")
    command = [sys.executable, "-c", program, str(uri), json.dumps(SMALL), "end"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == b"on\n"
        (left,) = shm_root.glob("lanefeed-open-*")
        trainer.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while left.exists() and time.monotonic() < deadline:
        assert read(uri) == 64
    assert not left.exists()
