"""Sidecar and indexer as a kubelet starts them, with the rendered environment and nothing else, read a private bucket.

No cluster: `Kubelet` does what one does with a container (values from Secrets and fields, $(NAME), mounts).
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lanefeed_core import manifest_codec
from lanefeed_core.lanes import Lanes
from lanefeed_core.manifest import Manifest
from lanefeed_operator.api.spec import Job
from lanefeed_operator.api.status import CursorStatus
from lanefeed_operator.reconcile.dataset import freeze, spec_of
from lanefeed_operator.reconcile.plans import info_of
from lanefeed_operator.render import Settings, indexed_job, indexer, pod_config, sizes
from lanefeed_operator.render import constants as c
from support.feed_client import Client
from support.report_tls import ReportService
from support.s3 import S3Server
from unit.render.objects import make_plan
from unit.render.test_pods import container, make

SECONDS = 60
SECRET = "sEcReT-from-the-cluster"
SECRETS = {"store-keys": {"id": "test", "key": SECRET}}
VARIABLES: list[dict[str, Any]] = [
    {"name": "AWS_ACCESS_KEY_ID", "valueFrom": {"secretKeyRef": {"name": "store-keys", "key": "id"}}},
    {"name": "AWS_SECRET_ACCESS_KEY", "valueFrom": {"secretKeyRef": {"name": "store-keys", "key": "key"}}},
    {"name": "AWS_DEFAULT_REGION", "value": "us-east-1"},
    {"name": "AWS_ENDPOINT_URL", "value": "http://$(STORE)"},
    {"name": "LANEFEED_READ_PATIENCE_SECONDS", "value": "30"},
    {"name": "UNRELATED", "value": "x"},
]


class Kubelet:
    """Runs containers of one pod as processes; a mount is a folder of the test's, put in place of its path."""

    def __init__(self, mounts: dict[str, Path], home: Path) -> None:
        self.mounts, self.home = mounts, home
        self.fields = {"metadata.uid": "pod-1", f"metadata.annotations['{c.INDEX_LABEL}']": "0"}
        self.processes: list[subprocess.Popen[str]] = []

    def placed(self, text: str) -> str:
        for path, folder in self.mounts.items():
            text = text.replace(path, str(folder))
        return text

    def environment(self, made: dict[str, Any]) -> dict[str, str]:
        found: dict[str, str] = {}
        for item in made["env"]:
            source = item.get("valueFrom", {})
            if "fieldRef" in source:
                value = self.fields[source["fieldRef"]["fieldPath"]]
            elif "secretKeyRef" in source:
                value = SECRETS[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
            else:
                value = re.sub(r"\$\((\w+)\)", lambda m: found.get(m[1], m[0]), item.get("value", ""))
            found[item["name"]] = value
        return found

    def start(self, made: dict[str, Any]) -> "subprocess.Popen[str]":
        # A container has what its image sets, and what is rendered.
        image = {"PATH": os.defpath, "HOME": str(self.home), "AWS_EC2_METADATA_DISABLED": "true"}
        env = image | {key: self.placed(value) for key, value in self.environment(made).items()}
        command = [sys.executable, *made["command"][1:], *(self.placed(one) for one in made["args"])]
        with (self.home / f"{made['name']}.log").open("w") as log:
            process = subprocess.Popen(command, env=env, stdout=log, stderr=log, text=True, cwd=self.home)
        self.processes.append(process)
        return process

    def log(self, made: dict[str, Any]) -> str:
        return (self.home / f"{made['name']}.log").read_text()


class Ids(Client):
    """A trainer that looks at the samples' ids alone."""

    def read(self, frame: Any) -> dict[str, Any]:
        count = frame.steps * frame.rows
        ids = self.slot(frame.slot)[frame.ids_offset :][: 8 * count].view(np.int64)
        return {"ids": ids.reshape(frame.steps, frame.rows).copy()}


def job_of(endpoint: str) -> Job:
    written = [{"name": "STORE", "value": endpoint.removeprefix("http://")}, *VARIABLES]
    job = make({"data": {"uri": "s3://data/train"}, "replicas": 1, "ranksPerReplica": 1, "epochs": 1}, env=written)
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": "uid-1"})})


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ReportService]:
    made = ReportService(tmp_path / "control")
    made.up()
    yield made
    made.down()


