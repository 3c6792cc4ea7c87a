"""The control plane's ledger: turns ranks' commits into the job's commits, and proves each epoch.

Every rank commits each checkpoint with what it consumed since its previous commit (or since it began). A step is the
job's commit once every rank of the plan has a chain of such segments from an earlier job commit to it; its ledger is
that commit's plus the sum of the segments. Repeats overwrite, so that a rank which was killed and went on from the
last job commit is counted once. Pure: the shells persist `to_dict()`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lanefeed_core.errors import CoreError
from lanefeed_core.ledger import Ledger

__all__ = ["KEEP", "Book", "CommitRefused", "JobCommit", "Segment"]

#: Job commits kept: checkpoints older than this are proven by recomputing their prefix.
KEEP = 16

#: Void job commits kept.
KEEP_VOID = 4

#: Rank commits kept while they wait for other ranks.
MAX_SEGMENTS = 256


class CommitRefused(CoreError):
    """A commit that cannot count: of another plan generation, of a rank outside the plan, or going backwards."""


@dataclass(frozen=True, slots=True)
class Segment:
    """What one rank consumed between total steps `start` and `stop`, with its checkpoint's name at `stop`."""

    rank: int
    start: int
    stop: int
    ledger: Ledger
    name: str = ""


@dataclass(frozen=True, slots=True)
class JobCommit:
    """A checkpoint that every rank has made durable: total step, name, plan generation and the job's ledger there."""

    step: int
    name: str
    plan_generation: int
    ledger: Ledger
    #: True where the ledger before it was recomputed from the manifest (a checkpoint that no commit named).
    recomputed: bool = False
    #: True where no rank committed it: it stands for a checkpoint that ranks began from and whose name nobody told.
    stand_in: bool = False

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "step": self.step,
            "name": self.name,
            "planGeneration": self.plan_generation,
            "ledger": self.ledger.to_dict(),
            "recomputed": self.recomputed,
            **({"standIn": True} if self.stand_in else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "JobCommit":
        """The inverse of `to_dict`."""
        ledger = Ledger.from_dict(data["ledger"])
        marks = (bool(data.get("recomputed", False)), bool(data.get("standIn", False)))
        return cls(data["step"], data["name"], data["planGeneration"], ledger, *marks)


@dataclass(slots=True)
class Book:
    """Commits of one job. `commits` ascend by step; the first is the start of the job (step 0, empty ledger)."""

    plan_generation: int
    world: int
    commits: list[JobCommit] = field(default_factory=lambda: [JobCommit(0, "", 0, Ledger())])
    #: Job commits that a start from an older checkpoint made void: ranks that were told of one may yet begin from it.
    void: list[JobCommit] = field(default_factory=list)
    _segments: dict[int, dict[int, Segment]] = field(default_factory=dict)

    @property
    def last(self) -> JobCommit:
        """The newest job commit."""
        return self.commits[-1]

    @property
    def restorable(self) -> JobCommit:
        """The newest job commit that ranks can be told to restore: one that ranks made, or the start of the job."""
        return next((c for c in reversed(self.commits) if not c.stand_in), JobCommit(0, "", 0, Ledger()))

    def new_plan(self, plan_generation: int, world: int) -> None:
        """Begin a plan generation: what ranks of the old plan had not completed together is void."""
        if plan_generation <= self.plan_generation:
            raise CommitRefused(f"plan generation {plan_generation} is not newer than {self.plan_generation}")
        self.plan_generation, self.world = plan_generation, world
        self._segments.clear()

    def begin(self, step: int, prefix: Ledger, *, keep: bool = False) -> None:
        """A plan's ranks started from a checkpoint at total step `step`.

        Commits after it are void: the checkpoint wins (G2). A void one that ranks begin from is restored. If no commit
        names `step`, `prefix` (recomputed from the manifest) stands in for it and is marked so. `keep`: what ranks
        committed from `step` on stays, where the caller hears of the ranks' starts one by one and has called `rejoin`
        for each.
        """
        kept = [c for c in self.commits if c.step <= step]
        at = kept[-1].step if kept else -1
        again = [c for c in self.void if at < c.step <= step]
        if again and again[-1].step == step:
            kept += again
        elif at != step:
            kept.append(JobCommit(step, "", self.plan_generation, prefix, recomputed=True, stand_in=True))
        dropped = [c for c in self.commits if c.step > step and not c.stand_in]
        void = {c.step: c for c in (*self.void, *dropped) if c.step > step}
        self.void = [void[s] for s in sorted(void)][-KEEP_VOID:]
        self.commits = kept[-KEEP:]
        for rank, chain in self._segments.items():
            self._segments[rank] = {start: s for start, s in chain.items() if keep and start >= step}

    def rejoin(self, rank: int, step: int) -> None:
        """A rank began a new life at total step `step`: what its former life committed beyond it is void."""
        chain = self._segments.get(rank, {})
        self._segments[rank] = {start: s for start, s in chain.items() if s.stop <= step}

    def knows(self, step: int) -> bool:
        """Whether a job commit at total step `step` is kept."""
        return any(c.step == step for c in self.commits)

    def add(self, segment: Segment, plan_generation: int) -> JobCommit | None:
        """Take a rank's commit; return the job's commit if this one completes it.

        Raises CommitRefused for another plan generation (a fenced zombie), a rank outside the plan, or a segment that
        runs backwards. A segment that is already covered by a job commit changes nothing.
        """
        self._check(segment, plan_generation)
        if segment.stop <= self.last.step:
            return None
        chain = self._segments.setdefault(segment.rank, {})
        chain[segment.start] = segment
        while len(chain) > MAX_SEGMENTS:
            del chain[min(chain)]
        return self._complete(segment)

    def remove(self, segment: Segment) -> None:
        """Forget a segment that counted for the moment alone."""
        chain = self._segments.get(segment.rank, {})
        if chain.get(segment.start) == segment:
            del chain[segment.start]

    def _check(self, segment: Segment, plan_generation: int) -> None:
        if plan_generation != self.plan_generation:
            raise CommitRefused(
                f"commit of step {segment.stop} by rank {segment.rank} is of plan generation {plan_generation} and the "
                f"job is at {self.plan_generation}: this process was replaced; let it exit"
            )
        if not 0 <= segment.rank < self.world:
            raise CommitRefused(f"rank {segment.rank} is not in the plan of {self.world} ranks")
        if segment.stop < segment.start:
            raise CommitRefused(f"rank {segment.rank} commits from step {segment.start} back to {segment.stop}")

    def _complete(self, newest: Segment) -> JobCommit | None:
        # A void commit that every rank goes on from was restored after all, whoever told of it.
        bases = [*reversed(self.commits), *reversed(self.void)]
        for base in (b for b in bases if b.step < newest.stop):
            parts = [self._chain(rank, base.step, newest.stop) for rank in range(self.world)]
            if all(part is not None for part in parts):
                ledger = base.ledger
                for part in parts:
                    ledger = ledger + (part or Ledger())
                name = newest.name or self._name(newest.stop)
                commit = JobCommit(newest.stop, name, self.plan_generation, ledger, base.recomputed)
                again = {c.step: c for c in self.void if c.step <= base.step} if base in self.void else {}
                before = again | {c.step: c for c in self.commits if c.step < commit.step}
                self.commits = [*(before[s] for s in sorted(before)), commit][-KEEP:]
                self.void = [c for c in self.void if c.step > commit.step]
                self._forget(commit.step)
                return commit
        return None

    def _chain(self, rank: int, start: int, stop: int) -> Ledger | None:
        """Sum of the rank's segments from `start` to `stop`, or None if they do not connect."""
        ledger, at = Ledger(), start
        segments = self._segments.get(rank, {})
        while at < stop:
            segment = segments.get(at)
            if segment is None or segment.stop <= at:
                return None
            ledger, at = ledger + segment.ledger, segment.stop
        return ledger if at == stop else None

    def _name(self, step: int) -> str:
        names = [s.name for chain in self._segments.values() for s in chain.values() if s.stop == step and s.name]
        return names[0] if names else ""

    def _forget(self, step: int) -> None:
        for rank, chain in self._segments.items():
            self._segments[rank] = {start: s for start, s in chain.items() if s.stop > step}

    def waiting(self) -> dict[int, list[int]]:
        """Total step -> ranks whose commit of it is still missing, for steps that some rank committed."""
        steps = sorted({s.stop for chain in self._segments.values() for s in chain.values()})
        have = {
            step: {r for r, chain in self._segments.items() if any(s.stop == step for s in chain.values())}
            for step in steps
        }
        return {step: [r for r in range(self.world) if r not in have[step]] for step in steps}

    def to_dict(self) -> dict[str, Any]:
        """JSON form of what survives a restart of the control plane: the job's commits."""
        return {
            "planGeneration": self.plan_generation,
            "world": self.world,
            "commits": [c.to_dict() for c in self.commits],
            **({"void": [c.to_dict() for c in self.void]} if self.void else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Book":
        """The inverse of `to_dict`; rank commits that had not completed are sent again by the sidecars."""
        commits = [JobCommit.from_dict(c) for c in data["commits"]]
        void = [JobCommit.from_dict(c) for c in data.get("void", [])]
        return cls(int(data["planGeneration"]), int(data["world"]), commits, void)
