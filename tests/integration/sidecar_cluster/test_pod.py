"""The life of a sidecar in a pod: reports over TLS, the last commits, last words, and errors that no restart mends."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from lanefeed_core import lastwords
from lanefeed_operator.coordinator.core import Coordinator
from lanefeed_operator.coordinator.lastwords import reports_of
from lanefeed_operator.reconcile.types import FeedView
from support.feed_client import Client, eventually, kind_of
from support.feed_pod import Pod
from support.report_tls import ReportService

MakePod = Callable[..., Pod]


class Rig:
    """A pod of a cluster, and its job's coordinator behind the service."""

    def __init__(self, make_pod: MakePod, service: ReportService, tmp_path: Path, **fields: Any) -> None:
        self.pod = make_pod(
            pod_index=-1,
            pod_uid="",
            coordinator=service.target,
            coordinator_token_path=str(service.token),
            **fields,
        )
        self.log = tmp_path / "termination-log"
        self.log.touch()
        self.env = {
            "LANEFEED_POD_INDEX": "0",
            "LANEFEED_POD_UID": "pod-1",
            "LANEFEED_CONTROL_DIR": str(service.control),
            "LANEFEED_TERMINATION_LOG": str(self.log),
        }
        self.service = service
        self.core = self.fresh()
        service.job.coordinator = self.core

    def fresh(self) -> Coordinator:
        """A control plane that has heard nothing."""
        plan = self.pod.config.plan
        core = Coordinator("uid-1", self.pod.lanes, self.pod.total)
        core.new_plan(1, plan.replicas, plan.ranks_per_replica)
        core.expect(1, 0, "pod-1")
        core.on_change = lambda: core.persisted(core.snapshot(time.time()).version)
        return core

    @property
    def view(self) -> FeedView:
        return self.core.snapshot(time.time())

    def start(self, **env: str) -> Pod:
        return self.pod.start({**self.env, **env})

    def words(self) -> lastwords.LastWords:
        return lastwords.decode(self.log.read_text())

    def stopped(self, code: int = 0, seconds: float = 100) -> float:
        """SIGTERM; how long it took."""
        begin = time.monotonic()
        assert self.pod.terminate(seconds) == code, self.pod.text()
        return time.monotonic() - begin


@pytest.fixture
def rig(make_pod: MakePod, service: ReportService, tmp_path: Path) -> Rig:
    return Rig(make_pod, service, tmp_path)


def train(pod: Pod, until: int | None = None, *, every: int = 6) -> Client:
    """Attach, consume with commits, to a step or to the end."""
    client = pod.client()
    client.attach()
    client.stream()
    while not client.ended and (until is None or client.consumed < until):
        client.run(min(client.consumed + every, until or pod.total) if client.consumed < pod.total else None)
        assert client.commit(f"ckpt/{client.consumed}").accepted
    client.progress()
    return client


# ---- reports ---------------------------------------------------------------------------------------------------


def test_commits_arrive_over_tls_and_the_ca_and_the_token_may_change(rig: Rig, service: ReportService) -> None:
    service.up()
    pod = rig.start()
    client = train(pod, 12)
    with eventually() as check:
        check(lambda: rig.view.last_step == 12)
    service.down()
    service.rotate()
    service.up()
    client.run(18)
    client.commit("ckpt/18")
    with eventually() as check:
        check(lambda: "cannot be reached" in pod.text())
    assert rig.view.last_step == 12, "a service that we cannot know is not talked to"
    service.publish()
    with eventually() as check:
        check(lambda: rig.view.last_step == 18)
    assert "the CA of the control plane has changed: connecting anew" in pod.text()
    service.token.write_text("nonsense")
    failures = pod.metric("lanefeed_report_failures_total")
    with eventually() as check:
        check(lambda: pod.metric("lanefeed_report_failures_total") > failures)
    service.token.write_text("pod:pod-1")
    client.run()
    client.commit("end")
    with eventually() as check:
        check(lambda: rig.view.last_step == pod.total)
    assert [proof.verified for proof in rig.view.proofs] == [True, True]
    assert client.ids == pod.expected()


def test_a_pod_trains_on_without_ca_token_name_or_service(
    make_pod: MakePod, service: ReportService, tmp_path: Path
) -> None:
    service.ca.unlink()
    rig = Rig(make_pod, service, tmp_path)
    pod = rig.pod
    pod.start(rig.env, coordinator="no-such-service.ns.svc:9443")
    client = train(pod)
    assert client.ids == pod.expected()
    assert "there is no CA to trust" in pod.text()
    service.publish()
    with eventually() as check:
        check(lambda: pod.metric("lanefeed_report_failures_total") >= 3)
    assert pod.metric("lanefeed_commits_waiting") > 0
    client.close()
    assert rig.stopped() < 50
    assert pod.text().count("training goes on") <= 3, "an outage is logged when it begins or changes"


# ---- the end ---------------------------------------------------------------------------------------------------


def test_last_commits_are_delivered_though_the_operator_comes_late(rig: Rig, service: ReportService) -> None:
    pod = rig.start(LANEFEED_FLUSH_SECONDS="80")
    train(pod).close()
    timer = threading.Timer(2.0, service.up)
    timer.start()
    took = rig.stopped()
    timer.join()
    assert took < 70.0, f"no longer than it needs: {took:.2f} s; {pod.text()[-2000:]}"
    assert rig.view.last_step == pod.total
    assert rig.view.ranks[0].ended
    assert (pod.run_dir / "commits.jsonl").stat().st_size == 0
    words = rig.words()
    assert (words.commits, words.left_out, words.why) == ((), 0, "told to end")
    assert [(r.rank, r.consumed, r.ended) for r in words.ranks] == [(0, pod.total, True)]


