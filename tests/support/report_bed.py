"""A report service over TLS as a cluster has it, its jobs, and pods that report to it; the API is in memory."""

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from lanefeed_core.ledger import Ledger
from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.proto import lanefeed_pb2_grpc as rpc
from lanefeed_core.wire import PROTOCOL_VERSION, TOKEN_METADATA
from lanefeed_operator.api.status import LedgerStatus, PlanStatus, Status
from lanefeed_operator.coordinator.authenticate import TokenAuthenticator
from lanefeed_operator.coordinator.certificates import Lifetimes
from lanefeed_operator.coordinator.certstore import Certificates
from lanefeed_operator.coordinator.cluster import serve_cluster
from lanefeed_operator.coordinator.core import Coordinator
from lanefeed_operator.coordinator.service import Server
from lanefeed_operator.kube.api import TokenOwner, Unreachable
from sim.pods import EPOCHS, lanes_of, rank_ids, rank_sum
from support.kube_store import KubeStore
from support.ports import free_port

AUDIENCE = "lanefeed.dev/coordinator"
LANES = lanes_of("Partial")
TOTAL = EPOCHS * LANES.steps_per_epoch


def jwt(name: str, seconds: float = 3600.0) -> str:
    """A token as long and of the shape of a real one; its signature is the API's business."""
    body = json.dumps({"exp": time.time() + seconds, "sub": name, "pad": "x" * 600}).encode()
    return f"aGVhZA.{base64.urlsafe_b64encode(body).decode().rstrip('=')}.c2ln"


