"""Reports to a real coordinator: outages, acknowledged commits, stop, fence, failures. Training never waits for it."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_operator.coordinator.core import Coordinator
from lanefeed_operator.coordinator.service import Server, serve
from lanefeed_operator.reconcile.types import FeedView
from support.feed_client import eventually, kind_of
from support.feed_pod import Pod

MakePod = Callable[..., Pod]
TOKEN = "f" * 64


class Control:
    """A control plane that persists at once what it is told."""

    def __init__(self, pod: Pod, folder: Path) -> None:
        self.address = f"unix:{folder}/c.sock"
        self.core = Coordinator("uid-1", pod.lanes, pod.total)
        self.core.new_plan(1, pod.config.plan.replicas, pod.config.plan.ranks_per_replica)
        self.core.expect(1, 0, "pod-1")
        self.core.on_change = self.persist
        self.server: Server | None = None

    def persist(self) -> None:
        self.core.persisted(self.view.version)

    @property
    def view(self) -> FeedView:
        return self.core.snapshot(time.monotonic())

    def up(self) -> None:
        self.server = serve(self.core, self.address, TOKEN, time.monotonic)

    def down(self) -> None:
        if self.server is not None:
            self.server.stop(0.0)
            self.server = None


@pytest.fixture
def setup(make_pod: MakePod, tmp_path: Path) -> Iterator[Callable[..., tuple[Pod, Control]]]:
    controls: list[Control] = []

    def make(**fields: Any) -> tuple[Pod, Control]:
        (tmp_path / "control-token").write_text(TOKEN)
        pod = make_pod(
            coordinator=f"unix:{tmp_path}/c.sock", coordinator_token_path=str(tmp_path / "control-token"), **fields
        )
        controls.append(Control(pod, tmp_path))
        return pod, controls[-1]

    yield make
    for control in controls:
        control.down()


Setup = Callable[..., tuple[Pod, Control]]


def test_commits_become_the_jobs_and_come_back(setup: Setup) -> None:
    pod, control = setup(ranks=2)
    control.up()
    pod.start()
    clients = [pod.client(rank) for rank in range(2)]
    for client in clients:
        client.attach()
        client.stream()
        client.run(until=12)
        assert client.commit("ckpt/12").accepted
    with eventually() as check:
        check(lambda: control.view.last_step == 12)
        check(lambda: (pod.run_dir / "commits.jsonl").stat().st_size == 0)
    for client in clients:
        client.run()
        assert client.commit("end").accepted
        told = [e.committed for e in client.events if e.HasField("committed")]
        assert [(c.step, c.name, c.plan_generation) for c in told] == [(12, "ckpt/12", 1)]
    with eventually() as check:
        check(lambda: control.view.last_step == pod.total)
        check(lambda: all(r.ended for r in control.view.ranks.values()) and len(control.view.ranks) == 2)
    view = control.view
    assert [p.verified for p in view.proofs] == [True, True]
    assert {r: (v.started, v.consumed, v.attached) for r, v in view.ranks.items()} == {
        0: (0, 40, True),
        1: (0, 40, True),
    }
    assert control.core.addresses() == {0: (pod.run_dir / "metrics.addr").read_text().strip()}
    assert control.core.ready(0)
    assert not (pod.run_dir / "book.json").exists()


def test_training_goes_on_without_a_control_plane_and_commits_arrive_once(setup: Setup) -> None:
    pod, control = setup(epochs=6)
    pod.start()
    client = pod.client()
    client.attach()
    client.stream()
    for step in range(3, 61, 3):
        client.run(until=step)
        assert client.commit(f"ckpt/{step}").accepted
    assert pod.metric("lanefeed_commits_waiting") == 20
    with eventually() as check:
        check(lambda: pod.metric("lanefeed_report_failures_total") >= 2)
    assert pod.text().count("cannot be reached") == 1, "an outage is logged once"
    pod.kill()
    pod.start()
    assert pod.metric("lanefeed_commits_waiting") == 20, "commits outlive the sidecar"
    control.up()
    with eventually() as check:
        check(lambda: control.view.last_step == 60)
        check(lambda: pod.metric("lanefeed_commits_waiting") == 0)
    view = control.view
    assert [(p.epoch, p.samples, p.verified) for p in view.proofs] == [(e, 153, True) for e in range(3)], "counted once"
    control.down()
    client.close()
    again = pod.client()
    reply = again.attach(resuming=True, resume_at=client.consumed)
    assert reply.last_commit.step == 60
    again.stream()
    again.run()
    again.start = 60
    assert again.commit("end").accepted
    control.up()
    with eventually() as check:
        check(lambda: control.view.last_step == pod.total)
    assert [p.verified for p in control.view.proofs] == [True] * 6
    assert "takes reports again" in pod.text()


def test_a_silent_control_plane_never_slows_data(setup: Setup, tmp_path: Path) -> None:
    """It accepts connections and answers nothing."""
    import socket

    pod, control = setup(epochs=20)
    with socket.socket(socket.AF_UNIX) as hole:
        hole.bind(control.address.removeprefix("unix:"))
        hole.listen(64)
        pod.start()
        client = pod.client()
        client.attach()
        client.stream()
        begin = time.monotonic()
        client.run()
        assert client.commit("end").accepted
        assert time.monotonic() - begin < 50, "a report alone is waited for longer than that"
        assert client.ids == pod.expected()
        begin = time.monotonic()
        assert pod.terminate() == 0
        assert time.monotonic() - begin < 50


def test_stop_reaches_the_trainers_and_who_left_stays_out(setup: Setup) -> None:
    pod, control = setup()
    control.up()
    pod.start()
    client = pod.client()
    client.attach()
    client.stream()
    client.run(until=6)
    control.core.stop(1, 12, "resize")
    with eventually() as check:
        check(lambda: "ranks leave at step 12" in pod.text())
    seen: list[pb.StopAt] = []
    for frame in client.frames():
        client.consume(frame)
        seen = [e.stop_at for e in client.events if e.HasField("stop_at")]
        time.sleep(0.1)
        if seen and client.consumed >= 12:
            break
    assert [(s.step, s.reason) for s in seen] == [(12, "resize")]
    with eventually() as check:
        check(lambda: control.view.ranks[0].consumed >= 12)
    assert client.commit("ckpt/stop").accepted
    client.close()
    late = pod.client()
    with eventually() as check:
        check(lambda: pod.metric("lanefeed_rank_attached", rank="0") == 0)
    with pytest.raises(grpc.RpcError) as caught:
        late.attach(pod.state(3))
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "stopping (resize): ranks leave at step 12" in caught.value.details()


def test_a_rank_that_died_before_the_stop_may_still_come_back_for_it(setup: Setup) -> None:
    pod, control = setup()
    control.up()
    pod.start()
    client = pod.client()
    client.attach()
    client.stream()
    client.run(until=6)
    control.core.stop(1, 30, "resize")
    with eventually() as check:
        check(lambda: "ranks leave at step 30" in pod.text())
    client.close()
    again = pod.client()
    assert again.attach(pod.state(3)).start == 3
    again.stream()
    while not (message := again.message()).HasField("stop_at"):
        assert message.frames
    assert message.stop_at.step == 30


def test_a_fenced_pod_stops_and_refuses(setup: Setup) -> None:
    pod, control = setup()
    control.up()
    pod.start()
    client = pod.client()
    client.attach()
    client.stream()
    client.run(until=6)
    with eventually() as check:
        check(lambda: 0 in control.view.ranks)
    control.core.new_plan(2, 1, 1)
    for _ in client.frames():
        pass
    failure = client.events[-1].failure
    assert (failure.kind, failure.retryable) == ("CommitRefused", False)
    assert "this pod was replaced: plan generation 1 was replaced by 2: let this pod exit" in failure.message
    reply = client.commit("ckpt/zombie")
    assert not reply.accepted
    assert "this pod was replaced" in reply.reason
    with pytest.raises(grpc.RpcError) as caught:
        pod.client().attach()
    assert kind_of(caught.value) == "CommitRefused"
    assert pod.metric("lanefeed_fenced") == 1
    assert pod.get("/healthz")[0] == 200


def test_failures_and_the_last_report_arrive(setup: Setup) -> None:
    pod, control = setup()
    control.up()
    pod.start(env={"ENGINE_FAIL": "6:data"}, report_seconds=60.0)
    client = pod.client()
    client.attach()
    client.stream()
    for frame in client.frames():
        client.consume(frame)
    client.close()
    with eventually() as check:
        check(lambda: len(control.view.failures) == 1)
    failure = control.view.failures[0]
    assert (failure.kind, failure.retryable, failure.pod_index) == ("DataError", False, 0)
    assert "part-0.parquet" in failure.message
    assert pod.process is not None
    assert pod.process.wait(60) == 2


def test_sigterm_sends_what_was_consumed_last(setup: Setup) -> None:
    pod, control = setup()
    control.up()
    pod.start(env={"ENGINE_LAST_REPORT_SECONDS": "30"}, report_seconds=60.0)
    client = pod.client()
    client.attach()
    client.stream()
    with eventually() as check:
        check(lambda: 0 in control.view.ranks)
    client.run(until=12)
    with eventually() as check:
        check(lambda: pod.metric("lanefeed_cursor", rank="0", what="step") == 12)
    assert pod.terminate() == 0
    assert control.view.ranks[0].consumed == 12
    assert not control.view.ranks[0].attached


def test_a_sidecar_that_cannot_start_reports_why(setup: Setup) -> None:
    pod, control = setup()
    control.up()
    process = pod.spawn({"ENGINE_LAST_REPORT_SECONDS": "30"}, run_dir=str(pod.run_dir), slot_bytes=1 << 50)
    assert process.wait(60) == 2
    assert pod.last_line().startswith("ArenaError: the arena needs")
    assert [f.kind for f in control.view.failures] == ["ArenaError"]


def test_killed_before_a_report_nothing_is_lost(setup: Setup) -> None:
    pod, control = setup()
    control.up()
    pod.start(env={"LANEFEED_FAILPOINTS": "report.before=kill@6"}, report_seconds=30.0)
    client = pod.client()
    client.attach()
    client.stream()
    answered = [0]

    def train() -> None:
        for step in range(3, 41, 3):
            client.run(until=step)
            assert client.commit(f"ckpt/{step}").accepted
            answered.append(step)
            # A report each, until one of them kills it.
            while control.view.last_step < step and pod.process is not None and pod.process.poll() is None:
                time.sleep(0.01)

    with pytest.raises(grpc.RpcError) as caught:
        train()
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert pod.process is not None
    assert pod.process.wait(60) == -9
    pod.start()
    with eventually() as check:
        check(lambda: control.view.last_step >= answered[-1] > 0)
