"""The service's own life: certificates that rotate under it, restarts between any two reports, held answers."""

import itertools
import json
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import grpc
import pytest
from cryptography import x509

from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_operator.coordinator import handlers
from lanefeed_operator.coordinator.certificates import Lifetimes
from lanefeed_operator.coordinator.core import Coordinator
from lanefeed_operator.coordinator.reports import PodReport, RankCommit, RankReport
from support.feed_client import eventually
from support.report_bed import LANES, TOTAL, Bed, Pod, ledger, refusal

Code = grpc.StatusCode


def certificate_of(port: int, trust: str) -> x509.Certificate:
    """What the service shows to a new connection."""
    context = ssl.create_default_context(cadata=trust)
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), 5) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as tls,
    ):
        shown = tls.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown)


@pytest.mark.slow
def test_certificates_rotate_while_50_sidecars_report_and_none_is_refused() -> None:
    """Each sidecar connects anew again and again, with a trust file that may be as old as the overlap allows."""
    # Whatever has to be renewed has four seconds left then: a busy machine may stand still for some of them.
    life = Lifetimes(authority=24.0, server=12.0, overlap=4.0, backdate=60.0)
    bed = Bed(life, renew_seconds=0.2)
    bed.up()
    signers: set[str] = set()
    failures: list[str] = []
    stop = threading.Event()
    trusts: list[tuple[float, str]] = [(time.time(), bed.certificates.trust)]
    bed.certificates.on_trust = lambda trust: trusts.append((time.time(), trust))

    def file_of(then: float) -> str:
        """The trust file as it was then: that is how late a kubelet may be."""
        return next((trust for at, trust in reversed(trusts) if at <= then), trusts[0][1])

    def sidecar(index: int) -> int:
        said = 0
        while not stop.is_set():
            then = time.time() - (index % 10) * 0.2
            with bed.pod(f"j{index}", 0, trust=file_of(then)) as pod:
                pod.session = f"s{index}-{said}"
                for _ in range(3):
                    try:
                        assert not pod.say(said).reason
                        said += 1
                    except grpc.RpcError as error:
                        # A thread that stood still for longer than the overlap came with too old a file.
                        if time.time() - then < life.overlap:
                            failures.append(f"{error.code()} {error.details()}")  # type: ignore[attr-defined]
                    if stop.wait(0.3):
                        break
        return said

    for index in range(50):
        bed.job(f"j{index}", world=1)
    try:
        with ThreadPoolExecutor(50) as pool:
            sidecars = [pool.submit(sidecar, index) for index in range(50)]
            until, end = 0.0, time.time() + 120
            while time.time() < (until or end):
                if len(signers) > 1 and not until:
                    until = time.time() + 3
                shown = certificate_of(bed.port, bed.certificates.trust)
                signers.add(shown.issuer.rfc4514_string() + shown.extensions[-1].value.public_bytes().hex()[-40:])
                time.sleep(0.25)
            stop.set()
            counts = [s.result() for s in sidecars]
    finally:
        stop.set()
        bed.down()
    assert not failures, failures[:3]
    assert len(signers) >= 2, "an authority was replaced meanwhile"
    assert min(counts) > 5


def test_a_service_that_restarts_between_any_two_reports_loses_nothing() -> None:
    """Two ranks train to the end; the operator dies after each answer, before and after it persisted."""
    bed = Bed()
    bed.up()
    job = bed.job("j1")
    steps = [*range(0, TOTAL, 7), TOTAL]
    waiting: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    try:
        with bed.pod("j1", 0) as a, bed.pod("j1", 1) as b:
            for turn, (start, stop) in enumerate(itertools.pairwise(steps)):
                for pod in (a, b):
                    waiting[pod.index].append((start, stop))
                for _ in range(3):
                    for pod in (a, b):
                        job.persisting = turn % 2 == 0
                        mine = waiting[pod.index]
                        reply = say_until_answered(pod, stop, mine)
                        del mine[: reply.commits_taken]
                        bed.down()
                        job.restart()
                        bed.up()
            job.persisting = True
            for _ in range(2):
                for pod in (a, b):
                    reply = say_until_answered(pod, TOTAL, waiting[pod.index])
                    del waiting[pod.index][: reply.commits_taken]
            job.persist()
    finally:
        bed.down()
    assert not any(waiting.values())
    feed = job.core.snapshot(0)
    assert feed.last_step == TOTAL
    assert all(proof.verified for proof in feed.proofs)
    assert feed.mismatch is None


def say_until_answered(pod: Pod, consumed: int, commits: list[tuple[int, int]]) -> pb.ReportReply:
    """As a sidecar does: the same report again until there is an answer."""
    until = time.monotonic() + 60
    while True:
        try:
            return pod.say(consumed, *commits)
        except grpc.RpcError:
            assert time.monotonic() < until, "the service did not come back"
            time.sleep(0.05)


