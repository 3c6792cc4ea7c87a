"""A real sidecar process and raw trainers: the bytes of every step, the release protocol, two ranks, warm restarts."""

from collections.abc import Callable

import grpc
import numpy as np
import pytest

from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.slots import SlotState
from support.feed_client import Client, eventually, kind_of
from support.feed_pod import MANIFEST, Pod

MakePod = Callable[..., Pod]


def test_every_step_comes_bit_exact_and_in_order(make_pod: MakePod) -> None:
    pod = make_pod(ranks=2).start()
    clients = [pod.client(rank) for rank in range(2)]
    for client in clients:
        reply = client.attach()
        assert reply.start == 0
        assert not reply.HasField("last_commit")
        client.stream()
    assert {s for c in clients for s in c.reply.slots} == set(range(8)), "slots are partitioned over the ranks"
    info = clients[0].info
    assert (info.job, info.manifest, info.rows, info.steps_per_epoch, info.rank_batch) == (
        "demo",
        MANIFEST.digest,
        153,
        20,
        4,
    )
    assert info.total_steps == pod.total == 40
    for rank, client in enumerate(clients):
        expected = pod.expected(rank)
        sequences = []
        for frame in client.frames():
            sequences.append(frame.sequence)
            data = client.read(frame)
            for k in range(frame.steps):
                ids = expected[frame.first_step + k]
                assert data["ids"][k].tolist() == ids
                assert data["x"][k].tolist() == [[3 * i + 1, -i] for i in ids]
                assert data["text"][k] == [str(i).encode() for i in ids]
            assert client.words(frame.slot)[1:] == (frame.sequence, frame.first_step)
            assert client.words(frame.slot)[0] in (SlotState.READY, SlotState.LEASED)
            client.consume(frame)
        assert sequences == list(range(len(sequences)))
        assert client.ended
        assert client.ids == expected
    for client in clients:
        assert client.commit("ckpt/end").accepted
    assert "epoch 1 is proven: 153 samples, each exactly once" in pod.text()
    assert pod.terminate() == 0
    left = sorted(p.name for p in pod.run_dir.iterdir())
    assert left == ["book.json", "commits.jsonl", "ranks.json", "sidecar.pid", "token"]


def test_a_held_slot_keeps_its_bytes_while_others_are_reused(make_pod: MakePod) -> None:
    pod = make_pod().start()
    client = pod.client()
    client.attach()
    client.stream()
    frames = client.frames()
    kept = next(frames)
    before = client.slot(kept.slot)[64:].tobytes()
    client.consumed = 3
    others = []
    for frame in frames:
        assert frame.slot != kept.slot
        others.append(frame.slot)
        client.consume(frame)
    assert client.slot(kept.slot)[64:].tobytes() == before
    # The slot used last is filled first: how many take part depends on who is faster, that they serve again does not.
    assert len(others) > len(set(others))
    assert client.consumed == pod.total


def test_a_restarted_trainer_finds_its_sidecar_and_goes_on_from_its_checkpoint(make_pod: MakePod) -> None:
    pod = make_pod().start()
    first = pod.client()
    session = first.attach().session
    first.stream()
    first.run(until=9)
    assert first.commit("ckpt/9").accepted
    first.run(until=15)
    first.close()
    with eventually() as check:
        check(lambda: pod.metric("lanefeed_slots_free", rank="0") == 4)
    second = pod.client()
    reply = second.attach(pod.state(9))
    assert (reply.start, reply.session, reply.last_commit.name) == (9, session, "ckpt/9")
    second.stream()
    second.run()
    assert second.commit("end").accepted
    assert {**first.ids, **second.ids} == pod.expected()
    assert "epoch 1 is proven" in pod.text()
    assert pod.metric("lanefeed_attaches_total", rank="0") == 2


def test_an_attach_replaces_the_former_life(make_pod: MakePod) -> None:
    pod = make_pod().start()
    old, new = pod.client(), pod.client()
    old.attach()
    old.stream()
    next(old.frames())
    new.attach()
    new.stream()
    with pytest.raises(grpc.RpcError) as caught:
        list(old.frames())
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "attached again" in caught.value.details()
    new.run()
    assert new.ids == pod.expected()


def test_peek_shows_the_last_commit_and_disturbs_nobody(make_pod: MakePod) -> None:
    pod = make_pod(last_commit_step=12, last_commit_name="ckpt/12", last_commit_generation=1).start()
    client = pod.client()
    client.attach(pod.state(12))
    client.stream()
    client.run(until=15)
    peeked = pod.client().attach(peek=True)
    assert (peeked.last_commit.step, peeked.last_commit.name, peeked.start) == (12, "ckpt/12", 0)
    client.run()
    assert sorted(client.ids) == list(range(12, pod.total))


