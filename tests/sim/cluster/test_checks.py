"""The check of what sidecars are told: it complains of each acknowledgement that an operator's death would lose."""

import pytest

from lanefeed_core.book import Book, JobCommit
from lanefeed_core.ledger import Ledger
from lanefeed_operator.api.status import Status
from lanefeed_operator.coordinator.reports import Committed, PodReport, Reply
from sim.cluster.checks import Checks

REPORT = PodReport("job", 0, "pod", 1, "s", 1)


def checks(writer: str = "op1") -> Checks:
    """All ranks went back to the start: of the steps 7 and 14 that were persisted once, both are void."""
    found = Checks(lambda: 0.0)
    void = [JobCommit(step, f"c{step}", 1, Ledger()) for step in (7, 14)]
    found.stored["job"] = Status(book=Book(1, 1, void=void).to_dict())
    found.persisted["job"], found.writer["job"] = 14, writer
    return found


@pytest.mark.parametrize("told", [Committed(5, "c5", 1), Committed(7, "c7", 1), Committed(14, "c14", 1)])
def test_tooth_a_commit_that_the_stored_book_lacks_or_holds_as_void_is_complained_of(told: Committed) -> None:
    """Step 5 was never stored, though one of more steps was; 7 and 14 are void, and this operator wrote that."""
    with pytest.raises(AssertionError, match=f"step {told.step} was acknowledged, and"):
        checks().answer(REPORT, Reply(last_commit=told), by="op1", leads=True)


def test_a_late_write_of_another_operator_excuses_what_it_made_void_and_nothing_else() -> None:
    found = checks("op0")
    found.answer(REPORT, Reply(last_commit=Committed(7, "c7", 1)), by="op1", leads=True)
    for told in (Committed(7, "other", 1), Committed(7, "c7", 2), Committed(5, "c5", 1)):
        with pytest.raises(AssertionError, match="was acknowledged, and"):
            found.answer(REPORT, Reply(last_commit=told), by="op1", leads=True)


def test_nothing_told_is_nothing_to_complain_of() -> None:
    checks().answer(REPORT, Reply(), by="op1", leads=True)