@pytest.fixture
def kubelet(tmp_path: Path, service: ReportService) -> Iterator[Kubelet]:
    root = os.environ.get("LANEFEED_SHM_ROOT", "/dev/shm")
    with tempfile.TemporaryDirectory(prefix="lf-pod-", dir=root) as run:
        mounts = {c.CONTROL_PATH: service.control, c.RUN_PATH: Path(run), "/tmp/": tmp_path / "tmp"}
        mounts |= {c.PLAN_PATH: tmp_path / "plan", c.MANIFEST_PATH: tmp_path / "manifest"}
        for path in mounts.values():
            path.mkdir(exist_ok=True)
        mounts["/tmp/manifest"] = mounts.pop("/tmp/") / "manifest"
        made = Kubelet(mounts, tmp_path)
        yield made
        for process in made.processes:
            process.kill()
            process.wait()


def until(what: Callable[[], bool], process: "subprocess.Popen[str]", log: Callable[[], str]) -> None:
    end = time.monotonic() + SECONDS
    while not what():
        assert process.poll() is None, log()
        assert time.monotonic() < end, f"waited {SECONDS} s: {log()}"
        time.sleep(0.05)


def test_indexer_and_sidecar_read_with_the_keys_of_the_trainer(
    server: S3Server, local: Manifest, service: ReportService, kubelet: Kubelet
) -> None:
    settings = Settings(sidecar_image="x", coordinator=service.target, metrics_port=0)
    job = job_of(server.url)
    first = indexer(job, settings)["spec"]["template"]["spec"]["containers"][0]
    process = kubelet.start(first)
    assert process.wait(SECONDS) == 0, kubelet.log(first)
    ((pod, digest, encoded),) = service.job.manifests
    manifest = manifest_codec.decode(encoded)
    assert (pod, digest) == ("pod-1", local.digest)

    stream = freeze(job, info_of(manifest))
    plan, spec = make_plan(job), spec_of(stream)
    config = pod_config(job, plan, spec, CursorStatus(), sizes(job.spec, plan, manifest), settings)
    kubelet.mounts[c.MANIFEST_PATH].joinpath(c.MANIFEST_CHUNK).write_bytes(encoded)
    text = kubelet.placed(replace(config, metrics_host="127.0.0.1").to_json())
    kubelet.mounts[c.PLAN_PATH].joinpath(c.POD_FILE).write_text(text)
    made = indexed_job(job, config, manifest, settings, chunks=1)["spec"]["template"]["spec"]
    second = container(made, c.SIDECAR)
    assert "UNRELATED" not in kubelet.environment(second)
    run = kubelet.mounts[c.RUN_PATH]
    process = kubelet.start(second)
    until((run / "feed.sock").exists, process, lambda: kubelet.log(second))

    client = Ids(run, 0, 1)
    try:
        client.attach()
        client.stream()
        client.run()
    finally:
        client.close()
    lanes = Lanes(spec, manifest.shard_rows)
    steps = [lanes.batch(0, step)[0].tolist() for step in range(lanes.steps_per_epoch)]
    assert client.ids == dict(enumerate(steps))
    assert SECRET not in kubelet.log(first) + kubelet.log(second)


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "STORE"])
def test_without_them_the_same_container_says_what_is_missing(
    server: S3Server, local: Manifest, service: ReportService, kubelet: Kubelet, name: str
) -> None:
    """The tooth: what was rendered until 0.1, and what is read is the variables, not this machine's environment."""
    settings = Settings(sidecar_image="x", coordinator=service.target)
    made = indexer(job_of(server.url), settings)["spec"]["template"]["spec"]["containers"][0]
    made["env"] = [item for item in made["env"] if item["name"] not in (name, "LANEFEED_READ_PATIENCE_SECONDS")]
    made["env"].append({"name": "LANEFEED_READ_PATIENCE_SECONDS", "value": "1"})
    assert kubelet.start(made).wait(SECONDS) == 2, kubelet.log(made)
    wanted = "no credentials were found" if name == "AWS_ACCESS_KEY_ID" else r"Invalid endpoint: http://\$\(STORE\)"
    assert re.search(wanted, kubelet.log(made)), kubelet.log(made)
    assert not service.job.manifests