def test_one_stream_a_life(make_pod: MakePod) -> None:
    pod = make_pod().start()
    client, other = pod.client(), pod.client()
    other.reply = client.attach()
    client.stream()
    next(client.frames())
    other.stream()
    with pytest.raises(grpc.RpcError) as caught:
        other.message()
    assert kind_of(caught.value) == "PlanMismatch"
    assert "has a stream already" in caught.value.details()
    other.reply.session = "0" * 32
    other.stream()
    with pytest.raises(grpc.RpcError) as caught:
        other.message()
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE, "a lost session is tried again"


def test_a_bad_release_ends_that_stream_alone(make_pod: MakePod) -> None:
    pod = make_pod(ranks=2).start()
    good, bad = pod.client(0), pod.client(1)
    for client in (good, bad):
        client.attach()
        client.stream()
    frame = next(bad.frames())
    bad.progress(good.reply.slots[0])
    failure = None
    for _ in bad.frames():
        pass
    failure = bad.events[-1].failure
    assert failure.kind == "ProtocolMismatch"
    assert "released slot 0, which it may not" in failure.message
    assert bad.slot(frame.slot)[0] in (SlotState.FREE, SlotState.LEASED, SlotState.READY)
    good.run()
    assert good.ids == pod.expected(0)


def test_data_errors_reach_every_rank_then_the_process_ends_with_2(make_pod: MakePod) -> None:
    pod = make_pod(ranks=2).start(env={"ENGINE_FAIL": "25:data"})
    clients = [pod.client(rank) for rank in range(2)]
    # Slots are filled from the attach on, but not up to the bad step, so that both attach before the error: who comes
    # after it is refused (below).
    for client in clients:
        client.attach()
    for client in clients:
        client.stream()
    for client in clients:
        for frame in client.frames():
            client.consume(frame)
        failure = client.events[-1].failure
        assert failure.kind == "DataError"
        assert "part-0.parquet: bytes 0-100 fail their check" in failure.message
    assert pod.get("/readyz") == (
        503,
        "DataError: shard part-0.parquet: bytes 0-100 fail their check; restore the file\n",
    )
    late = pod.client(0)
    with pytest.raises(grpc.RpcError) as caught:
        late.attach()
    assert kind_of(caught.value) == "DataError"
    for client in clients:
        client.close()
    assert pod.process is not None
    assert pod.process.wait(60) == 2
    assert pod.last_line() == "DataError: shard part-0.parquet: bytes 0-100 fail their check; restore the file"


def test_a_lost_sample_fails_the_job(make_pod: MakePod) -> None:
    pod = make_pod().start()
    client = pod.client()
    client.attach()
    client.stream()
    client.run(until=21)
    client.ledger.add(0, -1, 12345)
    reply = client.commit("ckpt/21")
    assert not reply.accepted
    assert "epoch 0: 1 samples were never used" in reply.reason
    assert pod.process is not None
    assert pod.process.wait(60) == 2
    assert pod.last_line().startswith("LedgerMismatch: epoch 0: 1 samples were never used")


def test_finish_counts_as_ended(make_pod: MakePod) -> None:
    pod = make_pod().start()
    client = pod.client()
    client.attach()
    client.stream()
    next(client.frames())
    client.progress(finished=True)
    while not client.ended:
        client.ended = client.message().end


def test_the_arena_is_private_memory_for_each_slot(make_pod: MakePod) -> None:
    """Trainers may write into their views: the next frame in that slot is whole again."""
    pod = make_pod().start()
    client: Client = pod.client()
    client.attach()
    client.stream()
    for frame in client.frames():
        assert client.read(frame)["ids"].tolist() == [pod.expected()[frame.first_step + k] for k in range(frame.steps)]
        client.slot(frame.slot)[64:] = np.uint8(0xEE)
        client.consumed = frame.first_step + frame.steps
        client.progress(frame.slot)


def test_progress_totals_show_in_metrics(make_pod: MakePod) -> None:
    pod = make_pod().start()
    client = pod.client()
    client.attach()
    client.stream()
    client.run(until=23)
    client.send(
        pb.ClientMessage(progress=pb.Progress(consumed=23, wait_seconds=1.5, step_seconds=4.0, copied_batches=2))
    )
    with eventually() as check:
        check(lambda: pod.metric("lanefeed_trainer_wait_seconds_total", rank="0") == 1.5)
    assert pod.metric("lanefeed_cursor", rank="0", what="epoch") == 1
    assert pod.metric("lanefeed_cursor", rank="0", what="step") == 3
    assert pod.metric("lanefeed_copied_batches_total", rank="0") == 2
    client.close()
    again = pod.client()
    again.attach(pod.state(23), pid=1)
    again.stream()
    next(again.frames())
    again.progress(wait_seconds=0.25)
    with eventually() as check:
        check(lambda: pod.metric("lanefeed_trainer_wait_seconds_total", rank="0") == 1.75)
