"""Packed jobs through `lanefeed run`: kills, and a proof that counts sequences."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.local.jobs import LocalJob
from lanefeed_core.packing import BEST_FIT, PackingRequest
from lanefeed_sidecar.index import build_manifest
from support.token_files import lists, write_documents

REQUEST = PackingRequest(40, "", 5, BEST_FIT, True)
BATCHING: dict[str, Any] = {
    "globalBatchSize": 6,
    "lastBatch": "Partial",
    "uneven": "Allow",
    "layout": "Packed",
    "packed": {"sequenceLength": 40, "eosToken": 5, "mode": "BestFit", "crossDocumentMask": True},
}


def rows(work: Path) -> int:
    return build_manifest([str(work / "data")], packing=REQUEST).manifest.rows


@pytest.fixture
def job(tmp_path: Path) -> Iterator[LocalJob]:
    for number, count in enumerate((300, 120, 200)):
        write_documents(tmp_path / "data" / f"{number}.parquet", lists(number, count, 50), group=40)
    made = LocalJob(tmp_path, batching=BATCHING)
    yield made
    made.close()


def test_a_packed_job_with_a_killed_trainer_and_sidecar_is_proven(job: LocalJob) -> None:
    runner = job.start()
    job.until_step(10)
    trainer = job.until(lambda: job.running(1), "pod 1 trains")
    os.kill(trainer.trainer_pid, signal.SIGKILL)
    job.until(lambda: (p := job.running(1)) and p.uid != trainer.uid, "pod 1 is replaced")
    job.until_step(job.committed() + 10)
    sidecar = job.until(lambda: job.running(0), "pod 0 trains")
    os.kill(sidecar.sidecar_pid, signal.SIGKILL)
    job.pace(0.001)
    status = job.finish(runner)
    wanted = rows(job.work)
    assert status["stream"]["rows"] == wanted
    assert [(e["verified"], e["samples"]) for e in status["ledger"]["epochs"]] == [(True, wanted)] * 2
    job.spec["batching"] = {**BATCHING, "packed": {**BATCHING["packed"], "sequenceLength": 41}}
    job.finish(job.start(), 2)
    assert "spec.batching.packed was" in job.log
    assert "it is fixed for the job's life" in job.log
