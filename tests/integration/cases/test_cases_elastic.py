"""Public bug reports about resizing and uneven data, replayed (../shared/cases.md). Each test names its report."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import lanefeed
from support.worlds import make_rows, take, world


def whole_run(uri: Path, options: dict[str, Any]) -> list[list[int]]:
    """What one uninterrupted rank sees, all epochs end to end."""
    with world(uri, 1, **options) as loaders:
        return [step for _ in range(options["epochs"]) for step in take(loaders)]


def test_case_6_fewer_files_than_ranks_gives_every_rank_data(tmp_path: Path) -> None:
    """hf#8669: fewer than 20 files, shuffle, several ranks: every rank gets its share of every batch."""
    uri = make_rows(tmp_path / "d", [40, 25, 35])
    with world(uri, 5, global_batch_size=10, epochs=1) as loaders:
        batches = take(loaders)
        assert {loader.stats().batches for loader in loaders} == {10}
    assert Counter(i for b in batches for i in b) == Counter(range(100))


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4)])
def test_case_8_save_at_one_world_load_at_another(tmp_path: Path, before: int, after: int) -> None:
    """torchtitan#816: save dp=4, load dp=2, and the other way: both continue exactly."""
    uri = make_rows(tmp_path / "d", [130, 70, 56])
    options: dict[str, Any] = {"global_batch_size": 16, "epochs": 2, "seed": 3, "lanes": 4}
    want = whole_run(uri, options)
    with world(uri, before, **options) as loaders:
        got = take(loaders, 7)
        states = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
    assert {json.dumps(s["cursor"]) for s in states} == {'{"epoch": 0, "step": 7}'}
    with world(uri, after, states[-1], **options) as loaders:
        got += take(loaders) + take(loaders)
    assert got == want


def test_case_12_eight_ranks_to_six_late_in_an_epoch(tmp_path: Path) -> None:
    """dlrover#1553: 60,000 rows, 56,800 done on 8 ranks, continue on 6: the rest, then a full epoch."""
    uri = make_rows(tmp_path / "d", [10_000] * 6, row_group=1000, width=1)
    options: dict[str, Any] = {"global_batch_size": 400, "epochs": 2, "uneven": True}
    with world(uri, 8, **options) as loaders:
        done = take(loaders, 142)
        state = loaders[0].state_dict()
    assert sum(map(len, done)) == 56_800
    with world(uri, 6, state, **options) as loaders:
        rest, after = take(loaders), take(loaders)
    assert sorted(i for b in done + rest for i in b) == list(range(60_000))
    assert sorted(i for b in after for i in b) == list(range(60_000))


def test_case_13_the_leaving_ranks_remainder_is_not_lost(tmp_path: Path) -> None:
    """Bridge#5637: save DP=2, resume DP=1."""
    uri = make_rows(tmp_path / "d", [33, 44])
    options: dict[str, Any] = {"global_batch_size": 4, "epochs": 1, "last_batch": "Partial", "lanes": 2}
    with world(uri, 2, **options) as loaders:
        got = take(loaders, 5)
        state = loaders[0].state_dict()
    with world(uri, 1, state, **options) as loaders:
        got += take(loaders)
    assert sorted(i for b in got for i in b) == list(range(77))
    assert got == whole_run(uri, options)


def test_case_15_one_ranks_state_rebuilds_all_exactly(tmp_path: Path) -> None:
    """SimpleTuner#2986: only rank 0's state is there; 12 images, 4 ranks: rebuilt exactly, since states are equal."""
    uri = make_rows(tmp_path / "d", [12])
    options: dict[str, Any] = {"global_batch_size": 4, "epochs": 1, "lanes": 4}
    want = whole_run(uri, options)
    with world(uri, 4, **options) as loaders:
        got = take(loaders, 1)
        states = [loader.state_dict() for loader in loaders]
    with world(uri, 4, states[0], **options) as loaders:
        got += take(loaders)
    assert got == want
    assert lanefeed.merge(states)["cursor"] == states[0]["cursor"]
    with pytest.raises(lanefeed.StateMismatch, match=r"ranks \[2\] are missing"):
        lanefeed.merge([states[0], states[1], states[3]])


@pytest.mark.parametrize("last_batch", ["Drop", "Partial", "Pad"])
def test_case_28_one_shard_and_several_ranks_count_the_same_steps(tmp_path: Path, last_batch: str) -> None:
    """webdataset#188, #68: one shard, several ranks, also for validation: all ranks take the same number of steps."""
    uri = make_rows(tmp_path / "d", [37], row_group=37)
    with world(uri, 4, global_batch_size=8, epochs=1, last_batch=last_batch) as loaders:
        batches = take(loaders)
    assert len(batches) == (4 if last_batch == "Drop" else 5)
    seen = Counter(i for b in batches for i in b)
    assert set(seen.values()) == {1}
    assert len(seen) == (32 if last_batch == "Drop" else 37)


def test_any_chain_of_worlds_keeps_the_order_of_one_rank(tmp_path: Path) -> None:
    """G1, G3: 4 -> 3 -> 7 -> 1 in mid-epoch and over an epoch's end, element by element."""
    uri = make_rows(tmp_path / "d", [61, 17, 99, 40], row_group=16)
    options: dict[str, Any] = {
        "global_batch_size": 14,
        "epochs": 3,
        "uneven": True,
        "last_batch": "Partial",
        "window": 32,
        "lanes": 7,
    }
    want = whole_run(uri, options)
    got: list[list[int]] = []
    state = None
    for size, steps in ((4, 5), (3, 9), (7, 14), (1, 100)):
        with world(uri, size, state, **options) as loaders:
            while steps and (part := take(loaders, steps)):
                got += part
                steps -= len(part)
            state = loaders[0].state_dict()
    assert got == want
