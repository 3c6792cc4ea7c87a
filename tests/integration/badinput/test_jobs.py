"""Bad input of `lanefeed run` and `lanefeed index`: what the terminal says, and the exit code. No traceback, ever."""

import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from integration.local.jobs import NEVER, LocalJob
from lanefeed_core.board import board_bytes
from lanefeed_core.layout import HEADER_BYTES
from lanefeed_operator.local import rundir


@pytest.fixture
def job(tmp_path: Path) -> Iterator[LocalJob]:
    made = LocalJob(tmp_path, replicas=1, maxRestarts=0, epochs=1)
    made.pace(0)
    made.allow(NEVER)
    yield made
    made.close()


def refused(job: LocalJob, code: int, *arguments: str) -> str:
    """What `lanefeed run job.yaml` (or another command) says when it ends with `code`."""
    done = job.lanefeed(*(arguments or ("run", "job.yaml")))
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


#: (what is written, instead of what, the line that comes back)
FIELDS: list[tuple[str, str, str]] = [
    (
        "globalBatchsize: 12",
        "globalBatchSize: 12",
        "spec.batching.globalBatchsize: is not a field: did you mean globalB",
    ),
    (
        "globalBatchSize: many",
        "globalBatchSize: 12",
        "spec.batching.globalBatchSize: is 'many': it should be a valid int",
    ),
    ("globalBatchSize: 0", "globalBatchSize: 12", "spec.batching.globalBatchSize: is 0: it should be greater than"),
    (
        "lastBatch: partial",
        "lastBatch: Partial",
        "spec.batching.lastBatch: is 'partial': it must be 'Drop', 'Partial' or",
    ),
    (
        "readAheadBytes: 64Mb",
        "readAheadBytes: 64Mi",
        "spec.sidecar.readAheadBytes: '64Mb' is not a quantity of bytes: write one such as",
    ),
    ("replica: 1", "replicas: 1", "spec.replica: is not a field: did you mean replicas?"),
    ("kind: Pod", "kind: ShardedTrainingJob", "kind: is 'Pod': it must be ShardedTrainingJob"),
    ("replicas: 13", "replicas: 1", "spec.batching.globalBatchSize: is 12, smaller than the 13 ranks (replicas x"),
    ("replicas: 5\n  x: 1", "replicas: 1", "spec.x: is not a field; the fields here are "),
]


@pytest.mark.parametrize(("wrong", "right", "text"), FIELDS, ids=[w for w, _, _ in FIELDS])
def test_a_misspelt_or_wrong_field(job: LocalJob, wrong: str, right: str, text: str) -> None:
    file = job.write()
    good = file.read_text()
    assert right in good
    file.write_text(good.replace(right, wrong))
    said = refused(job, 2)
    line = next(line for line in said.splitlines() if text in line)
    number = int(line.split("line ")[1].split(":")[0])
    assert wrong.split("\n")[-1].strip() in file.read_text().splitlines()[number - 1] or "globalBatchSize" in line
    assert not job.state.exists(), "nothing was begun"


def test_an_uneven_world_that_was_not_allowed(job: LocalJob) -> None:
    job.spec["batching"] = {"globalBatchSize": 12}
    job.spec["replicas"] = 5
    job.write()
    text = "12 is not a multiple of 5 ranks, so rank batches would differ by one sample: set batching.uneven to Allow"
    assert text in refused(job, 2)


def test_jobs_that_are_none(job: LocalJob) -> None:
    text = refused(job, 2, "run", "nojob.yaml")
    assert "cannot read nojob.yaml: No such file or directory; give the path of a ShardedTrainingJob's YAML" in text
    (job.work / "job.yaml").write_text("spec: [1\nx")
    assert "line 2: this is not YAML: " in refused(job, 2)
    (job.work / "job.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n")
    assert "line 2: kind: is 'Pod': it must be ShardedTrainingJob" in refused(job, 2)