def ledger(world: int, rank: int, first: int, until: int) -> Ledger:
    """What a rank consumes from step `first` to `until`."""
    found = Ledger()
    for total in range(first, until):
        count = len(rank_ids("Partial", total, world, rank))
        found.add(total // LANES.steps_per_epoch, count, rank_sum("Partial", total, world, rank))
    return found


class Api(KubeStore):
    """The API server, as far as the service asks: reviews are counted, may be slow, and may fail."""

    def __init__(self) -> None:
        super().__init__(time.time)
        self.reviews = 0
        self.review_seconds = 0.0
        self.down = False
        self._counting = threading.Lock()

    def token_owner(self, token: str, audience: str) -> TokenOwner | None:
        with self._counting:
            self.reviews += 1
        time.sleep(self.review_seconds)
        if self.down:
            raise Unreachable("no answer from the API server")
        return self.tokens.get(token) if audience == AUDIENCE else None


@dataclass
class OneJob:
    """A Member, with a shell that persists (or does not) whenever it is woken."""

    uid: str
    world: int = 2
    namespace: str = "team"
    name: str = "job"
    coordinator: Coordinator | None = None
    status: Status = field(default_factory=Status)
    persisting: bool = True

    def begin(self) -> "OneJob":
        """A new job, its pods expected."""
        self.coordinator = core = Coordinator(self.uid, LANES, TOTAL)
        core.new_plan(1, self.world, 1)
        self._attach(core)
        self.persist()
        return self

    def restart(self) -> None:
        """The operator died: what was persisted is all that is left."""
        status = Status.model_validate(json.loads(json.dumps(self.status.to_dict())))
        self.coordinator = core = Coordinator(self.uid, LANES, TOTAL, status)
        self._attach(core)

    def _attach(self, core: Coordinator) -> None:
        for index in range(self.world):
            core.expect(1, index, f"{self.uid}-p{index}")
        core.on_change = self.persist

    def persist(self) -> None:
        """A pass of the controller."""
        if self.persisting and self.coordinator is not None:
            feed = self.coordinator.snapshot(time.time())
            plan = PlanStatus(generation=feed.plan_generation, replicas=self.world)
            ledgers = LedgerStatus(verified=feed.proven, epochs=list(feed.proofs))
            self.status = Status(book=feed.book, plan=plan, ledger=ledgers)
            self.coordinator.persisted(feed.version)

    @property
    def core(self) -> Coordinator:
        assert self.coordinator is not None
        return self.coordinator


class Jobs(dict[str, OneJob]):
    """The Directory; uploads are kept, and refused where `refusal` says why."""

    def __init__(self) -> None:
        super().__init__()
        self.manifests: dict[str, tuple[str, bytes]] = {}
        self.failures: list[tuple[str, str, str, str, bool]] = []
        self.refusal = ""

    def find(self, job_uid: str) -> OneJob | None:
        return self.get(job_uid)

    def put_manifest(self, job_uid: str, pod_uid: str, digest: str, data: bytes) -> str:
        if not self.refusal:
            self.manifests[job_uid] = (digest, data)
        return self.refusal

    def manifest_failed(self, job_uid: str, pod_uid: str, kind: str, message: str, retryable: bool) -> None:
        self.failures.append((job_uid, pod_uid, kind, message, retryable))


class Bed:
    """The service, and what it rests on."""

    def __init__(self, lifetimes: Lifetimes | None = None, renew_seconds: float = 300.0) -> None:
        self.api, self.jobs = Api(), Jobs()
        self.lifetimes, self.renew_seconds = lifetimes or Lifetimes(), renew_seconds
        self.certificates = self.make_certificates()
        self.gate: TokenAuthenticator | None = None
        self.server: Server | None = None
        self.port = free_port()

    def make_certificates(self) -> Certificates:
        names = ("127.0.0.1", "lanefeed.system.svc")
        return Certificates(self.api, "system", "certs", names, time.time, lifetimes=self.lifetimes)

    def up(self) -> None:
        """Start, at the same port as before."""
        gate = TokenAuthenticator(self.api, AUDIENCE) if self.gate is None else self.gate
        address = f"127.0.0.1:{self.port}"
        self.server = serve_cluster(
            self.jobs, address, self.certificates, gate, time.time, renew_seconds=self.renew_seconds
        )
        self.port = int(self.server.address.rpartition(":")[2])

    def down(self, grace: float = 0.0) -> None:
        if self.server is not None:
            self.server.stop(grace)
            self.server = None

    def job(self, uid: str, world: int = 2, namespace: str = "team") -> OneJob:
        self.jobs[uid] = OneJob(uid, world, namespace).begin()
        return self.jobs[uid]

    def counts(self) -> dict[str, int]:
        """Calls by result, those that were."""
        assert self.server is not None
        return {name: count for name, count in self.server.counters.totals().items() if count}

    def pod(self, job: str, index: int, **more: Any) -> "Pod":
        return Pod(self, job, index, **more)


class Pod:
    """A sidecar of rank `index`: its channel, token and reports."""

    def __init__(
        self,
        bed: Bed,
        job: str,
        index: int,
        *,
        uid: str = "",
        namespace: str = "team",
        trust: str = "",
        token: str = "",
    ) -> None:
        self.bed, self.job, self.index = bed, job, index
        self.uid = uid or f"{job}-p{index}"
        self.token = token or jwt(self.uid)
        if not token:
            bed.api.tokens[self.token] = TokenOwner(namespace, "trainer", f"pod-{index}", self.uid)
        self.session, self.sequence, self.consumed, self.committed = f"s-{self.uid}", 0, 0, 0
        self.channel = grpc.secure_channel(
            f"127.0.0.1:{bed.port}",
            grpc.ssl_channel_credentials((trust or bed.certificates.trust).encode()),
            options=[
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.max_reconnect_backoff_ms", 200),
                ("grpc.max_send_message_length", 64 << 20),
            ],
        )
        self.stub = rpc.CoordinatorStub(self.channel)

    def __enter__(self) -> "Pod":
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return ((TOKEN_METADATA, self.token),)

    def request(self, consumed: int = 0, commits: Sequence[tuple[int, int]] = (), world: int = 2) -> pb.ReportRequest:
        """The next report."""
        self.sequence += 1
        request = pb.ReportRequest(protocol=PROTOCOL_VERSION, job_uid=self.job, pod_index=self.index, pod_uid=self.uid)
        request.plan_generation, request.session, request.sequence, request.ready = 1, self.session, self.sequence, True
        request.ranks.add(rank=self.index, consumed=consumed, attached=True)
        for first, until in commits:
            text = json.dumps(ledger(world, self.index, first, until).to_dict())
            request.commits.add(rank=self.index, start=first, stop=until, name=f"c{until}", ledger_json=text)
        return request

    def say(
        self, consumed: int = 0, *commits: tuple[int, int], world: int = 2, seconds: float = 60.0
    ) -> pb.ReportReply:
        """Send it and wait for the answer."""
        return self.send(self.request(consumed, commits, world), seconds)

    def send(self, request: pb.ReportRequest, seconds: float = 60.0) -> pb.ReportReply:
        return self.stub.Report(request, timeout=seconds, metadata=self.metadata)

    def upload(self, pieces: Iterator[pb.ManifestPiece], seconds: float = 60.0) -> pb.ManifestReply:
        return self.stub.PutManifest(pieces, timeout=seconds, metadata=self.metadata)


def pieces_of(
    pod: Pod, data: bytes, *, size: int | None = None, piece: int = 256 << 10, digest: str = "d1"
) -> Iterator[pb.ManifestPiece]:
    """An upload as an indexer makes it."""
    head = pb.ManifestPiece(protocol=PROTOCOL_VERSION, job_uid=pod.job, pod_uid=pod.uid, digest=digest)
    head.size = len(data) if size is None else size
    head.data = data[:piece]
    yield head
    for at in range(piece, len(data), piece):
        yield pb.ManifestPiece(data=data[at : at + piece])


def refusal(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    """The status that `call` is refused with, and its words."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details() or ""
