"""Who is believed over real TLS: certificates, tokens, pods, namespaces, jobs."""

import socket
import threading
import time
from collections import Counter
from contextlib import ExitStack

import grpc
import pytest

from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.proto import lanefeed_pb2_grpc as rpc
from lanefeed_operator.coordinator import handlers, limits
from lanefeed_operator.coordinator.certificates import Lifetimes, renewed
from lanefeed_operator.kube.api import TokenOwner
from support.feed_client import eventually
from support.report_bed import Bed, jwt, refusal

Code = grpc.StatusCode


def test_a_report_of_the_pod_that_holds_the_index_counts(bed: Bed) -> None:
    job = bed.job("j1")
    with bed.pod("j1", 0) as a, bed.pod("j1", 1) as b:
        assert a.say(7, (0, 7)).commits_taken == 0
        reply = b.say(7, (0, 7))
        assert (reply.commits_taken, reply.last_commit.name) == (1, "c7")
        assert a.say(8, (0, 7)).commits_taken == 1
    assert job.core.snapshot(0).ranks[0].consumed == 8
    assert bed.counts() == {"ok": 3}


def test_another_ca_is_not_trusted_and_plaintext_is_not_served(bed: Bed) -> None:
    bed.job("j1")
    other, _ = renewed(None, ["127.0.0.1"], time.time(), Lifetimes())
    with bed.pod("j1", 0, trust=other.trust) as pod:
        code, words = refusal(lambda: pod.say(1))
        assert code is Code.UNAVAILABLE
        assert "handshake" in words.lower() or "certificate" in words.lower() or "ssl" in words.lower()
        with grpc.insecure_channel(f"127.0.0.1:{bed.port}") as channel:
            stub = rpc.CoordinatorStub(channel)
            code, _ = refusal(lambda: stub.Report(pod.request(1), timeout=2, metadata=pod.metadata))
            assert code in {Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED}
    assert bed.counts() == {}


@pytest.mark.parametrize(("name", "good"), [("lanefeed.system.svc", True), ("evil.example.org", False)])
def test_the_certificate_names_the_service(bed: Bed, name: str, good: bool) -> None:
    bed.job("j1")
    trust = grpc.ssl_channel_credentials(bed.certificates.trust.encode())
    options = [("grpc.ssl_target_name_override", name)]
    with bed.pod("j1", 0) as pod, grpc.secure_channel(f"127.0.0.1:{bed.port}", trust, options=options) as channel:
        pod.stub = rpc.CoordinatorStub(channel)
        if good:
            pod.say(1)
        else:
            assert refusal(lambda: pod.say(1))[0] is Code.UNAVAILABLE


@pytest.mark.parametrize(
    ("token", "words"),
    [
        ("", "the token is missing"),
        ("nonsense", "the API server refuses the token"),
        (jwt("expired", -10), "the API server refuses the token"),
        ("x" * 17_000, "a token of 17000 bytes"),
    ],
)
def test_a_token_that_is_none_is_refused(bed: Bed, token: str, words: str) -> None:
    bed.job("j1")
    with bed.pod("j1", 0) as pod:
        pod.token = token
        code, details = refusal(lambda: pod.say(1))
        assert code is Code.UNAUTHENTICATED
        assert words in details
        if len(token) > 20:
            assert token not in details
    assert bed.counts() == {"unauthenticated": 1}


def test_a_token_that_is_bound_to_no_pod_is_refused(bed: Bed) -> None:
    bed.job("j1")
    bed.api.tokens["unbound"] = TokenOwner("team", "trainer", "", "")
    with bed.pod("j1", 0, token="unbound") as pod:
        code, words = refusal(lambda: pod.say(1))
    assert code is Code.UNAUTHENTICATED
    assert "bound to no pod" in words


def test_a_pod_speaks_for_itself_alone(bed: Bed) -> None:
    """Another pod of the job, a pod of another job, and one of another namespace that claims the same UID."""
    job = bed.job("j1")
    bed.job("j2", namespace="rivals")
    with bed.pod("j1", 0) as mine, bed.pod("j2", 0, namespace="rivals") as theirs:
        request = mine.request(9)
        request.pod_uid, request.pod_index = "j1-p1", 1
        code, words = refusal(lambda: mine.send(request))
        assert code is Code.PERMISSION_DENIED
        assert words == "the token is of pod j1-p0 and the message says pod j1-p1"
        request = theirs.request(9)
        request.job_uid = "j1"
        code, words = refusal(lambda: theirs.send(request))
        assert code is Code.PERMISSION_DENIED
        assert words == "the token is of namespace rivals and job job is of team"
        reply = theirs.say(9)
        assert not reply.reason
    assert job.core.snapshot(0).ranks == {}
    assert bed.counts() == {"unauthenticated": 2, "ok": 1}


def test_a_pod_of_the_namespace_that_holds_no_index_changes_nothing(bed: Bed) -> None:
    job = bed.job("j1")
    with bed.pod("j1", 0, uid="stranger") as pod:
        reply = pod.say(9)
    assert not reply.fenced
    assert "not known yet at index 0: try again" in reply.reason
    assert job.core.snapshot(0).ranks == {}
    assert bed.counts() == {"not_yet": 1}