def test_an_empty_glob_and_a_column_that_does_not_exist(job: LocalJob) -> None:
    job.spec["data"] = {"uri": "no/*.parquet"}
    job.write()
    assert f"data.uri no/*.parquet matches no file (current folder {job.work}; " in refused(job, 1)
    job.spec["data"] = {"uri": "data", "columns": ["idd"]}
    job.name = "other"
    job.write()
    text = "data.columns names 'idd', which the dataset does not have: did you mean 'id'? It has id"
    assert text in refused(job, 1)


def test_a_corrupt_file_fails_the_job_or_is_set_aside_aloud(job: LocalJob) -> None:
    bad = job.work / "data" / "9.parquet"
    bad.write_bytes(b"PAR1" + bytes(500))
    job.write()
    why = "9.parquet (504 bytes) cannot be read: it does not end like a parquet file (truncated, or not parquet)"
    assert f"{why}; remove or rewrite it, or set data.onCorrupt to Quarantine" in refused(job, 1)
    job.spec["data"] = {"uri": "data", "onCorrupt": "Quarantine"}
    job.name, job.state = "aside", job.work / ".lanefeed" / "aside"
    status = job.finish(job.start())
    assert f"quarantined: 9.parquet: {job.work}/data/{why}" in job.log
    assert status["quarantined"][0].startswith("9.parquet: ")
    job.assert_exact(epochs=1)
    assert "9.parquet: " in job.lanefeed("status", "aside").stdout


def test_corrupt_pages_fail_the_job_by_name(job: LocalJob) -> None:
    bad = job.work / "data" / "2.parquet"
    pq.write_table(pa.table({"id": np.arange(400, 900)}), bad, row_group_size=100, write_page_checksum=True)
    data = bytearray(bad.read_bytes())
    at = pq.ParquetFile(bad).metadata.row_group(0).column(0).data_page_offset
    data[at : at + 60] = bytes(60)
    bad.write_bytes(bytes(data))
    job.spec["epochs"] = 2
    job.write()
    text = refused(job, 1)
    assert f"failed (DataError): pod 0: shard {bad}, row group 0 cannot be decoded: " in text
    assert "restore the file, or make a new manifest with `lanefeed index` and start a new job" in text


def test_a_sample_larger_than_a_slot(job: LocalJob) -> None:
    texts = ["x"] * 29 + ["y" * 300_000]
    (job.work / "big").mkdir()
    pq.write_table(pa.table({"id": np.arange(30), "t": texts}), job.work / "big" / "0.parquet")
    job.spec["data"] = {"uri": "big"}
    job.spec["sidecar"] |= {"slotBytes": "64Ki"}
    job.write()
    text = refused(job, 1)
    assert "failed (BatchTooLarge): pod 0: a rank batch of 12 rows takes 300" in text
    assert "and a slot holds 65536: raise sidecar.slotBytes to at least 300" in text


def test_an_arena_that_does_not_fit(job: LocalJob) -> None:
    job.spec["sidecar"] |= {"slotBytes": "1Ti"}
    job.write()
    text = refused(job, 1)
    needed = HEADER_BYTES + 4 * (1 << 40) + board_bytes(4)
    assert f"the arena needs {needed} bytes (4 slots of 1099511627776 bytes) and " in text
    assert "make the tmpfs larger (sizeLimit of the emptyDir, or /dev/shm), or lower sidecar.slots" in text


def test_a_command_that_does_not_exist(job: LocalJob) -> None:
    job.command = ["trian"]
    job.write()
    text = refused(job, 1)
    assert "the trainer's command cannot be started" in text
    assert "'trian'; check command and workingDir" in text


def test_a_shard_that_was_replaced_since_the_job_began(job: LocalJob) -> None:
    """(A listing that changed: tests/integration/local/test_run.py.)"""
    job.command = [sys.executable, "-c", "import sys; sys.exit(3)"]
    job.write()
    assert "exit code 3" in refused(job, 1)
    pq.write_table(pa.table({"id": np.arange(400, 410)[::-1]}), job.work / "data" / "2.parquet", row_group_size=3)
    text = refused(job, 2)
    assert "the dataset of job tiny has changed since the job began: 1 changed (2.parquet)." in text
    assert "restore the files, or begin anew with `lanefeed run --fresh`" in text


