"""The methods of lanefeed.v1.Coordinator: who calls, what it says as plain values, and the core's answer.

Made and served by `service` (one job, one machine) and `cluster` (many jobs, TLS). Everything runs on the event loop
of `loop`, so that a held answer (a report that completed a job commit is answered when that commit is persisted) or a
slow caller costs no thread; what may take long (TokenReview, sums over a dataset, storing a manifest) has a few threads
of its own. Decides nothing.

Methods are registered as streams of raw bytes, which on the wire is the same: a caller must show its token before a
byte of its message is read.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.wire import MAX_MESSAGE_BYTES, TOKEN_METADATA
from lanefeed_operator.coordinator import limits, uploads
from lanefeed_operator.coordinator.authenticate import Authenticator, Caller
from lanefeed_operator.coordinator.core import Coordinator
from lanefeed_operator.coordinator.counters import Counters
from lanefeed_operator.coordinator.directory import Directory, Member
from lanefeed_operator.coordinator.limits import AtOnce, Buckets, PerSecond
from lanefeed_operator.coordinator.messages import read_report, write_reply
from lanefeed_operator.coordinator.pace import Pacer
from lanefeed_operator.coordinator.rejected import Rejected
from lanefeed_operator.coordinator.reports import PodReport, Taken
from lanefeed_operator.errors import OperatorError

__all__ = ["MAX_CALLS", "Service"]

log = logging.getLogger(__name__)

#: How long a report waits for its own commit to be persisted before it is answered without.
PERSIST_SECONDS = 1.0
#: A report must arrive within this time once its caller is known.
READ_SECONDS = 10.0
#: Calls under way: of one pod (a held one and the one that follows it), and of all.
POD_CALLS, MAX_CALLS = 3, 4096
#: Reports a second of one pod: its own pace is 2, and news come at once.
POD_REPORTS = 50
#: Uploads under way: of one namespace, and of all; each is a manifest's worth of memory.
NAMESPACE_UPLOADS, MAX_UPLOADS = 2, 8
#: Refused tokens of one address: at once, and a second. Known tokens from the same address are not held up.
REFUSED_BURST, REFUSED_RATE = 50.0, 5.0
#: Tokens that wait for a review by the API server.
REVIEW_THREADS, MAX_REVIEWS = 8, 1024
PROOF_THREADS = 2

#: gRPC has no types.
Context = Any
Method = Callable[[Caller, Context], Awaitable[Any]]


class Service:
    """The handlers, for all jobs of a directory. Everything runs on the event loop but what is given to threads."""

    def __init__(self, directory: Directory, gate: Authenticator, clock: Callable[[], float]) -> None:
        """`clock`: seconds since 1970, for the cores."""
        self._directory, self._gate, self._clock = directory, gate, clock
        self.counters = Counters()
        self.pacer: Pacer | None = None
        self._late = 0
        self._calls = AtOnce("calls", POD_CALLS, MAX_CALLS)
        self._pods = PerSecond(POD_REPORTS)
        self._uploads = AtOnce("uploads", NAMESPACE_UPLOADS, MAX_UPLOADS)
        self._refusals = Buckets(REFUSED_RATE, REFUSED_BURST)
        self._reviews: dict[str, asyncio.Future[Caller]] = {}
        self._reviewers = ThreadPoolExecutor(REVIEW_THREADS, thread_name_prefix="tokenreview")
        self._workers = ThreadPoolExecutor(PROOF_THREADS, thread_name_prefix="proof")
        self._storers = ThreadPoolExecutor(PROOF_THREADS, thread_name_prefix="manifest")

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a server is given."""
        methods: dict[str, tuple[Method, Any]] = {
            "Report": (self._report, pb.ReportReply.SerializeToString),
            "PutManifest": (self._put, pb.ManifestReply.SerializeToString),
        }
        return grpc.method_handlers_generic_handler(
            "lanefeed.v1.Coordinator",
            {
                name: grpc.stream_unary_rpc_method_handler(self._guarded(method), None, serialize)
                for name, (method, serialize) in methods.items()
            },
        )

    def close(self) -> None:
        """End the threads; what they are at is not waited for."""
        for pool in (self._reviewers, self._workers, self._storers):
            pool.shutdown(wait=False, cancel_futures=True)

    # ---- every call ---------------------------------------------------------------------------------------------

    def _guarded(self, method: Method) -> Callable[..., Awaitable[Any]]:
        async def answer(_requests: Any, context: Context) -> Any:
            try:
                caller = await self._authenticate(context)
                with self._calls.held(caller.pod_uid):
                    return await method(caller, context)
            except Rejected as error:
                await self._reject(context, error)
            except OperatorError as error:
                await self._reject(context, Rejected.unavailable(f"try again: {error}"))
            except Exception:
                log.exception("a call of the report service failed")
                await self._reject(context, Rejected(grpc.StatusCode.INTERNAL, "see the operator's log", "error"))
            raise AssertionError("abort raises")

        return answer

    async def _reject(self, context: Context, error: Rejected) -> None:
        self.counters.add(error.result)
        if error.result in {"busy", "unauthenticated"} and self.pacer is not None and self._late < limits.MAX_LATE:
            self._late += 1
            try:
                await asyncio.sleep(limits.TARPIT_SECONDS)
            finally:
                self._late -= 1
        await context.abort(error.code, str(error))

    async def _authenticate(self, context: Context) -> Caller:
        sent = dict(context.invocation_metadata() or ()).get(TOKEN_METADATA, "")
        token = sent if isinstance(sent, str) else sent.decode(errors="replace")
        host, now = _host(context.peer()), time.monotonic()
        try:
            known = self._gate.known(token)
            if known is not None:
                return known
            if self._refusals.full(host, now):
                raise Rejected.busy(f"{host} sent too many tokens that were refused: wait a few seconds")
            return await self._review(token)
        except Rejected as error:
            if error.result == "unauthenticated":
                self._refusals.pour(host, now)
            raise

    async def _review(self, token: str) -> Caller:
        """Each new token is reviewed once, however many calls bring it."""
        running = self._reviews.get(token)
        if running is None:
            if len(self._reviews) >= MAX_REVIEWS:
                raise Rejected.busy(f"{len(self._reviews)} tokens wait to be reviewed: try again in a few seconds")
            running = asyncio.get_running_loop().run_in_executor(self._reviewers, self._gate.review, token)
            self._reviews[token] = running
            running.add_done_callback(lambda done: self._reviewed(token, done))
        return await asyncio.shield(running)

    def _reviewed(self, token: str, done: asyncio.Future[Caller]) -> None:
        self._reviews.pop(token, None)
        if not done.cancelled():
            # Whoever asked may be gone; what it would have been told is of no interest to anybody else.
            done.exception()

    def _member(self, job_uid: str) -> Member:
        member = self._directory.find(job_uid)
        if member is None:
            raise Rejected.unavailable(f"job {job_uid} is not known here (yet): try again", "unknown_job")
        return member

    # ---- Report -------------------------------------------------------------------------------------------------

    async def _report(self, caller: Caller, context: Context) -> pb.ReportReply:
        report = read_report(await self._request(context))
        wait = self._pods.wait(caller.pod_uid, time.monotonic()) if caller.pod_uid else 0.0
        if wait:
            # A trainer that commits every few milliseconds; refusing it would only make it ask again.
            await asyncio.sleep(wait)
        member = self._member(report.job_uid)
        caller.check(member.namespace, report.pod_uid, member.name)
        core = member.coordinator
        if core is None:
            raise Rejected.unavailable(f"job {member.name} has no manifest yet: try again")
        taken = await self._take(core, report)
        if report.commits and not taken.refused:
            await _persisted(core, taken.version)
        reply = write_reply(core.reply(report, taken))
        self.counters.add(_result(taken, reply))
        self._set_pace(report, reply)
        return reply

    async def _request(self, context: Context) -> pb.ReportRequest:
        try:
            async with asyncio.timeout(READ_SECONDS):
                body = await _read(context)
        except TimeoutError:
            raise Rejected.busy(f"the report did not come within {READ_SECONDS:.0f} s") from None
        if body is None:
            raise Rejected.invalid("a call without a report, or with a far too large one")
        if len(body) > MAX_MESSAGE_BYTES:
            raise Rejected.too_large(f"a report of {len(body)} bytes: at most {MAX_MESSAGE_BYTES} are taken")
        try:
            return pb.ReportRequest.FromString(body)
        except DecodeError:
            raise Rejected.invalid("the report is no message of this protocol") from None

    async def _take(self, core: Coordinator, report: PodReport) -> Taken:
        """At once, or in a thread where a dataset is summed up first: other jobs' reports must not wait for it."""
        if not core.slow(report):
            return core.take(report, self._clock())
        running = asyncio.get_running_loop()
        return await running.run_in_executor(self._workers, core.take, report, self._clock())

    def _set_pace(self, report: PodReport, reply: pb.ReportReply) -> None:
        if self.pacer is None:
            return
        self.pacer.seen(report.pod_uid, time.monotonic())
        soon = len(report.commits) > reply.commits_taken or reply.HasField("stop_at")
        chance = random.random()  # noqa: S311 -- jitter
        reply.next_report_seconds = self.pacer.next_seconds(chance, soon=soon and not reply.fenced)

    # ---- PutManifest --------------------------------------------------------------------------------------------

    async def _put(self, caller: Caller, context: Context) -> pb.ManifestReply:
        with self._uploads.held(caller.namespace):

            async def read() -> bytes | None:
                return await _read(context)

            first = await uploads.receive_first(read)
            member = self._member(first.job_uid)
            caller.check(member.namespace, first.pod_uid, member.name)
            running = asyncio.get_running_loop()
            if first.HasField("failure"):
                f, put = first.failure, self._directory.manifest_failed
                job, pod = first.job_uid, first.pod_uid
                await running.run_in_executor(self._storers, put, job, pod, f.kind, f.message[:4096], f.retryable)
                reason = ""
            else:
                whole, store = await uploads.receive(first, read), self._directory.put_manifest
                job, pod = first.job_uid, first.pod_uid
                reason = await running.run_in_executor(self._storers, store, job, pod, whole.digest, whole.data)
        self.counters.add("ok" if not reason else "fenced")
        return pb.ManifestReply(taken=not reason, reason=reason)


async def _read(context: Context) -> bytes | None:
    """The call's next message, None where the caller has said that there is none."""
    body = await context.read()
    return None if body is grpc.aio.EOF else body


async def _persisted(core: Coordinator, version: int) -> None:
    """Wait until `version` is durable, at most PERSIST_SECONDS."""
    running = asyncio.get_running_loop()
    done: asyncio.Future[None] = running.create_future()

    def arrived() -> None:
        if not done.done():
            done.set_result(None)

    def wake() -> None:
        running.call_soon_threadsafe(arrived)

    if not core.when_persisted(version, wake):
        return
    try:
        async with asyncio.timeout(PERSIST_SECONDS):
            await done
    except TimeoutError:
        # Answered without: the sidecar sends the commit again.
        pass
    finally:
        core.cancel_wait(wake)


def _result(taken: Taken, reply: pb.ReportReply) -> str:
    if reply.fenced:
        return "fenced"
    if taken.refused:
        return "not_yet"
    return "ok" if taken.fresh else "stale"


def _host(peer: str) -> str:
    """`ipv4:10.1.2.3:4444` without its port; all callers over a Unix socket are one."""
    return peer.rpartition(":")[0] or peer
