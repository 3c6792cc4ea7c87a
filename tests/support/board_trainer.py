"""A trainer that may be killed at any moment: one line for each batch, a checkpoint after every third.

`python board_trainer.py RUN_DIR OUT`: OUT/batches has lines "step [ids]", OUT/state the last checkpoint.
"""

import json
import os
import sys
import time
from pathlib import Path

import lanefeed


def main() -> None:
    """From the last checkpoint to the end of the stream."""
    run_dir, out = sys.argv[1], Path(sys.argv[2])
    loader = lanefeed.connect(run_dir=run_dir, rank=0, world=1, plan_generation=1, tensors="numpy")
    state = out / "state"
    if state.exists():
        loader.load_state_dict(json.loads(state.read_text()))
    kept: list[lanefeed.Batch] = []
    with (out / "batches").open("a", buffering=1) as lines, loader:
        for _ in loader.epochs():
            for batch in loader:
                # Some are kept for a while, so that slots are given back out of turn.
                kept = [*kept, batch][-(batch.step % 5) - 1 :]
                lines.write(f"{batch.step} {json.dumps(batch['x'][:, 1].tolist())}\n")
                if loader.step % 3 == 0:
                    temporary = state.with_suffix(".tmp")
                    temporary.write_text(json.dumps(loader.state_dict()))
                    os.replace(temporary, state)
                    loader.commit(f"s{loader.step}")
                time.sleep(0.001)
    (out / "done").write_text("")


if __name__ == "__main__":
    main()
