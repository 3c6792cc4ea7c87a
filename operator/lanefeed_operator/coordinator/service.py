"""lanefeed.v1.Coordinator over gRPC: a thin edge that turns messages into plain values and back.

Called by sidecars; started by the shells. Decides nothing. A report that completed a job commit is held for a moment
until that commit is persisted, so that its sidecar is told at once.
"""

import hmac
import json
import logging
import os
from collections.abc import Callable, Iterable
from concurrent import futures
from typing import Any

import grpc

from lanefeed_core.ledger import Ledger
from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.proto import lanefeed_pb2_grpc as rpc
from lanefeed_core.wire import MAX_MESSAGE_BYTES, TOKEN_METADATA
from lanefeed_operator.coordinator.core import Coordinator
from lanefeed_operator.coordinator.reports import PodReport, RankCommit, RankReport, Reply
from lanefeed_operator.errors import CoordinatorError

__all__ = ["Server", "serve"]

log = logging.getLogger(__name__)

#: How long a report waits for its own commit to be persisted before it is answered without.
PERSIST_SECONDS = 1.0
#: Sidecars keep one connection each; reports of a thousand pods at 2 a second are short.
THREADS = 8


class Server:
    """A running report service. `address` is what sidecars connect to."""

    def __init__(self, server: grpc.Server, address: str) -> None:
        """Made by `serve`."""
        self._server = server
        self.address = address

    def stop(self, grace: float = 1.0) -> None:
        """Take no more reports, let the present ones end, close; a Unix socket is removed."""
        self._server.stop(grace).wait(grace + 5.0)
        if self.address.startswith("unix:"):
            path = self.address.removeprefix("unix:")
            if os.path.exists(path):
                os.unlink(path)


class _Servicer(rpc.CoordinatorServicer):
    """Checks the token, converts, asks the core."""

    def __init__(self, core: Coordinator, token: str, clock: Callable[[], float]) -> None:
        self._core = core
        self._token = token.encode()
        self._clock = clock

    def Report(self, request: pb.ReportRequest, context: grpc.ServicerContext) -> pb.ReportReply:
        """One report of one sidecar."""
        self._authenticate(context)
        report = read_report(request)
        taken = self._core.take(report, self._clock())
        if report.commits and not taken.refused:
            self._core.wait_persisted(taken.version, PERSIST_SECONDS)
        return write_reply(self._core.reply(report, taken))

    def _authenticate(self, context: grpc.ServicerContext) -> None:
        sent = dict(context.invocation_metadata()).get(TOKEN_METADATA, "")
        given = sent.encode() if isinstance(sent, str) else sent
        if not hmac.compare_digest(given, self._token):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is missing or wrong")


def serve(core: Coordinator, address: str, token: str, clock: Callable[[], float]) -> Server:
    """Start the service at `address` ("unix:/path" or "host:port"; port 0: any free one).

    `token` is what sidecars send as metadata `lanefeed-token`; `clock` gives seconds since 1970.
    Raises CoordinatorError where the address cannot be bound.
    """
    if len(token) < 16:
        raise CoordinatorError(f"the coordinator's token has {len(token)} characters: use at least 16 random ones")
    if address.startswith("unix:") and os.path.exists(address.removeprefix("unix:")):
        os.unlink(address.removeprefix("unix:"))
    server = grpc.server(
        futures.ThreadPoolExecutor(THREADS, thread_name_prefix="coordinator"),
        options=[("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.so_reuseport", 0)],
    )
    rpc.add_CoordinatorServicer_to_server(_Servicer(core, token, clock), server)
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise CoordinatorError(f"cannot listen at {address}: {error}; is another runner using it?") from None
    server.start()
    if not address.startswith("unix:"):
        address = f"{address.rpartition(':')[0]}:{port}"
    return Server(server, address)


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
