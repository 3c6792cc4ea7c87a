"""A trainer for chaos tests: one process per rank, no torch, no collectives; its "model" is the list of ids it saw.

Every EVERY steps it writes a checkpoint folder that all ranks share (each rank its file, by rename) and commits it.
On start it loads the job's last commit. It never runs past the step in the file `limit`, so that a test can spread its
kills over the whole job.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import lanefeed

OUT = Path(os.environ["CHAOS_OUT"])
EVERY = int(os.environ.get("CHAOS_EVERY", "7"))
SLEEP = float(os.environ.get("CHAOS_SLEEP", "0.004"))
#: Where set: each rank writes down when it had which step, for tests that measure how long something took.
TIMES = os.environ.get("CHAOS_TIMES", "") == "1"
#: A folder of COLUMN.npy: what that column must hold for each sample. "": a column `id` holds the sample's number.
TRUTH = os.environ.get("CHAOS_TRUTH", "")
#: "RANK:STEP ...": in the first plan generation these ranks end with code 0 after this step, as if they were done.
QUITS = dict(map(int, item.split(":")) for item in os.environ.get("CHAOS_QUITS", "").split())


def limit() -> int:
    """The step that the test allows."""
    try:
        return int((OUT / "limit").read_text() or "0")
    except (OSError, ValueError):
        return 0


def write(path: Path, data: object) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # In containers every process is number 1, and a pod that was given up for lost may write beside its successor.
    temporary = path.with_suffix(f".{socket.gethostname()}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(data))
    os.replace(temporary, path)


def truths() -> dict[str, NDArray[Any]]:
    """What TRUTH says, by column."""
    found = {file.stem: np.load(file, mmap_mode="r") for file in sorted(Path(TRUTH).glob("*.npy"))} if TRUTH else {}
    if TRUTH and not found:
        sys.exit(f"CHAOS_TRUTH is {TRUTH}, and no .npy file is there")
    return found


def wrong(batch: Any, truth: dict[str, NDArray[Any]]) -> str:
    """What a batch holds that it should not, "" where all is right."""
    ids = np.asarray(batch.ids)
    wanted = {name: whole[ids] for name, whole in truth.items()} or {"id": ids}
    for name, want in wanted.items():
        got = np.asarray(batch[name])
        if (got.shape, got.dtype) != (want.shape, want.dtype):
            return f"column {name} is {got.dtype} {got.shape} and should be {want.dtype} {want.shape}"
        if not np.array_equal(got, want):
            row = next(k for k in range(len(ids)) if not np.array_equal(got[k], want[k]))
            said = f"{got[row].tolist()} instead of {want[row].tolist()}"
            return f"column {name} of sample {ids[row]} (row {row}) holds {said[:600]}"
    return ""


def main() -> None:
    """Consume the stream to its end."""
    loader = lanefeed.connect(tensors="numpy")
    name = ""
    if loader.last_commit and loader.last_commit.step:
        name = loader.last_commit.name
        files = sorted((OUT / name).glob("rank-*.json"))
        loader.load_state_dict(json.loads(files[0].read_text())["state"])
    truth = truths()
    ids: list[list[int]] = []
    times = (OUT / f"times-{loader.rank}.log").open("a", buffering=1) if TIMES else None

    def checkpoint() -> None:
        nonlocal name
        before, name = name, f"s{loader.step:06d}-g{loader.plan_generation}"
        if name == before:
            return
        state = loader.state_dict()
        content = {"before": before, "world": loader.world, "ids": ids, "state": state, "step": loader.step}
        write(OUT / name / f"rank-{loader.rank}.json", content)
        loader.commit(name)
        ids.clear()

    for _ in loader.epochs():
        for batch in loader:
            if fault := wrong(batch, truth):
                sys.exit(f"step {loader.step}: {fault}")
            ids.append(np.asarray(batch.ids).tolist())
            if times:
                times.write(f"{time.time():.3f} {loader.step} {loader.plan_generation}\n")
            time.sleep(SLEEP)
            if loader.plan_generation == 1 and loader.step >= QUITS.get(loader.rank, loader.step + 1):
                sys.exit(0)
            while loader.step >= limit() and not loader.stop_requested:
                time.sleep(0.01)
            if loader.stop_requested:
                checkpoint()
                raise lanefeed.Stopped
            if loader.step % EVERY == 0:
                checkpoint()
    checkpoint()
    loader.close()


if __name__ == "__main__":
    main()