def test_a_job_that_is_not_known_yet_is_to_be_tried_again_and_never_fenced(bed: Bed) -> None:
    with bed.pod("j1", 0) as pod:
        code, words = refusal(lambda: pod.say(1))
        assert code is Code.UNAVAILABLE
        assert words == "job j1 is not known here (yet): try again"
        job = bed.job("j1")
        core, job.coordinator = job.coordinator, None
        code, words = refusal(lambda: pod.say(1))
        assert code is Code.UNAVAILABLE
        assert "has no manifest yet" in words
        job.coordinator = core
        assert not pod.say(1).reason
    assert bed.counts() == {"unknown_job": 1, "unavailable": 1, "ok": 1}


def test_an_api_server_that_is_down_accepts_nobody_new_and_forgets_nobody_known(bed: Bed) -> None:
    bed.job("j1")
    with bed.pod("j1", 0) as known, bed.pod("j1", 1) as new:
        known.say(1)
        bed.api.down = True
        code, words = refusal(lambda: new.say(1))
        assert code is Code.UNAVAILABLE
        assert "the API server cannot be asked whose token this is" in words
        assert not known.say(2).reason
        bed.api.down = False
        assert not new.say(1).reason
    assert bed.counts() == {"ok": 3, "unavailable": 1}


def test_a_replayed_report_and_a_replaced_pod(bed: Bed) -> None:
    job = bed.job("j1")
    with bed.pod("j1", 0) as pod:
        old = pod.request(3)
        pod.send(old)
        pod.say(9)
        reply = pod.send(old)
        assert not reply.reason
        assert job.core.snapshot(0).ranks[0].consumed == 9
        job.core.expect(1, 0, "j1-p0-new")
        assert pod.say(11).fenced
    assert bed.counts() == {"ok": 2, "stale": 1, "fenced": 1}


def test_each_token_is_reviewed_once_however_many_calls_bring_it(bed: Bed) -> None:
    bed.job("j1", world=4)
    bed.api.review_seconds = 0.2
    with bed.pod("j1", 0) as pod:
        calls = [pod.stub.Report.future(pod.request(1), timeout=60, metadata=pod.metadata) for _ in range(3)]
        assert not any(call.result().reason for call in calls)
        for step in range(20):
            pod.say(step)
    assert bed.api.reviews == 1


def test_a_flood_of_wrong_tokens_is_slowed_reviewed_seldom_and_holds_up_no_known_pod(bed: Bed) -> None:
    bed.job("j1")
    with ExitStack() as stack:
        pod = stack.enter_context(bed.pod("j1", 0))
        rogues = [stack.enter_context(bed.pod("j1", 1)) for _ in range(20)]
        pod.say(1)
        began = time.monotonic()
        calls = [
            rogue.stub.Report.future(pb.ReportRequest(), timeout=60, metadata=(("lanefeed-token", f"no-{n}-{i}"),))
            for i, rogue in enumerate(rogues)
            for n in range(20)
        ]
        for step in range(2, 12):
            pod.say(step)
        ends = Counter((call.exception().code(), call.exception().details()[:40]) for call in calls)
    # UNAVAILABLE: streams above what a connection may have, refused by gRPC itself.
    codes = {code for code, _ in ends}
    assert codes <= {Code.UNAUTHENTICATED, Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE}, ends
    seconds = time.monotonic() - began
    assert bed.api.reviews < 75 + 5 * seconds, "50 at once, then 5 a second, and what was under way"
    assert bed.counts()["ok"] == 11


def test_one_pod_has_few_calls_at_a_time(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TARPIT_SECONDS", 0.0)
    monkeypatch.setattr(handlers, "PERSIST_SECONDS", 60.0)
    job = bed.job("j1")
    job.persisting = False
    with bed.pod("j1", 0) as a, bed.pod("j1", 1) as b:
        a.say(7, (0, 7))
        # Their commit is not persisted, so the answers are held.
        held = [b.stub.Report.future(b.request(7, [(0, 7)]), timeout=60, metadata=b.metadata) for _ in range(3)]
        with eventually() as check:
            check(lambda: len(job.core._waiting) == 3)
        code, words = refusal(lambda: b.say(8, (0, 7)))
        assert code is Code.RESOURCE_EXHAUSTED
        assert "3 calls of j1-p1 are under way" in words
        job.persisting = True
        job.persist()
        assert [call.result().commits_taken for call in held] == [1, 1, 1]
        assert not b.say(8).reason


def test_connections_that_say_nothing_are_closed_and_cost_no_thread(bed: Bed) -> None:
    bed.job("j1")
    before = threading.active_count()
    idle = [socket.create_connection(("127.0.0.1", bed.port)) for _ in range(100)]
    try:
        with bed.pod("j1", 0) as pod:
            assert not pod.say(1).reason
        assert threading.active_count() - before < 12
    finally:
        for connection in idle:
            connection.close()