def test_an_operator_that_was_made_from_an_old_status_is_found_out() -> None:
    bed = Bed()
    job = bed.job("j1")
    old = job.status
    for step in (7, 14):
        for rank in range(2):
            commit = (step - 7, step)
            pod = PodValues(rank)
            job.core.report(pod.report(step, commit), 1.0)
    newer = job.status
    assert job.core.snapshot(0).last_step == 14
    from_old = Coordinator("j1", LANES, TOTAL, type(old).model_validate(json.loads(json.dumps(old.to_dict()))))
    assert from_old.behind(newer)
    assert not from_old.behind(old)
    assert not job.core.behind(newer)
    assert not job.core.behind(old)


class PodValues:
    """A pod's reports as plain values."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def report(self, step: int, commit: tuple[int, int]) -> PodReport:
        life = RankReport(self.rank, 0, False, step, True)
        made = RankCommit(self.rank, *commit, f"c{step}", ledger(2, self.rank, *commit))
        return PodReport("j1", self.rank, f"j1-p{self.rank}", 1, "s", step, (life,), (made,))


def test_200_sidecars_that_commit_at_once_are_held_without_a_thread_each_and_told_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """50 jobs of 4 ranks; nobody persists until all have reported, as when the API server is slow."""
    # A slow machine needs longer for so many calls than an answer is held otherwise.
    monkeypatch.setattr(handlers, "PERSIST_SECONDS", 60.0)
    bed = Bed()
    bed.up()
    jobs = [bed.job(f"j{n}", world=4) for n in range(50)]
    for job in jobs:
        job.persisting = False
    try:
        with ExitStack() as stack:
            pods = [stack.enter_context(bed.pod(job.uid, rank)) for job in jobs for rank in range(4)]
            for pod in pods:
                pod.say(0, world=4)
            calls = []
            for pod in pods:
                request = pod.request(7, [(0, 7)], world=4)
                calls.append(pod.stub.Report.future(request, timeout=60, metadata=pod.metadata))
            with bed.pod("j0", 0, uid="j0-late") as bystander:
                began = time.monotonic()
                bystander.say(1)
                assert time.monotonic() - began < 15.0, "it waits for none of them"
            assert len(service_threads()) < 20, "a held answer costs no thread"
            until = time.monotonic() + 60
            while any(job.core.snapshot(0).last_step < 7 for job in jobs):
                assert time.monotonic() < until
                time.sleep(0.02)
            for job in jobs:
                job.persisting = True
                job.persist()
            replies = [call.result() for call in calls]
            again = [pod.say(7, (0, 7), world=4) for pod in pods]
    finally:
        bed.down()
    # The last of each job completed the commit; earlier ones had nothing to wait for.
    assert sum(reply.commits_taken for reply in replies) >= 50 * 0.5
    assert all(reply.commits_taken == 1 for reply in again)


def service_threads() -> list[str]:
    """The service's own threads in this process, which runs the clients' too."""
    ours = ("reports", "tokenreview", "proof", "manifest", "asyncio")
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(ours)]


def test_an_answer_is_held_a_second_at_most(bed: Bed) -> None:
    job = bed.job("j1")
    job.persisting = False
    with bed.pod("j1", 0) as a, bed.pod("j1", 1) as b:
        a.say(7, (0, 7))
        began = time.monotonic()
        assert b.say(7, (0, 7)).commits_taken == 0
        assert 0.9 < time.monotonic() - began < 40.0
        assert len(job.core._waiting) == 0
        job.persisting = True
        job.persist()
        assert b.say(7, (0, 7)).commits_taken == 1


def test_a_hanging_event_loop_is_seen(bed: Bed) -> None:
    assert bed.server is not None
    with eventually() as check:
        check(lambda: bed.server.quiet() < 2)
    hold = threading.Event()

    def hang() -> None:
        hold.wait(60)

    job = bed.job("j1")
    job.core.on_change = hang
    with bed.pod("j1", 0) as pod:
        call = pod.stub.Report.future(pod.request(1), timeout=60, metadata=pod.metadata)
        with eventually() as check:
            check(lambda: bed.server.quiet() > 3)
        hold.set()
        assert not call.result().reason
    assert bed.server.pacer is not None
    with eventually(what="everybody to be told to report less often") as check:
        check(lambda: bed.server.quiet() < 2 and bed.server.pacer.slowing > 1.0)


def test_a_stopped_service_answers_nobody_and_its_port_is_free(bed: Bed) -> None:
    bed.job("j1")
    with bed.pod("j1", 0) as pod:
        pod.say(1)
        bed.down()
        assert refusal(lambda: pod.say(2, seconds=1))[0] in {Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED}
        bed.up()
        say_until_answered(pod, 3, [])


def test_a_pod_that_has_news_without_end_is_slowed_and_not_refused(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "POD_REPORTS", 5)
    bed.down()
    bed.up()
    bed.job("j1")
    with bed.pod("j1", 0) as pod:
        began = time.monotonic()
        for step in range(16):
            assert not pod.say(step).reason
        assert time.monotonic() - began > 0.9, "6 in a second at most: two seconds must end meanwhile"
    assert bed.counts() == {"ok": 16}
