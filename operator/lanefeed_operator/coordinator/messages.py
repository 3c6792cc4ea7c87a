"""Reports between the wire and plain values. Used by `service`; decides nothing."""

import json
import logging
from collections.abc import Iterable
from typing import Any

from lanefeed_core.ledger import Ledger
from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_operator.coordinator.reports import PodReport, RankCommit, RankReport, Reply

__all__ = ["read_report", "write_reply"]

log = logging.getLogger(__name__)


def read_report(m: pb.ReportRequest) -> PodReport:
    """The wire's report as plain values."""
    return PodReport(
        protocol=m.protocol,
        job_uid=m.job_uid,
        pod_index=m.pod_index,
        pod_uid=m.pod_uid,
        plan_generation=m.plan_generation,
        session=m.session,
        sequence=m.sequence,
        ranks=tuple(_rank(r) for r in m.ranks),
        commits=tuple(_commits(m.commits)),
        failures=tuple((f.kind, f.message, f.retryable) for f in m.failures),
        quarantined=tuple((q.path, q.reason) for q in m.quarantined),
        metrics_address=m.metrics_address,
        ready=m.ready,
    )


def _rank(r: Any) -> RankReport:
    return RankReport(
        rank=r.rank,
        started=r.started,
        from_state=r.started_from_state,
        consumed=r.consumed,
        attached=r.attached,
        ended=r.ended,
        wait_seconds=r.wait_seconds,
        step_seconds=r.step_seconds,
    )


def _commits(messages: Iterable[Any]) -> Iterable[RankCommit]:
    for m in messages:
        try:
            ledger = Ledger.from_dict(json.loads(m.ledger_json))
        except (ValueError, TypeError, AttributeError) as error:
            log.warning("commit of rank %d at step %d has a ledger that cannot be read: %s", m.rank, m.stop, error)
            ledger = None
        yield RankCommit(m.rank, m.start, m.stop, m.name, ledger)


def write_reply(reply: Reply) -> pb.ReportReply:
    """The answer for the wire."""
    message = pb.ReportReply(
        fenced=reply.fenced, reason=reply.reason, commits_taken=reply.commits_taken, refused=reply.refused
    )
    if reply.stop_at:
        message.stop_at.step, message.stop_at.reason = reply.stop_at.step, reply.stop_at.reason
    if reply.last_commit:
        last = reply.last_commit
        message.last_commit.step, message.last_commit.name = last.step, last.name
        message.last_commit.plan_generation = last.plan_generation
    return message
