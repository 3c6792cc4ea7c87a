"""The ledger as people read it: what each epoch had to hold, what was consumed, and whether that is the same."""

from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from lanefeed_core.expected import epoch_entry
from lanefeed_core.lanes import Lanes
from lanefeed_core.manifest import Manifest
from lanefeed_operator.api.status import Status
from lanefeed_operator.reconcile.plans import lanes_of

__all__ = ["Verdict", "proof_table", "verdicts"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One epoch's proof. `repeated` and `lost` are the least that the counts say; equal counts need equal digests."""

    epoch: int
    expected: int
    consumed: int
    expected_digest: str
    digest: str
    verified: bool
    #: The job ended inside of the epoch: expected is what was to be consumed until there.
    partial: bool
    recomputed: bool

    @property
    def repeated(self) -> int:
        """Samples used more than once, at least."""
        return max(0, self.consumed - self.expected)

    @property
    def lost(self) -> int:
        """Samples never used, at least."""
        return max(0, self.expected - self.consumed)

    @property
    def right(self) -> bool:
        """Whether the epoch was consumed exactly once."""
        return self.verified and self.digest == self.expected_digest and self.consumed == self.expected


def verdicts(status: Status, manifest: Manifest) -> list[Verdict]:
    """The proofs in the status, each compared anew with what the manifest itself says."""
    if status.stream is None:
        return []
    lanes: Lanes = lanes_of(status.stream, manifest)
    found = []
    for proof in status.ledger.epochs:
        expected, digest = proof.expected_samples, proof.expected
        if not proof.partial and lanes.spec.aligned:
            entry = epoch_entry(lanes, proof.epoch)
            expected, digest = entry.count, f"{entry.total:016x}"
        found.append(
            Verdict(
                epoch=proof.epoch,
                expected=expected,
                consumed=proof.samples,
                expected_digest=digest,
                digest=proof.digest,
                verified=proof.verified,
                partial=proof.partial,
                recomputed=proof.recomputed,
            )
        )
    return found


def _digest(v: Verdict) -> Text:
    """One digest where both are equal, else both."""
    if v.digest == v.expected_digest:
        return Text(v.digest or "-")
    return Text(f"{v.digest or 'none'}, expected {v.expected_digest or 'none'}", style="bold red")


def proof_table(found: list[Verdict]) -> Table:
    """The ledger as a table."""
    table = Table(title="Was every sample used exactly once?", title_justify="left")
    for name in ("epoch", "expected", "consumed", "repeated", "lost"):
        table.add_column(name, justify="right")
    table.add_column("digest", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    for v in found:
        word = "exactly once" if v.right else "NOT exact"
        word += " (part)" if v.partial else ""
        word += " (a part recomputed)" if v.recomputed else ""
        table.add_row(
            str(v.epoch),
            f"{v.expected:,}",
            f"{v.consumed:,}",
            str(v.repeated),
            str(v.lost),
            _digest(v),
            Text(word, style="green" if v.right else "bold red"),
        )
    return table
