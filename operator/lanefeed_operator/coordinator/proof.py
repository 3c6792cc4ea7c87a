"""The proof of each epoch (G5): the ledger of a job commit against what the manifest says.

Called by `core` for every new job commit, before it counts. Pure; a finished epoch costs a few ns a row, once.
"""

from dataclasses import dataclass, replace

from lanefeed_core import expected
from lanefeed_core.book import JobCommit
from lanefeed_core.cursor import Cursor
from lanefeed_core.errors import LedgerMismatch
from lanefeed_core.lanes import Lanes
from lanefeed_core.ledger import Entry, Ledger
from lanefeed_operator.api.status import EpochProof

__all__ = ["Checked", "Prover"]


@dataclass(frozen=True, slots=True)
class Checked:
    """A commit with the ledger of finished epochs taken out, the proofs of these, and what is wrong ("": nothing)."""

    commit: JobCommit
    proofs: tuple[EpochProof, ...]
    mismatch: str = ""


class Prover:
    """Proves epochs of one job."""

    def __init__(self, lanes: Lanes, total_steps: int) -> None:
        """Take the job's order, and the total step at which it ends."""
        self.lanes = lanes
        self.total_steps = total_steps

    def finished(self, step: int) -> int:
        """Epochs that are over at total step `step`; Continuous: over in every lane."""
        lanes = self.lanes
        if lanes.spec.aligned:
            return step // lanes.steps_per_epoch
        return min(step * lanes.share(lane) // lanes.lane_rows(lane) for lane in range(lanes.spec.lanes))

    def prefix(self, step: int) -> Ledger:
        """What a job that stands at total step `step` has consumed of its unfinished epochs, by the manifest."""
        whole = expected.prefix(self.lanes, self._cursor(step))
        return whole.since(self.finished(step))

    def check(self, before: int, commit: JobCommit) -> Checked:
        """Check the epochs that end after total step `before` and not after the commit."""
        first, end = self.finished(before), self.finished(commit.step)
        proofs = [self._whole(commit, epoch) for epoch in range(first, end)]
        if commit.step >= self.total_steps:
            proofs += self._partial(commit, end)
        pruned = replace(
            commit,
            ledger=commit.ledger.since(end),
            recomputed=commit.recomputed and not (self.lanes.spec.aligned and end > first),
        )
        wrong = [proof for proof in proofs if not proof.verified]
        return Checked(pruned, tuple(proofs), self._say(wrong[0]) if wrong else "")

    def _whole(self, commit: JobCommit, epoch: int) -> EpochProof:
        return _compare(commit, epoch, expected.epoch_entry(self.lanes, epoch))

    def _partial(self, commit: JobCommit, end: int) -> list[EpochProof]:
        """The job ends inside of epochs: compare what it should have consumed of them."""
        want = self.prefix(commit.step)
        epochs = sorted({e for e in (*want.epochs, *commit.ledger.epochs) if e >= end})
        found = [_compare(commit, epoch, want[epoch], partial=True) for epoch in epochs]
        return [proof for proof in found if proof.samples or proof.expected_samples]

    def _say(self, proof: EpochProof) -> str:
        got = Ledger({proof.epoch: Entry(proof.samples, int(proof.digest, 16))})
        try:
            got.check(proof.epoch, Entry(proof.expected_samples, int(proof.expected, 16)))
        except LedgerMismatch as error:
            return str(error)
        return ""

    def _cursor(self, step: int) -> Cursor:
        return Cursor.from_total(step, self.lanes.steps_per_epoch, aligned=self.lanes.spec.aligned)


def _compare(commit: JobCommit, epoch: int, want: Entry, *, partial: bool = False) -> EpochProof:
    got = commit.ledger[epoch]
    return EpochProof(
        epoch=epoch,
        samples=got.count,
        digest=f"{got.total:016x}",
        expected=f"{want.total:016x}",
        expected_samples=want.count,
        verified=got == want,
        partial=partial,
        recomputed=commit.recomputed,
    )
