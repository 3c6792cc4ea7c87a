"""States that belong to something else: refused with both values, never guessed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lanefeed
from support.badinput import SMALL, folder, read, said, shard
from support.worlds import take, world


def saved(uri: Path, steps: int = 2, **options: Any) -> dict[str, Any]:
    """A state after `steps` batches, through JSON, as checkpoints do it."""
    with lanefeed.open(uri, **(SMALL | options)) as loader:
        for _, batch in zip(range(steps), loader, strict=False):
            dict(batch)
        state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
        return state


def test_states_of_another_stream_or_version(tmp_path: Path) -> None:
    uri = folder(tmp_path / "d")
    state = saved(uri)
    assert read(uri, state) == 64 - 16
    after = "the order of samples would change; set"
    for options, field, mine, now in (
        ({"seed": 5}, "shuffle.seed", "0", "5"),
        ({"global_batch_size": 4}, "batching.globalBatchSize", "8", "4"),
    ):
        assert said(lanefeed.StateMismatch, uri, state, **options) == (
            f"the state was saved with {field} {mine} and this job has {now}: {after} {field} back to {mine}, or start "
            "without this state"
        )
    for change, text in (
        ({"version": 9}, "the state has version 9 and this Lanefeed knows 1: use the version that saved it"),
        ({"order_version": 9}, "the state has order_version 9 and this Lanefeed knows 1: use the version that saved"),
        ({"cursor": {}}, "not a whole Lanefeed state (KeyError('epoch')): load what state_dict() gave"),
        (
            {"cursor": {"epoch": 0, "step": 999}},
            "the state's cursor Cursor(epoch=0, step=999) is outside an epoch of 8",
        ),
    ):
        assert said(lanefeed.StateMismatch, uri, state | change).startswith(text)
    text = said(lanefeed.StateMismatch, uri, {"model": 1})
    assert text == "this is not a Lanefeed state (it has no 'version'): load what state_dict() gave"


@pytest.mark.parametrize("change", ["replaced", "added", "removed"])
def test_a_dataset_that_changed_since_the_state(tmp_path: Path, change: str) -> None:
    uri = folder(tmp_path / "d", files=3)
    state = saved(uri)
    if change == "replaced":
        shard(uri / "1.parquet", np.arange(500, 532))
    elif change == "added":
        shutil.copy(uri / "1.parquet", uri / "7.parquet")
    else:
        (uri / "2.parquet").unlink()
    text = said(lanefeed.StateMismatch, uri, state)
    assert text.startswith(f"the state belongs to the dataset {state['manifest']} and this job reads ")
    assert text.endswith("files were added, removed or changed; restore the dataset, or start without this state")


def test_half_of_the_ranks_states(tmp_path: Path) -> None:
    """Merging names the ranks that are missing."""
    uri = folder(tmp_path / "d")
    with world(uri, 4, **{name: value for name, value in SMALL.items() if name != "tensors"}) as loaders:
        take(loaders, 2)
        states = [loader.state_dict() for loader in loaders]
    assert lanefeed.merge(states)["cursor"] == {"epoch": 0, "step": 2}
    with pytest.raises(lanefeed.StateMismatch, match=r"1, 3.*4 ranks made this checkpoint"):
        lanefeed.merge([states[0], states[2]])


HALF = """
import json, os, sys
import lanefeed
rank = int(os.environ["RANK"])
with lanefeed.open(sys.argv[1], **json.loads(sys.argv[2])) as loader:
    if rank == 0:
        loader.load_state_dict(json.loads(sys.argv[3]))
        loader.step, next(iter(loader))
        print("ready", flush=True)
        sys.stdin.readline()
    else:
        try:
            next(iter(loader))
        except lanefeed.LanefeedError as error:
            print(f"{type(error).__name__}: {error}")
"""


def test_only_half_of_the_ranks_load_a_state(tmp_path: Path) -> None:
    """Two ranks of one pod, as torchrun starts them; rank 1's checkpoint was not found."""
    uri = folder(tmp_path / "d")
    state = saved(uri, world=2, rank=0)
    ranks = []
    for rank in range(2):
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        env |= {"GROUP_RANK": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        # Lanes and window as the state has them, so that both name one stream.
        options = SMALL | {"lanes": state["spec"]["lanes"], "window": state["spec"]["window"]}
        command = [sys.executable, "-c", HALF, str(uri), json.dumps(options), json.dumps(state)]
        pipe = subprocess.PIPE
        ranks.append(subprocess.Popen(command, env=os.environ | env, stdin=pipe, stdout=pipe, text=True))
        if rank == 0:
            assert ranks[0].stdout is not None
            assert ranks[0].stdout.readline() == "ready\n"
    other, _ = ranks[1].communicate(timeout=60)
    ranks[0].communicate("go\n", timeout=60)
    assert other.startswith(
        "PlanMismatch: rank 1 begins at step 0 and rank 0 at step 2: all ranks must load the same checkpoint"
    )
