"""The oracle of the end-to-end tests has teeth: each thing that may not happen is seen, and said in words."""

import json
from pathlib import Path

import pytest

from e2e.job import same_batches
from support.chain import consumed

WANT = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13]]


def chain(out: Path, batches: list[list[int]], *, every: int = 2, ranks: int = 2) -> str:
    """Checkpoints as trainers write them: each rank its half of every global batch. The last one's name."""
    before = ""
    for low in range(0, len(batches), every):
        part, name = batches[low : low + every], f"s{low + every:06d}-g1"
        (out / name).mkdir(parents=True)
        for rank in range(ranks):
            ids = [batch[rank * len(batch) // ranks : (rank + 1) * len(batch) // ranks] for batch in part]
            content = {"before": before, "world": ranks, "ids": ids}
            (out / name / f"rank-{rank}.json").write_text(json.dumps(content))
        before = name
    return before


def test_a_whole_run_is_read_back(tmp_path: Path) -> None:
    """Ranks in order, checkpoints first to last."""
    same_batches(consumed(tmp_path, chain(tmp_path, WANT)), WANT)


@pytest.mark.parametrize(
    ("planted", "told"),
    [
        ([*WANT[:1], [4, 5, 6], *WANT[2:]], r"first that differs is 1: .*lost: \[7\]"),
        ([*WANT[:2], *WANT[1:]], "5 global batches, 4 expected; the first that differs is 2"),
        ([WANT[1], WANT[0], *WANT[2:]], "first that differs is 0"),
        ([[1, 0, 2, 3], *WANT[1:]], "first that differs is 0"),
        (WANT[:3], r"3 global batches, 4 expected; the first that differs is 3.*lost: \[12, 13\]"),
        ([*WANT[:3], [12, 12]], r"lost: \[13\]"),
    ],
    ids=["lost", "repeated step", "steps exchanged", "order in a batch", "ended early", "repeated sample"],
)
def test_a_planted_fault_is_seen(tmp_path: Path, planted: list[list[int]], told: str) -> None:
    """Through checkpoints, as in a run."""
    with pytest.raises(AssertionError, match=told):
        same_batches(consumed(tmp_path, chain(tmp_path, planted)), WANT)


def test_a_checkpoint_without_one_rank_is_seen(tmp_path: Path) -> None:
    """A rank that never wrote its part."""
    last = chain(tmp_path, WANT)
    (tmp_path / last / "rank-1.json").unlink()
    with pytest.raises(AssertionError, match="lacks ranks"):
        consumed(tmp_path, last)


def test_ranks_that_restored_different_checkpoints_are_seen(tmp_path: Path) -> None:
    """Two histories in one checkpoint."""
    last = chain(tmp_path, WANT)
    file = tmp_path / last / "rank-1.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"before": ""}))
    with pytest.raises(AssertionError, match="go back to"):
        consumed(tmp_path, last)


def test_a_checkpoint_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The status names a commit that nobody wrote."""
    with pytest.raises(AssertionError, match="there is no checkpoint s000009-g1"):
        consumed(tmp_path, "s000009-g1")
