"""Where a job is, and the saved form of it that travels with the model checkpoint.

The cursor is the *next* step to consume. With known yield it is (epoch, step), the same on every rank. `SavedState`
adds the identity of the stream; `check` refuses, with both values, a state of another dataset, seed, size or version.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lanefeed_core import ORDER_VERSION
from lanefeed_core.errors import StateMismatch
from lanefeed_core.ledger import Ledger
from lanefeed_core.stream import StreamSpec

__all__ = ["STATE_VERSION", "Cursor", "Part", "SavedState"]

#: Version of the saved form; unknown ones are refused.
STATE_VERSION = 1

_FIELDS = {
    "seed": "shuffle.seed",
    "global_batch_size": "batching.globalBatchSize",
    "lanes": "batching.lanes",
    "window": "shuffle.window",
    "shuffle": "shuffle.enabled",
    "boundary": "epochBoundary",
    "last_batch": "batching.lastBatch",
}


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """The next step to consume. In a Continuous stream `epoch` is 0 and `step` counts from the start."""

    epoch: int = 0
    step: int = 0

    def advance(self, steps: int, steps_per_epoch: int, *, aligned: bool = True) -> "Cursor":
        """The cursor `steps` steps on; the end of an epoch is the start of the next."""
        if not aligned:
            return Cursor(self.epoch, self.step + steps)
        epochs, step = divmod(self.step + steps, steps_per_epoch)
        return Cursor(self.epoch + epochs, step)

    def total_steps(self, steps_per_epoch: int) -> int:
        """Steps consumed since the start of the job."""
        return self.epoch * steps_per_epoch + self.step

    @classmethod
    def from_total(cls, total: int, steps_per_epoch: int, *, aligned: bool = True) -> "Cursor":
        """The inverse of `total_steps`."""
        return cls(0, 0).advance(total, steps_per_epoch, aligned=aligned)

    def to_dict(self) -> dict[str, int]:
        """JSON form."""
        return {"epoch": self.epoch, "step": self.step}


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank itself consumed, from total step `since` on: informative in a state, summed up by `book`."""

    rank: int
    world: int
    since: int
    ledger: Ledger = field(default_factory=Ledger)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {"rank": self.rank, "world": self.world, "since": self.since, "ledger": self.ledger.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Part":
        """The inverse of `to_dict`."""
        return cls(data["rank"], data["world"], data["since"], Ledger.from_dict(data["ledger"]))


@dataclass(frozen=True, slots=True)
class SavedState:
    """What `state_dict()` holds: version, the stream's identity, the cursor, and the rank's own ledger part."""

    manifest: str
    spec: StreamSpec
    cursor: Cursor
    part: Part | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain dict of str, int, bool, list and dict, as torch.save, DCP and JSON take it."""
        return {
            "version": STATE_VERSION,
            "order_version": ORDER_VERSION,
            "manifest": self.manifest,
            "spec": self.spec.to_dict(),
            "cursor": self.cursor.to_dict(),
            "part": self.part.to_dict() if self.part else None,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "SavedState":
        """Read a saved dict. Raises StateMismatch for another version or a dict that is none of ours."""
        _check_version(data, "version", STATE_VERSION)
        _check_version(data, "order_version", ORDER_VERSION)
        try:
            part = data.get("part")
            return cls(
                manifest=str(data["manifest"]),
                spec=StreamSpec.from_dict(dict(data["spec"])),
                cursor=Cursor(int(data["cursor"]["epoch"]), int(data["cursor"]["step"])),
                part=Part.from_dict(part) if part else None,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise StateMismatch(f"not a whole Lanefeed state ({error!r}): load what state_dict() gave") from None

    def check(self, *, manifest: str, spec: StreamSpec, steps_per_epoch: int) -> None:
        """Raise StateMismatch unless this state belongs to the job's dataset and stream."""
        mine, job = self.spec.to_dict(), spec.to_dict()
        for key, label in _FIELDS.items():
            if mine[key] != job[key]:
                raise StateMismatch(
                    f"the state was saved with {label} {mine[key]!r} and this job has {job[key]!r}: the order of "
                    f"samples would change; set {label} back to {mine[key]!r}, or start without this state"
                )
        if self.manifest != manifest:
            raise StateMismatch(
                f"the state belongs to the dataset {self.manifest} and this job reads {manifest}: files were added, "
                "removed or changed; restore the dataset, or start without this state"
            )
        if min(self.cursor.epoch, self.cursor.step) < 0 or (spec.aligned and self.cursor.step > steps_per_epoch):
            raise StateMismatch(f"the state's cursor {self.cursor} is outside an epoch of {steps_per_epoch} steps")


def _check_version(data: Mapping[str, Any], key: str, known: int) -> None:
    if not isinstance(data, Mapping) or key not in data:
        raise StateMismatch(f"this is not a Lanefeed state (it has no {key!r}): load what state_dict() gave")
    if data[key] != known:
        raise StateMismatch(
            f"the state has {key} {data[key]!r} and this Lanefeed knows {known}: use the version that saved it"
        )
