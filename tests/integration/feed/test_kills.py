"""SIGKILL of the sidecar at named points, SIGTERM in a slot write, leftovers: sessions change, the order does not."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from support.feed_client import Client, eventually
from support.feed_pod import Pod

MakePod = Callable[..., Pod]


def run_until_lost(client: Client) -> bool:
    """Consume until the session is lost; True if the stream ended first."""
    try:
        client.run()
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.UNAVAILABLE:  # type: ignore[attr-defined]
            raise
        return False
    return True


def resume(pod: Pod, client: Client) -> None:
    """What the trainer library does after a lost session: another channel, the step after the last frame it holds."""
    ids, ledger, start, consumed = client.ids, client.ledger, client.start, client.consumed
    client.close()
    client.__init__(pod.run_dir, client.rank, client.world)  # type: ignore[misc]
    reply = client.attach(resuming=True, resume_at=consumed)
    assert reply.start == consumed
    client.ids, client.ledger, client.start = ids, ledger, start
    client.stream()


@pytest.mark.parametrize("point", ["slot.mid_write=kill@4", "server.before_signal=kill@3"])
def test_a_killed_sidecar_goes_on_at_the_same_step_with_the_same_order(make_pod: MakePod, point: str) -> None:
    pod = make_pod()
    client = None
    # A life that is killed before its frames have arrived gets no further: more lives then, on a busy machine.
    for _ in range(200):
        pod.start(env={"LANEFEED_FAILPOINTS": point, "ENGINE_DELAY": "0.02"})
        if client is None:
            client = pod.client()
            client.attach()
            client.stream()
            sessions = {client.reply.session}
        else:
            resume(pod, client)
            sessions.add(client.reply.session)
        if run_until_lost(client):
            break
        assert pod.process is not None
        assert pod.process.wait(60) == -signal.SIGKILL
    assert client is not None
    assert client.ended
    assert len(sessions) > 2, "it was never killed"
    assert client.ids == pod.expected()
    assert client.commit("end").accepted
    assert "epoch 1 is proven" in pod.text()


@pytest.mark.parametrize("point", ["commit.before_append=kill", "commit.after_append=kill"])
def test_a_commit_that_was_not_answered_is_made_again_and_counts_once(make_pod: MakePod, point: str) -> None:
    pod = make_pod().start(env={"LANEFEED_FAILPOINTS": point})
    client = pod.client()
    client.attach()
    client.stream()
    client.run(until=12)
    with pytest.raises(grpc.RpcError) as caught:
        client.commit("ckpt/12")
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert pod.process is not None
    assert pod.process.wait(60) == -signal.SIGKILL
    pod.start()
    resume(pod, client)
    assert client.commit("ckpt/12").accepted
    client.run()
    assert client.commit("end").accepted
    assert "epoch 0 is proven: 153 samples" in pod.text()
    assert "epoch 1 is proven: 153 samples" in pod.text()


def test_frames_of_a_dead_session_stay_readable(make_pod: MakePod) -> None:
    pod = make_pod().start()
    client = pod.client()
    client.attach()
    client.stream()
    frame = next(client.frames())
    before = client.read(frame)
    pod.kill()
    pod.start()
    assert not Path(client.reply.arena_path).exists()
    after = client.read(frame)
    assert after["ids"].tolist() == before["ids"].tolist() == [pod.expected()[k] for k in range(3)]
    assert after["text"] == before["text"]


def test_twenty_kills_leave_one_arena(make_pod: MakePod) -> None:
    """Case 39: SIGKILL loops must not fill /dev/shm."""
    pod = make_pod()
    for _ in range(20):
        pod.start()
        pod.kill()
    assert len(list(pod.run_dir.glob("arena-*"))) == 1
    pod.start()
    assert [p.name for p in pod.run_dir.glob("arena-*")] == [Path(pod.client().attach().arena_path).name]
    assert pod.terminate() == 0
    assert list(pod.run_dir.glob("arena-*")) == []


def test_sigterm_in_a_slot_write_ends_in_time_with_0(make_pod: MakePod) -> None:
    hurried = {"ENGINE_STOP_SECONDS": "1.1"}
    pod = make_pod().start(env={"LANEFEED_FAILPOINTS": "slot.mid_write=sleep:200@3", **hurried})
    client = pod.client()
    client.attach()
    client.stream()
    client.run(until=6)
    begin = time.monotonic()
    assert pod.terminate() == 0
    assert time.monotonic() - begin < 50, "it did not wait for the write"
    with pytest.raises(grpc.RpcError) as caught:
        client.message()
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    pod.start()
    resume(pod, client)
    client.run()
    assert client.ids == pod.expected()


def test_sigint_ends_it_too_and_nothing_is_left(make_pod: MakePod) -> None:
    pod = make_pod().start()
    assert pod.process is not None
    pod.process.send_signal(signal.SIGINT)
    assert pod.process.wait(60) == 0
    assert not (pod.run_dir / "feed.sock").exists()
    assert not list(pod.run_dir.glob("arena-*"))


def test_a_killed_rank_restarts_alone_while_the_other_goes_on(make_pod: MakePod) -> None:
    pod = make_pod(ranks=2).start()
    stays, dies = pod.client(0), pod.client(1)
    for client in (stays, dies):
        client.attach()
        client.stream()
        client.run(until=9)
        assert client.commit("ckpt/9").accepted
    stays.run(until=20)
    dies.run(until=14)
    dies.close()
    again = pod.client(1)
    assert again.attach(pod.state(9)).start == 9
    again.stream()
    again.run()
    stays.run()
    assert {**dies.ids, **again.ids} == pod.expected(1)
    assert stays.ids == pod.expected(0)
    for client in (again, stays):
        assert client.commit("end").accepted
    assert "epoch 1 is proven" in pod.text()


def test_a_dead_trainer_frees_its_slots(make_pod: MakePod) -> None:
    pod = make_pod().start()
    client = pod.client()
    client.attach()
    client.stream()
    next(client.frames())
    client.close()
    with eventually() as check:
        check(lambda: pod.metric("lanefeed_slots_free", rank="0") == 4)
    assert pod.metric("lanefeed_rank_attached", rank="0") == 0
    assert pod.process is not None
    assert pod.process.poll() is None
