"""The proof of each epoch (G5): the ledger of a job commit against what the manifest says.

Called by `core` for every new job commit, before it counts. Pure; a finished epoch costs a few ns a row, once. What
the manifest says is remembered, so that a caller who must be quick lets `prepare` find it out first, in its own time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lanefeed_core.book import JobCommit, Segment
from lanefeed_core.errors import LedgerMismatch
from lanefeed_core.lanes import Lanes
from lanefeed_core.ledger import Entry, Ledger
from lanefeed_operator.api.status import EpochProof
from lanefeed_operator.coordinator.sums import Epoch, Part, Prefix, Sum, Sums, finished

__all__ = ["Checked", "Proofs", "Prover"]

#: Epochs whose proofs are kept.
MAX_PROOFS = 32
#: Samples that one rank's part is recomputed for: a second or two.
MAX_PART = 1 << 25
#: Epochs and parts prepared for one report: more are wanted at once only where an epoch is tiny.
MAX_PREPARED = 4


@dataclass(frozen=True, slots=True)
class Checked:
    """A commit with the ledger of finished epochs taken out, the proofs of these, and what is wrong ("": nothing)."""

    commit: JobCommit
    proofs: tuple[EpochProof, ...]
    mismatch: str = ""


class Proofs:
    """The proofs of the newest epochs, and how many of all were good."""

    def __init__(self, known: Iterable[EpochProof], verified: int) -> None:
        """Go on from a persisted status."""
        self._epochs = {proof.epoch: proof for proof in known}
        self.verified = verified

    def keep(self, proof: EpochProof) -> None:
        """An epoch's proof; one that was made before is replaced."""
        old = self._epochs.pop(proof.epoch, None)
        self.verified += int(proof.verified) - int(old.verified if old else False)
        self._epochs[proof.epoch] = proof
        while len(self._epochs) > MAX_PROOFS:
            del self._epochs[min(self._epochs)]

    @property
    def latest(self) -> tuple[EpochProof, ...]:
        """By epoch."""
        return tuple(self._epochs[epoch] for epoch in sorted(self._epochs))


class Prover:
    """Proves epochs of one job."""

    def __init__(self, lanes: Lanes, total_steps: int) -> None:
        """Take the job's order, and the total step at which it ends."""
        self.lanes = lanes
        self.total_steps = total_steps
        self._sums = Sums(lanes)

    def needed(self, last: int, begun: Sequence[int], segments: Sequence[Segment], world: int) -> list[Sum]:
        """Sums that may be asked for: lives that began at `begun`, ranks' `segments` after a job commit at `last`."""
        found: list[Sum] = [Prefix(step) for step in begun[:MAX_PREPARED]]
        if segments:
            stop = max(segment.stop for segment in segments)
            first = self.finished(last)
            found += [Epoch(e) for e in range(first, min(self.finished(stop), first + MAX_PREPARED))]
            if self.total_steps and stop >= self.total_steps:
                found.append(Prefix(stop))
            parts = [self._part(segment, last, world) for segment in segments]
            # Of those that are still wanted, so that every rank of a pod has its turn, some with each report.
            found += [part for part in parts if part is not None and not self.prepared(part)][:MAX_PREPARED]
        return found

    def prepare(self, wanted: Sum) -> None:
        """Find out what will be asked for; safe from any thread, and without a lock."""
        self._sums.get(wanted)

    def prepared(self, wanted: Sum) -> bool:
        """Whether asking costs nothing now."""
        return self._sums.known(wanted)

    def cut(self, segment: Segment, last: int, world: int) -> Segment | None:
        """The part from `last` on of a segment that begins before that job commit; None where it cannot be cut now.

        A rank that restarted alone went on from an older checkpoint than the job's last commit, and did the steps up to
        it again: what it did there is what the manifest says, or the rest is wrong by the difference, which the epoch's
        proof shows. So its next commit and those of ranks that went on from the last one make a job commit together.
        """
        part = self._part(segment, last, world)
        if part is None or not self.prepared(part):
            return None
        return replace(segment, start=last, ledger=segment.ledger - self._sums.get(part))

    def _part(self, segment: Segment, last: int, world: int) -> Part | None:
        share = self.lanes.spec.global_batch_size // world + 1
        if not segment.start < last < segment.stop or (last - segment.start) * share > MAX_PART:
            return None
        return Part(world, segment.rank, segment.start, last)

    def finished(self, step: int) -> int:
        """Epochs that are over at total step `step`; Continuous: over in every lane."""
        return finished(self.lanes, step)

    def prefix(self, step: int) -> Ledger:
        """What a job that stands at total step `step` has consumed of its unfinished epochs, by the manifest."""
        return self._sums.get(Prefix(step))

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
        return _compare(commit, epoch, self._sums.get(Epoch(epoch))[epoch])

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