HANGS = """
import lanefeed
with lanefeed.connect(tensors="numpy") as loader:
    for _ in loader.epochs():
        for number, batch in enumerate(loader):
            dict(batch)
            if number == 0:
                loader._stream._stall_seconds = 1.0
                open("began", "w").close()
                import time; time.sleep(0.5)
"""


def test_a_sidecar_that_hangs_ends_the_trainer_with_its_words(job: LocalJob) -> None:
    (job.work / "train.py").write_text(HANGS)
    job.command = [sys.executable, "train.py"]
    job.spec["epochs"] = 1000
    runner = job.start()
    pod = job.until(lambda: (job.work / "began").exists() and job.running(0), "the trainer reads")
    os.kill(pod.sidecar_pid, signal.SIGSTOP)
    job.finish(runner, 1)
    logs = "\n".join(f.read_text() for f in job.state.glob("pods/*/logs/*.log"))
    assert re.search(r"SidecarLost: no word from the sidecar for \d+ s\. step ", logs), logs
    assert "exit code 1" in job.log


#: Comes first in each process of the job; does harm to the sidecar only.
AT_START = """
import os, sys, time
if "lanefeed_sidecar" in sys.orig_argv and "--config" in sys.orig_argv:
    {harm}
"""


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (
            "time.sleep(600)",
            "the sidecar was not ready within 2 s: it said nothing; see sidecar.log, and LANEFEED_START_",
        ),
        (
            "print('no libarrow.so', file=sys.stderr, flush=True), os._exit(1)",
            "times): no libarrow.so; see sidecar.log, and LANEFEED_START_SECONDS for how long",
        ),
    ],
    ids=["hangs", "dies again and again"],
)
def test_a_sidecar_that_never_starts(job: LocalJob, monkeypatch: pytest.MonkeyPatch, harm: str, said: str) -> None:
    """An image that hangs or breaks at its start: the pod does not wait for it for ever."""
    harmed = job.work / "harm"
    harmed.mkdir()
    (harmed / "sitecustomize.py").write_text(AT_START.format(harm=harm))
    monkeypatch.syspath_prepend(str(harmed))
    # One that dies has to have started by then.
    job.env["LANEFEED_START_SECONDS"] = "2" if "within 2 s" in said else "8"
    job.write()
    assert said in refused(job, 1)


def test_a_run_folder_on_a_disk_works_and_is_told(job: LocalJob) -> None:
    # A short path: sockets lie below it.
    with tempfile.TemporaryDirectory(prefix="lf-", dir="/tmp") as place:
        if not rundir.on_disk(Path(place)):
            pytest.skip("/tmp is in memory here")
        job.env["LANEFEED_SHM_ROOT"] = place
        job.finish(job.start())
        assert re.search(rf"warning: the run folder {place}/\S+ is on \w+, not in tmpfs", job.log)


def test_index_says_the_same(job: LocalJob) -> None:
    assert "data.uri no/*.parquet matches no file" in refused(job, 2, "index", "no/*.parquet")
    assert "did you mean 'id'?" in refused(job, 2, "index", "data", "--columns", "idd")
    (job.work / "data" / "9.parquet").write_bytes(b"")
    said = refused(job, 2, "index", "data")
    assert "9.parquet (0 bytes) cannot be read: it is empty; remove or rewrite it" in said
    assert "onCorrupt" not in said, "the command has no such option"


def test_names_of_jobs_that_nobody_knows(job: LocalJob) -> None:
    for command in (["status", "no"], ["verify", "no"], ["scale", "no", "2"]):
        assert "there is no job 'no'" in refused(job, 2, *command)
