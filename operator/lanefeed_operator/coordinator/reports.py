"""A sidecar's report and its answer, as plain values: what `service` makes of the wire, and `core` works with."""

from dataclasses import dataclass

from lanefeed_core.book import Segment
from lanefeed_core.ledger import Ledger
from lanefeed_core.wire import PROTOCOL_VERSION

__all__ = ["Committed", "PodReport", "RankCommit", "RankReport", "Reply", "StopAt", "Taken"]


@dataclass(frozen=True, slots=True)
class RankReport:
    """A rank's present life. Steps are total steps."""

    rank: int
    started: int
    from_state: bool
    consumed: int
    attached: bool
    ended: bool = False
    wait_seconds: float = 0.0
    step_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RankCommit:
    """A rank's commit; `ledger` is what it consumed from `start` to `stop`. None: the sidecar's text was no ledger."""

    rank: int
    start: int
    stop: int
    name: str
    ledger: Ledger | None

    @property
    def segment(self) -> Segment:
        """As the book takes it; a commit without a ledger is refused before that."""
        return Segment(self.rank, self.start, self.stop, self.ledger or Ledger(), self.name)


@dataclass(frozen=True, slots=True)
class PodReport:
    """One report of one pod's sidecar."""

    job_uid: str
    pod_index: int
    pod_uid: str
    plan_generation: int
    session: str
    sequence: int
    ranks: tuple[RankReport, ...] = ()
    commits: tuple[RankCommit, ...] = ()
    #: (kind, message, retryable)
    failures: tuple[tuple[str, str, bool], ...] = ()
    quarantined: tuple[tuple[str, str], ...] = ()
    metrics_address: str = ""
    ready: bool = False
    protocol: int = PROTOCOL_VERSION
    #: Last words of a session that has ended: they never push another session out.
    last: bool = False


@dataclass(frozen=True, slots=True)
class Committed:
    """The job's last commit that is persisted."""

    step: int
    name: str
    plan_generation: int


@dataclass(frozen=True, slots=True)
class StopAt:
    """Leave at this total step."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer. `commits_taken`: how many of the report's commits, from its first on, need not be sent again."""

    fenced: bool = False
    reason: str = ""
    commits_taken: int = 0
    stop_at: StopAt | None = None
    last_commit: Committed | None = None
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of a report. `version`: its commits are safe once this version is persisted."""

    version: int
    refused: str = ""
    fenced: bool = False
    fresh: bool = False
