"""A trainer for chaos tests: one process per rank, no torch, no collectives; its "model" is the list of ids it saw.

Every EVERY steps it writes a checkpoint folder that all ranks share (each rank its file, by rename) and commits it.
On start it loads the job's last commit. It never runs past the step in the file `limit`, so that a test can spread its
kills over the whole job.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import lanefeed

OUT = Path(os.environ["CHAOS_OUT"])
EVERY = int(os.environ.get("CHAOS_EVERY", "7"))
SLEEP = float(os.environ.get("CHAOS_SLEEP", "0.004"))
#: Where set: each rank writes down when it had which step, for tests that measure how long something took.
TIMES = os.environ.get("CHAOS_TIMES", "") == "1"
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
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(data))
    os.replace(temporary, path)


def main() -> None:
    """Consume the stream to its end."""
    loader = lanefeed.connect(tensors="numpy")
    name = ""
    if loader.last_commit and loader.last_commit.step:
        name = loader.last_commit.name
        files = sorted((OUT / name).glob("rank-*.json"))
        loader.load_state_dict(json.loads(files[0].read_text())["state"])
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
            seen = np.asarray(batch["id"]).tolist()
            if seen != np.asarray(batch.ids).tolist():
                sys.exit(f"step {loader.step}: the rows {seen} are not the samples {np.asarray(batch.ids).tolist()}")
            ids.append(seen)
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
