"""`lanefeed status|plan|verify|scale|top` on a job in a cluster: what a person types and reads.

The API server is in memory.
"""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from lanefeed_core import manifest_codec
from lanefeed_core.expected import epoch_entry
from lanefeed_core.manifest import Field, Manifest, Shard
from lanefeed_operator.api.load import load_job
from lanefeed_operator.api.spec import Job
from lanefeed_operator.api.status import (
    Condition,
    CursorStatus,
    EpochProof,
    LedgerStatus,
    PlanStatus,
    Progress,
    RankProgress,
    Status,
)
from lanefeed_operator.cli import cluster
from lanefeed_operator.cli.main import app
from lanefeed_operator.errors import OperatorError
from lanefeed_operator.kube.api import CONFIG_MAPS, PODS, STJS, Forbidden, NotFound
from lanefeed_operator.reconcile.dataset import freeze
from lanefeed_operator.reconcile.plans import info_of, lanes_of
from lanefeed_operator.render import manifest_maps
from support.kube_store import KubeStore

NS = "team-a"
SPEC: dict[str, Any] = {
    "replicas": 2,
    "data": {"uri": "/data/*.parquet"},
    "batching": {"globalBatchSize": 8},
    "epochs": 2,
    "template": {"spec": {"containers": [{"name": "trainer", "image": "x", "command": ["train"]}]}},
}
MANIFEST = Manifest(
    tuple(Shard(f"part-{i}.parquet", 4096, (20, 20), (160, 160), "f" * 16) for i in range(4)),
    (Field("x", "int64"),),
)
METRICS = """# TYPE lanefeed_samples counter
lanefeed_samples_total {samples}
# TYPE lanefeed_total_step gauge
lanefeed_total_step{{rank="{index}"}} {step}
# TYPE lanefeed_rank_attached gauge
lanefeed_rank_attached{{rank="{index}"}} 1
# TYPE lanefeed_trainer_wait_seconds counter
lanefeed_trainer_wait_seconds_total{{rank="{index}"}} {wait}
# TYPE lanefeed_trainer_step_seconds counter
lanefeed_trainer_step_seconds_total{{rank="{index}"}} 10
# TYPE lanefeed_decode_seconds counter
lanefeed_decode_seconds_total 9
# TYPE lanefeed_decode_cpu_seconds counter
lanefeed_decode_cpu_seconds_total 8
"""


