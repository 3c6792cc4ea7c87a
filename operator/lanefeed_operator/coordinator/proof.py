"""The proof of each epoch (G5): the ledger of a job commit against what the manifest says.

Called by `core` for every new job commit, before it counts. Pure; a finished epoch costs a few ns a row, once. What
the manifest says is remembered, so that a caller who must be quick lets `prepare` find it out first, in its own time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lanefeed_core import expected
from lanefeed_core.book import JobCommit
from lanefeed_core.cursor import Cursor
from lanefeed_core.errors import LedgerMismatch
from lanefeed_core.lanes import Lanes
from lanefeed_core.ledger import Entry, Ledger
from lanefeed_operator.api.status import EpochProof

__all__ = ["Checked", "Prover", "Sum"]

#: A sum over the dataset: ("epoch", number) or ("prefix", total step).
Sum = tuple[str, int]

#: Sums remembered; those of one commit and of a start are wanted together.
KEEP_SUMS = 16
#: Epochs prepared for one commit: more than that pass in one commit only where an epoch is tiny.
MAX_EPOCHS = 4


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
        self._sums: dict[Sum, Entry | Ledger] = {}
        self._all_rows: Entry | None = None

    def needed(self, last: int, begun: Sequence[int], stops: Sequence[int]) -> list[Sum]:
        """Sums that may be asked for: job commits up to `stops` after one at `last`, lives that began at `begun`."""
        found: list[Sum] = [("prefix", step) for step in begun[:2]]
        if stops:
            first, end = self.finished(last), self.finished(stops[-1])
            found += [("epoch", epoch) for epoch in range(first, min(end, first + MAX_EPOCHS))]
            if self.total_steps and stops[-1] >= self.total_steps:
                found.append(("prefix", stops[-1]))
        return found

    def prepare(self, wanted: Sum) -> None:
        """Find out what will be asked for. Safe from any thread: two that find out the same find the same."""
        if wanted[0] == "epoch":
            self._epoch(wanted[1])
        else:
            self.prefix(wanted[1])

    def prepared(self, wanted: Sum) -> bool:
        """Whether asking costs nothing now."""
        return wanted in self._sums

    def finished(self, step: int) -> int:
        """Epochs that are over at total step `step`; Continuous: over in every lane."""
        lanes = self.lanes
        if lanes.spec.aligned:
            return step // lanes.steps_per_epoch
        return min(step * lanes.share(lane) // lanes.lane_rows(lane) for lane in range(lanes.spec.lanes))

    def prefix(self, step: int) -> Ledger:
        """What a job that stands at total step `step` has consumed of its unfinished epochs, by the manifest."""
        known = self._sums.get(("prefix", step))
        if isinstance(known, Ledger):
            return known
        made = expected.prefix(self.lanes, self._cursor(step)).since(self.finished(step))
        self._remember(("prefix", step), made)
        return made

    def _epoch(self, epoch: int) -> Entry:
        """What an epoch holds, by the manifest. Its rows are the same in every epoch: they are summed up once."""
        known = self._sums.get(("epoch", epoch))
        if isinstance(known, Entry):
            return known
        if self._all_rows is None:
            self._all_rows = expected.all_rows(self.lanes)
        made = expected.epoch_entry(self.lanes, epoch, self._all_rows)
        self._remember(("epoch", epoch), made)
        return made

    def _remember(self, wanted: Sum, made: Entry | Ledger) -> None:
        self._sums[wanted] = made
        for old in list(self._sums)[:-KEEP_SUMS]:
            self._sums.pop(old, None)

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
        return _compare(commit, epoch, self._epoch(epoch))

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
