"""Sizes and slowness: reports and manifests that are too large, damaged, slow, or that never end."""

import os
import threading
import time
from collections.abc import Iterator

import grpc
import psutil
import pytest

from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.wire import PROTOCOL_VERSION, TOKEN_METADATA
from lanefeed_operator.coordinator import handlers, uploads
from lanefeed_operator.kube.api import TokenOwner, Unreachable
from support.report_bed import Bed, Pod, jwt, pieces_of, refusal

Code = grpc.StatusCode
MIB = 1 << 20


@pytest.fixture
def indexer(bed: Bed) -> Iterator[Pod]:
    """The indexer pod of a job that has no coordinator yet."""
    job = bed.job("j1")
    job.coordinator = None
    with bed.pod("j1", 0, uid="indexer-1") as pod:
        yield pod


def rss() -> int:
    return psutil.Process().memory_info().rss


# ---- Report ----------------------------------------------------------------------------------------------------


def test_a_report_above_the_cap_is_refused_with_both_sizes_and_counted(bed: Bed) -> None:
    bed.job("j1")
    with bed.pod("j1", 0) as pod:
        request = pod.request(1)
        request.metrics_address = "x" * (5 * MIB)
        code, words = refusal(lambda: pod.send(request))
        assert code is Code.RESOURCE_EXHAUSTED
        assert "at most 4194304 are taken" in words
        request.metrics_address = "x" * (20 * MIB)
        assert refusal(lambda: pod.send(request))[0] is Code.RESOURCE_EXHAUSTED
        assert not pod.say(2).reason
    # gRPC itself ends a call of more than twice the cap: the service sees one that brings nothing.
    assert bed.counts() == {"too_large": 1, "invalid": 1, "ok": 1}


def test_nonsense_is_refused(bed: Bed) -> None:
    bed.job("j1")
    with bed.pod("j1", 0) as pod:
        call = pod.channel.unary_unary("/lanefeed.v1.Coordinator/Report")
        code, words = refusal(lambda: call(b"\xff" * 100, timeout=60, metadata=pod.metadata))
        assert (code, words) == (Code.INVALID_ARGUMENT, "the report is no message of this protocol")
        for method in ("/lanefeed.v1.Coordinator/Other", "/other.Service/Report"):
            other = pod.channel.unary_unary(method)
            assert refusal(lambda: other(b"", timeout=60))[0] is Code.UNIMPLEMENTED  # noqa: B023
        stream = pod.channel.stream_unary("/lanefeed.v1.Coordinator/Report")
        code, words = refusal(lambda: stream(iter(()), timeout=60, metadata=pod.metadata))
        assert (code, words) == (Code.INVALID_ARGUMENT, "a call without a report, or with a far too large one")


def test_a_report_that_never_comes_is_given_up(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "READ_SECONDS", 0.3)
    bed.job("j1")
    with bed.pod("j1", 0) as pod:
        stream = pod.channel.stream_unary("/lanefeed.v1.Coordinator/Report")
        done = threading.Event()

        def never() -> Iterator[bytes]:
            done.wait(60)
            yield b""

        code, words = refusal(lambda: stream(never(), timeout=60, metadata=pod.metadata))
        done.set()
        assert code is Code.RESOURCE_EXHAUSTED
        assert "did not come within" in words


def test_nobody_without_a_token_can_fill_memory(bed: Bed) -> None:
    """Not a byte of a message is read before the token is known: what is in flight is a window, not the message."""
    before = rss()
    with bed.pod("j1", 0) as rogue:
        big = b"x" * (7 * MIB)
        call = rogue.channel.unary_unary("/lanefeed.v1.Coordinator/Report")
        calls = [call.future(big, timeout=60, metadata=((TOKEN_METADATA, f"no-{n}"),)) for n in range(8)]
        for one in calls:
            assert one.exception().code() in {Code.UNAUTHENTICATED, Code.RESOURCE_EXHAUSTED}
        # The client holds its own copies in this very process.
        assert rss() - before < 8 * 7 * MIB + 64 * MIB


# ---- PutManifest -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 1000, MIB, 5 * MIB + 3])
def test_a_manifest_arrives_as_it_was_sent(bed: Bed, indexer: Pod, size: int) -> None:
    data = os.urandom(size)
    reply = indexer.upload(pieces_of(indexer, data))
    assert (reply.taken, reply.reason) == (True, "")
    assert bed.jobs.manifests == {"j1": ("d1", data)}
    assert bed.counts() == {"ok": 1}


def test_why_a_manifest_is_not_wanted_is_said(bed: Bed, indexer: Pod) -> None:
    bed.jobs.refusal = "the job is bound to another manifest"
    reply = indexer.upload(pieces_of(indexer, b"abc"))
    assert (reply.taken, reply.reason) == (False, "the job is bound to another manifest")


def test_a_failure_is_handed_on(bed: Bed, indexer: Pod) -> None:
    piece = pb.ManifestPiece(protocol=PROTOCOL_VERSION, job_uid="j1", pod_uid="indexer-1")
    piece.failure.kind, piece.failure.message, piece.failure.retryable = "DataError", "no such file", True
    assert indexer.upload(iter([piece])).taken
    assert bed.jobs.failures == [("j1", "indexer-1", "DataError", "no such file", True)]


