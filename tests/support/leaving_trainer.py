"""A worker that trains until it is asked to stop: `torchrun leaving_trainer.py OUT STEP_SECONDS AGREE_SECONDS`.

Writes OUT/RANK.json at its end: where it left, why, and the ids of every step. The loop is the one of docs/trainer.md.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import lanefeed


def main() -> None:
    out, seconds, agree = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    lanefeed.stop_on_sigterm(agree_seconds=agree)
    loader = lanefeed.connect(tensors="numpy")
    ids: dict[int, list[int]] = {}
    said: dict[str, Any] = {}
    for _ in loader.epochs():
        for batch in loader:
            ids[batch.step] = batch.ids.tolist()
            (out / f"{loader.rank}.step").write_text(str(loader.step))
            time.sleep(seconds)
            if loader.stop_requested:
                loader.state_dict()
                loader.commit(f"ckpt/{loader.step}")
                said = {"step": loader.step, "reason": loader.stop_reason}
                break
        if said:
            break
    (out / f"{loader.rank}.json").write_text(json.dumps({**said, "ids": ids}))
    loader.close()
    if said:
        raise lanefeed.Stopped


if __name__ == "__main__":
    main()
