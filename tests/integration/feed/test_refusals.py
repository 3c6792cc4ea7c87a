"""What does not fit is refused with a status, a kind and a text for the user; rogues hurt nobody else."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from lanefeed_core.cursor import Cursor
from lanefeed_core.plan import Plan
from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.wire import PROTOCOL_VERSION
from support.feed_client import eventually, kind_of
from support.feed_pod import MANIFEST, Pod

MakePod = Callable[..., Pod]
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION


def refused(call: Callable[[], object]) -> tuple[grpc.StatusCode, str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    return error.code(), kind_of(error), error.details()


def test_attach_says_what_does_not_fit(make_pod: MakePod) -> None:
    pod = make_pod(pod_index=1, plan=Plan(4, 2, 2, Cursor())).start()
    client = pod.client(2)
    spec = pod.config.spec.to_dict()
    cases: list[tuple[dict[str, Any], str, str]] = [
        (
            {"protocol": 9},
            "ProtocolMismatch",
            f"the trainer's lanefeed test speaks protocol 9 and this sidecar {PROTOCOL_VERSION}: install the same",
        ),
        ({"plan_generation": 3}, "PlanMismatch", "the trainer is of plan generation 3 and this pod of 4"),
        (
            {"world": 3},
            "PlanMismatch",
            "there are 3 data-parallel ranks and the plan has 4 (2 replicas x 2 ranks each)",
        ),
        ({"rank": 1}, "PlanMismatch", "rank 1 is not in this pod: pod 1 has ranks 2 to 3"),
        ({"rank": 9}, "PlanMismatch", "rank 9 is not in this pod"),
        ({"state_json": "{nonsense"}, "StateMismatch", "the state is not JSON"),
        ({"state_json": "[]"}, "StateMismatch", "this is not a Lanefeed state"),
        (
            {"state_json": json.dumps(pod.state(5, spec={**spec, "seed": 8}))},
            "StateMismatch",
            "the state was saved with shuffle.seed 8 and this job has 3",
        ),
        (
            {"state_json": json.dumps(pod.state(5, spec={**spec, "global_batch_size": 16}))},
            "StateMismatch",
            "batching.globalBatchSize 16 and this job has 8",
        ),
        (
            {"state_json": json.dumps(pod.state(5, manifest="f" * 32))},
            "StateMismatch",
            f"this job reads {MANIFEST.digest}",
        ),
        ({"state_json": json.dumps(pod.state(5, version=7))}, "StateMismatch", "the state has version 7"),
        ({"session": "x", "held": [0]}, "", ""),
    ]
    for fields, kind, text in cases:
        if not kind:
            client.attach(**fields)
            continue
        code, got, details = refused(lambda fields=fields: client.attach(**fields))
        assert (code, got) == (PRECONDITION, kind)
        assert text in details
    foreign = client.reply.session
    code, got, details = refused(lambda: client.attach(session=foreign, held=[7]))
    assert (code, got) == (PRECONDITION, "PlanMismatch")
    assert "holds slots [7], which are not its own" in details
    assert pod.metric("lanefeed_errors_total", kind="StateMismatch") == 6


def test_ranks_that_load_different_checkpoints_are_refused_by_name(make_pod: MakePod) -> None:
    pod = make_pod(ranks=2).start()
    pod.client(0).attach(pod.state(5))
    code, kind, text = refused(pod.client(1).attach)
    assert (code, kind) == (PRECONDITION, "PlanMismatch")
    assert "rank 1 begins at step 0 and rank 0 at step 5: all ranks must load the same checkpoint" in text
    pod.client(1).attach(pod.state(5))


@pytest.mark.parametrize("token", ["", "0" * 64, "x"])
def test_a_wrong_token_gets_nowhere(make_pod: MakePod, token: str) -> None:
    pod = make_pod().start()
    client, good = pod.client(token=token), pod.client()
    code, kind, text = refused(client.attach)
    assert (code, kind) == (grpc.StatusCode.UNAUTHENTICATED, "AuthError")
    assert f"the token is {'wrong' if token else 'missing'}: send the text of the run folder's file `token`" in text
    client.reply = good.attach()
    code, kind, _ = refused(client.commit)
    assert (code, kind) == (grpc.StatusCode.UNAUTHENTICATED, "AuthError")
    client.stream()
    code, kind, _ = refused(client.message)
    assert (code, kind) == (grpc.StatusCode.UNAUTHENTICATED, "AuthError")
    assert pod.metric("lanefeed_errors_total", kind="AuthError") == 3
    assert (pod.run_dir.stat().st_mode & 0o777, (pod.run_dir / "feed.sock").stat().st_mode & 0o777) == (0o750, 0o660)


def test_commits_that_cannot_count_are_answered_no(make_pod: MakePod) -> None:
    pod = make_pod().start()
    client = pod.client()
    client.attach()
    client.stream()
    client.run(until=6)
    delivered = 6 + 3 * 4

    def commit(generation: int = 1, rank: int = 0, **fields: Any) -> str:
        message = pb.RankCommit(**{"rank": rank, "start": 0, "stop": 6, "ledger_json": "{}", **fields})
        reply = client.commit(commit=message, plan_generation=generation)
        assert not reply.accepted
        return reply.reason

    assert "commit of step 6 by rank 0 is of plan generation 2 and this pod of 1" in commit(generation=2)
    assert "this pod has ranks [0], and the call came from 0" in commit(rank=5)
    assert "it goes back from step 7" in commit(start=7)
    assert "must be printable and at most 512 bytes" in commit(name="a\nb")
    assert "must be printable and at most 512 bytes" in commit(name="x" * 600)
    assert "its ledger cannot be read" in commit(ledger_json="[1]")
    assert "steps were delivered to it" in commit(stop=delivered + 3)
    assert pod.metric("lanefeed_commits_waiting") == 0
    assert client.commit("ckpt/6").accepted


def _say_nothing(until: threading.Event) -> Iterator[pb.ClientMessage]:
    until.wait(60)
    yield from ()


def test_rogues_flood_and_a_good_run_is_unharmed(make_pod: MakePod) -> None:
    pod = make_pod().start()
    good, rogue = pod.client(), pod.client(token="0" * 64)
    good.attach()
    good.stream()
    futures = [rogue.stub.Attach.future(pb.AttachRequest(), metadata=rogue.metadata, timeout=60) for _ in range(400)]
    # A connection each: before the server has said how many streams one may have, more than that are UNAVAILABLE.
    insider, giant = pod.client(), pod.client()
    # Streams that never say whose they are, and messages above the cap.
    quiet = threading.Event()
    silent = [insider.stub.Stream(_say_nothing(quiet), metadata=insider.metadata) for _ in range(30)]
    big = giant.stub.Commit.future(
        pb.CommitRequest(commit=pb.RankCommit(ledger_json="x" * (5 << 20))), metadata=giant.metadata, timeout=60
    )
    good.run()
    assert good.ids == pod.expected()
    assert good.commit("end").accepted
    codes = {f.exception().code(): f.exception().details() for f in futures}
    codes.pop(grpc.StatusCode.UNAVAILABLE, None)  # more streams in its connection than it may have
    assert codes.keys() <= {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED}, codes
    assert big.exception().code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    quiet.set()
    for call in silent:
        call.cancel()
    again = pod.client()
    with eventually() as check:
        check(lambda: pod.metric("lanefeed_rank_attached", rank="0") in (0, 1))
    assert again.attach(pod.state(30)).start == 30
    assert pod.process is not None
    assert pod.process.poll() is None


def test_nonsense_on_a_stream_is_refused(make_pod: MakePod) -> None:
    pod = make_pod().start()
    client = pod.client()
    client.attach()
    client.stream()
    next(client.frames())
    client.send(pb.ClientMessage(begin=pb.Begin(session=client.reply.session)))
    for _ in client.frames():
        pass
    assert client.events[-1].failure.kind == "ProtocolMismatch"
    assert "sends Begin once, first, and then Progress" in client.events[-1].failure.message


def test_a_frozen_trainer_is_backpressure_and_finds_its_stream_again(make_pod: MakePod) -> None:
    import os
    import subprocess
    import sys

    pod = make_pod(epochs=30).start()
    script = (
        "import sys; from pathlib import Path; from support.feed_client import Client\n"
        "c = Client(Path(sys.argv[1]), 0, 1); c.attach(); c.stream()\n"
        "for frame in c.frames():\n"
        "    c.consume(frame)\n"
        "    if frame.first_step == 6: print('going', flush=True); sys.stdin.readline()\n"
        "print(c.consumed, c.ended, flush=True); c.close()\n"
    )
    path = os.pathsep.join(["tests", *sys.path])
    trainer = subprocess.Popen(
        [sys.executable, "-c", script, str(pod.run_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert trainer.stdout is not None
    assert trainer.stdin is not None
    try:
        assert trainer.stdout.readline() == b"going\n"
        trainer.send_signal(signal.SIGSTOP)
        # Slots that are being filled are neither free nor one of these.
        with eventually() as check:
            check(lambda: sum(pod.metric(f"lanefeed_slots_{name}", rank="0") for name in ("ready", "leased")) == 4)
        frames = pod.metric("lanefeed_frames_total")
        time.sleep(3)
        assert pod.metric("lanefeed_frames_total") == frames, "a frame was made although no slot was free"
        assert pod.metric("lanefeed_rank_attached", rank="0") == 1
        trainer.send_signal(signal.SIGCONT)
        trainer.stdin.write(b"\n")
        trainer.stdin.flush()
        assert trainer.stdout.readline() == f"{pod.total} True\n".encode()
        assert trainer.wait(60) == 0
    finally:
        trainer.kill()
        trainer.communicate()