class Cluster(KubeStore):
    """The store, with pods that can be asked by HTTP."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, str | Exception] = {}

    def pod_text(self, namespace: str, pod: str, port: int, path: str) -> str:
        assert (namespace, port, path) == (NS, 9404, "metrics")
        found = self.texts[pod]
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(cluster, "connect", lambda context: (made, "default", f"context {context or 'test'}"))
    monkeypatch.setattr("lanefeed_operator.cli.choose.connect", cluster.connect)
    return made


def _job() -> Job:
    document = {
        "apiVersion": "lanefeed.dev/v1alpha1",
        "kind": "ShardedTrainingJob",
        "metadata": {"name": "llm", "namespace": NS},
        "spec": SPEC,
    }
    return load_job(json.dumps(document))


def _apply(api: Cluster, *, digest: str = "") -> Job:
    """A job in mid-run with its manifest: one epoch proven (`digest`: what its ledger says, the right one if empty)."""
    job = _job()
    made = api.create(STJS, NS, {"metadata": {"name": "llm"}, "spec": SPEC})
    stream = freeze(job, info_of(MANIFEST))
    entry = epoch_entry(lanes_of(stream, MANIFEST), 0)
    right = f"{entry.total:016x}"
    proof = EpochProof(
        epoch=0,
        samples=entry.count,
        digest=digest or right,
        expected=right,
        expected_samples=entry.count,
        verified=not digest,
    )
    status = Status(
        state="Running",
        plan_generation=3,
        replicas=2,
        ready_replicas=2,
        stream=stream,
        plan=PlanStatus(generation=3, replicas=2, wanted=2),
        cursor=CursorStatus(epoch=1, step=2, total_step=22, commit="ckpt/22"),
        ledger=LedgerStatus(verified=int(not digest), epochs=[proof]),
        progress=Progress(consumed=25, percent=62.5, steps_per_second=4.0, ranks=[RankProgress(rank=0, consumed=25)]),
        stall_percent=7.5,
        conditions=[Condition(type="Running", status="True", reason="PodsReady", message="2 of 2 pods are ready")],
    )
    api.replace_status(STJS, NS, {"metadata": made["metadata"], "status": status.to_dict()})
    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": made["metadata"]["uid"]})})
    for body in manifest_maps(job, manifest_codec.encode(MANIFEST), MANIFEST.digest):
        api.create(CONFIG_MAPS, NS, body)
    return job


def _pod(api: Cluster, index: int, *, generation: int = 3, phase: str = "Running") -> str:
    name = f"llm-{generation}-{index}"
    labels = {"lanefeed.dev/job": "llm", "lanefeed.dev/role": "pods", "lanefeed.dev/plan-generation": str(generation)}
    port = {"name": "feed-metrics", "containerPort": 9404}
    api.create(
        PODS,
        NS,
        {
            "metadata": {
                "name": name,
                "labels": labels,
                "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
            },
            "spec": {"initContainers": [{"name": "lanefeed-sidecar", "ports": [port]}], "containers": []},
        },
    )
    api.mutate(PODS, NS, name, lambda o: o.update(status={"phase": phase}))
    return name


def _run(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def _error(*words: str) -> str:
    with pytest.raises(OperatorError) as caught:
        CliRunner().invoke(app, list(words), catch_exceptions=False)
    return str(caught.value)


def test_status_reads_like_that_of_a_local_job(api: Cluster) -> None:
    _apply(api)
    text = _run("status", "llm", "-n", NS)
    for words in (
        "llm",
        "Running",
        f"context test, namespace {NS}",
        "2 ready of 2, 2 wanted",
        "generation 3",
        "25 of 40 (62.5 %)",
        "step 22 ckpt/22",
        "2 of 2 pods are ready",
    ):
        assert words in text, f"{words!r} is not in\n{text}"


def test_the_whole_object_without_managed_fields(api: Cluster) -> None:
    _apply(api)
    api.mutate(STJS, NS, "llm", lambda o: o["metadata"].update(managedFields=[{"manager": "kubectl"}]))
    text = _run("status", "llm", "-n", NS, "-o", "yaml")
    assert "globalBatchSize: 8" in text
    assert "managedFields" not in text


def test_plan_shows_who_reads_what_and_simulates_a_resize(api: Cluster) -> None:
    _apply(api)
    now, then = _run("plan", "llm", "-n", NS), _run("plan", "llm", "-n", NS, "--replicas", "4")
    assert "2 pods x 1 ranks" in now
    assert "simulated: 4 pods x 1 ranks" in then
    assert "part-" in now


def test_verify_recomputes_the_ledger_from_the_manifest_in_the_cluster(api: Cluster) -> None:
    _apply(api)
    assert "1 epoch proven: every sample used exactly once" in _run("verify", "llm", "-n", NS)


def test_verify_says_so_where_the_ledger_is_wrong(api: Cluster) -> None:
    _apply(api, digest="00000000deadbeef")
    done = CliRunner().invoke(app, ["verify", "llm", "-n", NS])
    assert done.exit_code == 1
    assert "not exact: epoch 0" in done.output


def test_a_manifest_of_a_deleted_job_of_the_same_name_is_not_taken(api: Cluster) -> None:
    _apply(api)
    for name in [key[2] for key in api.objects if key[0] == CONFIG_MAPS]:
        api.mutate(
            CONFIG_MAPS, NS, name, lambda o: o["metadata"]["annotations"].update({"lanefeed.dev/job-uid": "old"})
        )
    assert "has no manifest yet" in _error("verify", "llm", "-n", NS)


def test_scale_goes_through_the_scale_subresource(api: Cluster) -> None:
    _apply(api)
    assert "llm: 2 -> 4 pods (the operator resizes it)" in _run("scale", "llm", "4", "-n", NS)
    assert api.get(STJS, NS, "llm")["spec"]["replicas"] == 4
    assert "16" in _error("scale", "llm", "16", "-n", NS)


def test_an_unknown_job_names_those_that_are_there(api: Cluster) -> None:
    _apply(api)
    assert f"no ShardedTrainingJob 'other' in namespace {NS} of context test (known there: llm)" in _error(
        "status", "other", "-n", NS
    )


def test_top_shows_all_jobs_with_the_hungriest_first(api: Cluster) -> None:
    _apply(api)
    text = _run("top", "-A")
    assert NS in text
    assert "7.5" in text
    assert "2/2" in text


def test_top_of_a_job_says_what_each_pod_waits_for(api: Cluster) -> None:
    _apply(api)
    hungry, fine, gone, old = _pod(api, 0), _pod(api, 1), _pod(api, 2), _pod(api, 0, generation=2)
    api.texts[hungry] = METRICS.format(index=0, samples=100, step=25, wait=5)
    api.texts[fine] = METRICS.format(index=1, samples=100, step=26, wait=0)
    api.texts[gone] = NotFound("no such pod")
    text = _run("top", "llm", "-n", NS, "--interval", "0.2")
    assert old not in text
    lines = [line.split() for line in text.splitlines()]
    assert [line[0] for line in lines[1:]] == ["0", "1"]
    assert "no trainer" not in text


def test_top_without_the_right_says_which_one(api: Cluster) -> None:
    _apply(api)
    api.texts[_pod(api, 0)] = Forbidden('pods "llm-3-0" is forbidden')
    assert "you need `get` on pods/proxy in namespace team-a" in _error("top", "llm", "-n", NS)
