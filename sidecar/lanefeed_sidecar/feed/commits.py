"""`Feed.Commit`: checks a rank's commit, keeps it safe in the pod, and passes it on.

A commit counts here once its line is in `commits.jsonl`; the answer waits for nothing else. Without a control plane the
book is kept here too (`report.localbook`).
"""

import json
import logging

from lanefeed_core.ledger import Ledger
from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_sidecar import failpoints
from lanefeed_sidecar.errors import CommitRefused, LedgerMismatch
from lanefeed_sidecar.feed.hub import Hub
from lanefeed_sidecar.report.commits import CommitLog
from lanefeed_sidecar.report.localbook import LocalBook

__all__ = ["Committer"]

log = logging.getLogger(__name__)

MAX_NAME_BYTES = 512


class Committer:
    """Takes commits of the pod's ranks. Thread safe."""

    def __init__(self, hub: Hub, commits: CommitLog, book: LocalBook | None) -> None:
        """`book`: None where a control plane keeps it."""
        self._hub, self._log, self._book = hub, commits, book
        self.taken = 0

    def commit(self, request: pb.CommitRequest) -> pb.CommitReply:
        """Keep a commit. A refusal is an answer, not an error; SidecarError: it could not be kept."""
        try:
            self._check(request)
        except CommitRefused as error:
            self._hub.stats.error(error.kind)
            log.warning("refused the commit of rank %d: %s", request.rank, error)
            return pb.CommitReply(accepted=False, reason=str(error))
        message = request.commit
        failpoints.hit("commit.before_append")
        if self._log.append(message):
            self.taken += 1
        failpoints.hit("commit.after_append")
        life = self._hub.lives().get(message.rank)
        if life is not None:
            life.reached(message.stop)
        if self._book is not None:
            try:
                self.settle(self._book)
            except LedgerMismatch as error:
                return pb.CommitReply(accepted=False, reason=str(error))
        self._hub.on_news()
        return pb.CommitReply(accepted=True, reason=self._hub.take_refused())

    def settle(self, book: LocalBook) -> None:
        """Put what waits into the book; what a job commit covers need not wait any longer.

        Raises LedgerMismatch, after it was told to all streams and to the supervisor.
        """
        waiting = self._log.batch(1 << 20)
        try:
            for pending in waiting:
                made = book.commit(pending.message)
                if made is not None:
                    log.info("step %d %sis the job's commit", made.step, f"({made.name}) " if made.name else "")
        except LedgerMismatch as error:
            self._hub.add_failure(error)
            self._hub.bar(error)
            self._hub.on_fatal(error)
            raise
        last = book.last
        self._log.acknowledge([p.number for p in waiting if book.covers(p.message.stop)])
        if last.step:
            self._hub.committed(pb.Committed(step=last.step, name=last.name, plan_generation=last.plan_generation))

    def _check(self, request: pb.CommitRequest) -> None:
        """Raise CommitRefused for a commit that can never count."""
        barred = self._hub.barred
        if barred is not None and not barred.retryable:
            raise CommitRefused(str(barred))
        plan, c = self._hub.config.plan, request.commit
        what = f"commit of step {c.stop} by rank {c.rank}"
        if request.plan_generation != plan.generation:
            raise CommitRefused(
                f"{what} is of plan generation {request.plan_generation} and this pod of {plan.generation}: this "
                "process was replaced; let it exit"
            )
        if c.rank != request.rank or c.rank not in self._hub.ranks:
            raise CommitRefused(
                f"{what}: this pod has ranks {list(self._hub.ranks)}, and the call came from {request.rank}"
            )
        if c.stop < c.start:
            raise CommitRefused(f"{what}: it goes back from step {c.start}")
        if len(c.name.encode()) > MAX_NAME_BYTES or not c.name.isprintable():
            raise CommitRefused(
                f"{what}: the checkpoint's name must be printable and at most {MAX_NAME_BYTES} bytes long"
            )
        life = self._hub.lives().get(c.rank)
        if life is not None and request.session == self._hub.session and c.stop > max(life.delivered, life.start):
            raise CommitRefused(f"{what}: only {life.delivered} steps were delivered to it")
        try:
            Ledger.from_dict(json.loads(c.ledger_json))
        except (ValueError, TypeError, AttributeError) as error:
            raise CommitRefused(f"{what}: its ledger cannot be read ({error!r})") from None
