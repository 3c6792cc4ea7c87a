"""The oracle's reading: which samples every global batch had, as the chain of checkpoints that ends in `last` saw them.

Each checkpoint is a folder with one file a rank, rank-N.json: `before` (the checkpoint that this rank restored or made
last), `world`, and `ids` of the steps since then. A step trained twice counts once: as the restored checkpoint saw it.
Used by tests/chaos and tests/e2e; written by chaos_trainer.py and examples/kubernetes/train.py.
"""

import json
from pathlib import Path

__all__ = ["consumed"]


def consumed(out: Path, last: str) -> list[list[int]]:
    """Ids of every global batch, first to last. Raises AssertionError where a checkpoint is not whole."""
    parts: list[list[list[int]]] = []
    name = last
    while name:
        files = sorted((out / name).glob("rank-*.json"), key=lambda p: int(p.stem.split("-")[1]))
        ranks = [json.loads(f.read_text()) for f in files]
        assert ranks, f"there is no checkpoint {name} in {out}"
        assert {r["world"] for r in ranks} == {len(ranks)}, f"checkpoint {name} lacks ranks"
        befores = {r["before"] for r in ranks}
        assert len(befores) == 1, f"ranks of {name} go back to {befores}"
        parts.append([[i for r in ranks for i in r["ids"][k]] for k in range(len(ranks[0]["ids"]))])
        name = befores.pop()
    return [step for part in reversed(parts) for step in part]
