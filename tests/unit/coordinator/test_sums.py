"""What is remembered of a dataset's sums: as much as is wanted at once, however many ranks that is of."""

import pytest

from lanefeed_core.ledger import Ledger
from lanefeed_operator.coordinator.sums import KEEP, MOST, Epoch, Part, Sums
from support.report_bed import LANES


@pytest.mark.parametrize("world", [2, 640])
def test_the_parts_of_all_ranks_are_known_together(world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one pod must not make room for the next one's: each report would find out the same four again."""
    monkeypatch.setattr(Sums, "_make", lambda _self, _wanted: Ledger())
    sums = Sums(LANES)
    parts = [Part(world, rank, 0, stop) for stop in (7, 14) for rank in range(world)]
    for part in parts:
        sums.get(part)
    assert all(map(sums.known, parts))


def test_they_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sums, "_make", lambda _self, _wanted: Ledger())
    sums = Sums(LANES)
    for epoch in range(3 * KEEP):
        sums.get(Epoch(epoch))
    assert len(sums._known) == KEEP
    sums.get(Part(640_000, 0, 0, 1))
    assert sums._keep == MOST