def test_without_an_operator_the_last_words_tell_it_everything(rig: Rig) -> None:
    pod = rig.start(LANEFEED_FLUSH_SECONDS="1")
    train(pod).close()
    assert rig.stopped() < 50
    text = rig.log.read_text()
    assert len(text) <= lastwords.MAX_BYTES
    rig.core = core = rig.fresh()
    reply = core.report(reports_of(text, pod_uid="pod-1"), time.time())
    assert not reply.reason
    view = rig.view
    assert (view.last_step, view.last_name) == (pod.total, f"ckpt/{pod.total}")
    assert [proof.verified for proof in view.proofs] == [True, True]
    assert view.ranks[0].ended


def test_last_words_after_a_report_count_nothing_twice(rig: Rig, service: ReportService) -> None:
    service.up()
    pod = rig.start()
    train(pod).close()
    with eventually() as check:
        check(lambda: rig.view.last_step == pod.total)
    rig.stopped()
    before = rig.view
    rig.core.report(reports_of(rig.log.read_text(), pod_uid="pod-1"), time.time())
    assert rig.view.book == before.book
    assert rig.view.ranks == before.ranks or not rig.view.ranks[0].attached


def test_a_container_that_is_restarted_hurries_and_its_commits_stay(rig: Rig, service: ReportService) -> None:
    """SIGTERM to a sidecar whose trainer streams is no end of the pod: trainers wait for the next session."""
    pod = rig.start(LANEFEED_FLUSH_SECONDS="80")
    client = train(pod, 12)
    assert rig.stopped() < 60
    assert [c.stop for c in rig.words().commits] == [6, 12]
    former = rig.words().session
    rig.start(LANEFEED_FLUSH_SECONDS="80")
    assert pod.metric("lanefeed_commits_waiting") == 2
    service.up()
    with eventually() as check:
        check(lambda: rig.view.last_step == 12)
    late = rig.core.report(reports_of(rig.log.read_text(), pod_uid="pod-1"), time.time())
    assert (late.fenced, "has had another session since these last words" in late.reason) == (False, True)
    again = pod.client()
    assert again.attach(resuming=True, resume_at=client.consumed).session != former
    again.stream()
    again.run()
    again.start = 12
    assert again.commit("end").accepted
    with eventually() as check:
        check(lambda: rig.view.last_step == pod.total)


def test_a_stop_and_no_commit_left_takes_no_time(rig: Rig, service: ReportService) -> None:
    service.up()
    rig.start(LANEFEED_FLUSH_SECONDS="80")
    with eventually() as check:
        check(lambda: rig.pod.metric("lanefeed_reports_total") >= 1)
    assert rig.stopped() < 60


# ---- what no restart mends -------------------------------------------------------------------------------------


def test_a_wrong_manifest_is_no_crash_loop(rig: Rig, service: ReportService, tmp_path: Path) -> None:
    service.up()
    process = rig.pod.spawn(rig.env, manifest_digest="1234")
    with eventually() as check:
        check(lambda: len(rig.view.failures) == 1)
    failure = rig.view.failures[0]
    assert (failure.kind, failure.retryable, failure.pod_index) == ("ConfigError", False, 0)
    assert "and this plan is for 1234" in failure.message
    code, reason = rig.pod.get("/readyz")
    assert (code, "ManifestError" in reason) == (503, True)
    with pytest.raises(grpc.RpcError) as caught:
        rig.pod.client().attach()
    assert kind_of(caught.value) == "ConfigError"
    assert "this plan is for 1234" in caught.value.details()
    time.sleep(1.0)
    assert process.poll() is None, "it stays"
    rig.stopped(2)
    assert rig.words().why.startswith("ManifestError: the manifest ")
    assert [f.kind for f in rig.words().failures] == ["ConfigError"]
    assert rig.pod.last_line().startswith("ManifestError: the manifest ")


def test_data_that_is_bad_in_the_middle_is_no_crash_loop(rig: Rig, service: ReportService) -> None:
    pod = rig.start(ENGINE_FAIL="6:data")
    client = pod.client()
    client.attach()
    client.stream()
    for frame in client.frames():
        client.consume(frame)
    assert client.events[-1].failure.kind == "DataError"
    client.close()
    time.sleep(2.0)
    assert pod.process is not None
    assert pod.process.poll() is None
    assert pod.get("/readyz")[0] == 503
    with pytest.raises(grpc.RpcError) as caught:
        pod.client().attach()
    assert kind_of(caught.value) == "DataError"
    service.up()
    with eventually() as check:
        check(lambda: [f.kind for f in rig.view.failures] == ["DataError"])
    rig.stopped(2)
    assert rig.words().why.startswith("DataError: shard part-0.parquet")


def test_where_nobody_can_be_told_it_ends_with_2(rig: Rig) -> None:
    """No run folder, no socket and no report: the kubelet's back-off is what is left, and the last line."""
    process = rig.pod.spawn(rig.env, run_dir="/nowhere")
    assert process.wait(60) == 2
    assert rig.pod.last_line().startswith("ConfigError: run_dir /nowhere is not a folder")
    process = rig.pod.spawn({**rig.env, "LANEFEED_POD_INDEX": "1"})
    assert process.wait(60) == 2
    assert "LANEFEED_POD_INDEX is 1 and the plan has 1 pods" in rig.pod.last_line()


def test_without_a_cluster_it_ends_as_ever(make_pod: MakePod, service: ReportService) -> None:
    pod = make_pod(coordinator=service.target, coordinator_token_path=str(service.token))
    process = pod.spawn(manifest_digest="1234")
    assert process.wait(60) == 2
    assert "this plan is for 1234" in pod.last_line()
