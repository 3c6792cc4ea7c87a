"""What sidecars tell besides steps and commits: failures and quarantined shards, bounded. Used by `core`; pure."""

from lanefeed_operator.coordinator.reports import PodReport
from lanefeed_operator.reconcile.types import FeedFailure

__all__ = ["Notes"]

MAX_FAILURES = 32
MAX_MESSAGE = 4096
MAX_QUARANTINED = 1024


class Notes:
    """Failures of the present plan, and quarantined shards of the job."""

    __slots__ = ("failures", "quarantined")

    def __init__(self) -> None:
        """Nothing was told yet."""
        self.failures: list[FeedFailure] = []
        self.quarantined: dict[str, str] = {}

    def add(self, r: PodReport) -> bool:
        """Note what a report says; whether anything of it is new."""
        before = len(self.failures), len(self.quarantined)
        for kind, message, retryable in r.failures:
            failure = FeedFailure(kind, message[:MAX_MESSAGE], retryable, r.pod_index)
            if failure not in self.failures and len(self.failures) < MAX_FAILURES:
                self.failures.append(failure)
        for path, reason in r.quarantined:
            if path in self.quarantined or len(self.quarantined) < MAX_QUARANTINED:
                self.quarantined[path] = reason
        return before != (len(self.failures), len(self.quarantined))
