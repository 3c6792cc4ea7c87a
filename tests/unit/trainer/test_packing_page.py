"""What docs/packing.md writes about masks, run as it is written, on made-up sequences."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "packing.md").read_text()
LENGTH = 2048


def snippets() -> str:
    """The blocks of Python, in order."""
    found = re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL)
    assert len(found) == 3
    return "\n".join(found)


def ramp(*parts: tuple[int, int]) -> torch.Tensor:
    """Numbers that count from each part's first one."""
    return torch.cat([torch.arange(first, first + count) for first, count in parts]).int()


def made_batch() -> dict[str, torch.Tensor]:
    """The end of a long document and a whole one; a document and padding."""
    one = torch.cat([torch.full((700,), 5), torch.full((1348,), 6)])
    two = torch.cat([torch.full((1000,), 7), torch.full((1048,), -1)])
    return {
        "document_ids": torch.stack([one, two]).int(),
        "position_ids": torch.stack([ramp((300, 700), (0, 1348)), ramp((0, 1000), (0, 1048))]),
        "lengths": torch.tensor([LENGTH, 1000]).int(),
    }


@pytest.fixture(scope="module")
def run() -> dict[str, Any]:
    """What the snippets leave. Whatever they make beside the batch's device would go to one that holds no numbers."""
    names: dict[str, Any] = {"batch": made_batch(), "torch": torch}
    with torch.device("meta"), pytest.MonkeyPatch.context() as patch:
        # Where create_block_mask works unless it is told.
        patch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("meta"))
        exec(snippets(), names)
    return names


def test_the_mask_of_attention(run: dict[str, Any]) -> None:
    ids = made_batch()["document_ids"]
    assert run["block_mask"].shape == (2, 1, LENGTH, LENGTH)
    at = torch.arange(LENGTH)
    for row, query, key in ((0, 800, 750), (0, 800, 699), (0, 699, 0), (0, 5, 6), (1, 999, 0), (1, 1000, 999)):
        wanted = ids[row, query] == ids[row, key] and query >= key
        assert bool(run["same_document"](row, 0, at[query], at[key])) == bool(wanted), (row, query, key)
    blocks = run["block_mask"].to_dense()[:, 0].bool()
    real = (ids[:, :, None] == ids[:, None, :]) & (at[:, None] >= at)
    side = LENGTH // blocks.shape[1]
    whole = real.view(2, blocks.shape[1], side, blocks.shape[2], side).any(dim=4).any(dim=2)
    assert torch.equal(blocks, whole)


def test_where_documents_begin(run: dict[str, Any]) -> None:
    assert run["cu_seqlens"].tolist() == [0, 700, 2048, 3048, 4096]
    assert run["cu_seqlens"].dtype == torch.int32


def test_what_counts_in_the_loss(run: dict[str, Any]) -> None:
    assert run["counts"].sum(dim=1).tolist() == [699 + 1347, 999]
    assert not run["counts"][0, 699]
    assert run["real"].sum(dim=1).tolist() == [LENGTH - 1, 999]
    assert run["real"].shape == run["counts"].shape