def test_a_manifest_that_cannot_be_stored_now_is_to_be_sent_again(
    bed: Bed, indexer: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_args: object) -> str:
        raise Unreachable("no answer")

    monkeypatch.setattr(bed.jobs, "put_manifest", away)
    code, words = refusal(lambda: indexer.upload(pieces_of(indexer, b"abc")))
    assert (code, words) == (Code.UNAVAILABLE, "try again: no answer")


@pytest.mark.parametrize(
    ("data", "size", "code", "words"),
    [
        (b"abc", 0, Code.RESOURCE_EXHAUSTED, "a manifest of 0 bytes does not fit"),
        (b"abc", 1 << 40, Code.RESOURCE_EXHAUSTED, "a manifest of 1099511627776 bytes does not fit"),
        (b"x" * 600_000, 300_000, Code.RESOURCE_EXHAUSTED, "the upload has 524288 bytes and more"),
        (b"x" * 1000, 2000, Code.INVALID_ARGUMENT, "ended after 1000 of 2000 bytes"),
    ],
)
def test_sizes_that_do_not_fit(bed: Bed, indexer: Pod, data: bytes, size: int, code: Code, words: str) -> None:
    got, said = refusal(lambda: indexer.upload(pieces_of(indexer, data, size=size)))
    assert got is code
    assert words in said
    assert bed.jobs.manifests == {}


def test_a_piece_that_is_too_large_an_empty_one_and_none(bed: Bed, indexer: Pod) -> None:
    code, words = refusal(lambda: indexer.upload(pieces_of(indexer, b"x" * (2 * MIB), piece=2 * MIB)))
    assert code is Code.RESOURCE_EXHAUSTED
    assert "at most 1048576 of data go into one" in words
    first = next(pieces_of(indexer, b"abc", size=9))
    code, words = refusal(lambda: indexer.upload(iter([first, pb.ManifestPiece()])))
    assert (code, words) == (Code.INVALID_ARGUMENT, "a piece without data: only the first may be empty")
    assert refusal(lambda: indexer.upload(iter([])))[1] == "the upload ended before its first piece"
    first.protocol = 9
    assert "the indexer speaks protocol 9" in refusal(lambda: indexer.upload(iter([first])))[1]


def test_a_pod_of_another_namespace_uploads_nothing(bed: Bed, indexer: Pod) -> None:
    with bed.pod("j1", 0, uid="indexer-1", namespace="rivals") as rogue:
        code, words = refusal(lambda: rogue.upload(pieces_of(rogue, b"abc")))
        assert code is Code.PERMISSION_DENIED
        assert "namespace rivals" in words
    with bed.pod("j1", 0, uid="other-pod") as rogue:
        assert refusal(lambda: rogue.upload(pieces_of(indexer, b"abc")))[0] is Code.PERMISSION_DENIED
    assert bed.jobs.manifests == {}


def test_slow_uploads_are_cut_off_hold_up_no_other_namespace_and_no_report(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Long enough for all to have come before the first is cut off.
    monkeypatch.setattr(uploads, "PIECE_SECONDS", 12.0)
    bed.job("j1")
    bed.job("j2", namespace="other")
    stop = threading.Event()

    def loris(pod: Pod) -> Iterator[pb.ManifestPiece]:
        yield next(pieces_of(pod, b"x", size=8 * MIB))
        stop.wait(60)

    threads = threading.active_count()
    slow = []
    for n in range(6):
        pod = bed.pod("j1", 0, uid=f"slow-{n}")
        slow.append((pod, pod.stub.PutManifest.future(loris(pod), timeout=60, metadata=pod.metadata)))
    try:
        with bed.pod("j1", 0) as reporter, bed.pod("j2", 0, uid="i2", namespace="other") as good:
            assert good.upload(pieces_of(good, b"abc")).taken
            began = time.monotonic()
            for step in range(10):
                reporter.say(step)
            assert time.monotonic() - began < 10, "they wait for no upload"
            # What the clients of this process need, and the few of the service: none of its own for an upload.
            assert threading.active_count() - threads <= 6 * 2 + 12
            ends = [call.exception() for _, call in slow]
    finally:
        stop.set()
        for pod, _ in slow:
            pod.channel.close()
    said = sorted(str(end.details()) for end in ends)
    assert {end.code() for end in ends} == {Code.RESOURCE_EXHAUSTED}
    assert sum("did not come in time" in text for text in said) == 2, said
    assert sum("2 uploads of team are under way" in text for text in said) == 4, said
    with bed.pod("j1", 0, uid="slow-0") as pod:
        assert pod.upload(pieces_of(pod, b"abc")).taken, "the places are free again"


def test_an_upload_whose_caller_goes_away_frees_its_place(bed: Bed) -> None:
    bed.job("j1")
    for n in range(6):
        token = jwt(f"gone-{n}")
        bed.api.tokens[token] = TokenOwner("team", "t", "p", f"gone-{n}")
        with bed.pod("j1", 0, uid=f"gone-{n}", token=token) as pod:
            hold = threading.Event()

            def slow(pod: Pod = pod, hold: threading.Event = hold) -> Iterator[pb.ManifestPiece]:
                yield next(pieces_of(pod, b"x", size=100))
                hold.wait(60)

            call = pod.stub.PutManifest.future(slow(), timeout=60, metadata=pod.metadata)
            time.sleep(0.2)
            call.cancel()
            hold.set()
    with bed.pod("j1", 0, uid="last") as pod:
        assert pod.upload(pieces_of(pod, b"abc")).taken
