"""The state folder: whole files, one runner, wanted size, and what is taken from an earlier run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lanefeed_operator.api.load import load_job
from lanefeed_operator.api.spec import Job
from lanefeed_operator.api.status import Condition, Status, StreamStatus
from lanefeed_operator.errors import JobError
from lanefeed_operator.local import files, yamlio
from lanefeed_operator.local.admission import admit, read_job, stored_job
from lanefeed_operator.local.errors import AlreadyRunning, LocalError, UnknownJob
from lanefeed_operator.local.store import FOLDER, JobStore, find, known_jobs

STREAM = StreamStatus(
    manifest="ab" * 16,
    rows=4211,
    seed=5,
    global_batch_size=28,
    lanes=14,
    window=64,
    shuffle=True,
    boundary="Aligned",
    last_batch="Partial",
    steps_per_epoch=151,
    total_steps=302,
)
YAML = """
apiVersion: lanefeed.dev/v1alpha1
kind: ShardedTrainingJob
metadata: {name: tiny}
spec:
  replicas: 2
  data: {uri: data/, columns: [a, a b]}
  batching: {globalBatchSize: 8}
  template:
    spec:
      containers:
        - {name: trainer, command: [python, train.py], env: [{name: A, value: x}]}
"""


@pytest.fixture
def store(tmp_path: Path) -> JobStore:
    made = JobStore(tmp_path / "state" / "tiny")
    made.folder.mkdir(parents=True)
    return made


def job(tmp_path: Path, text: str = YAML) -> Job:
    (tmp_path / "job.yaml").write_text(text)
    return read_job(tmp_path / "job.yaml")


def test_a_write_that_fails_leaves_the_old_file_and_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a"
    files.write_atomic(file, "old")

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write_atomic(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_status_yaml_reads_like_the_clusters_object_and_comes_back_whole(store: JobStore, tmp_path: Path) -> None:
    wanted, status = admit(store, job(tmp_path), replicas=None)
    status = status.model_copy(update={"state": "Running", "book": {"commits": [{"step": 3}], "world": 2}})
    store.save(wanted, status)
    text = store.status_file.read_text()
    document = yamlio.load(store.status_file)
    assert list(document) == ["apiVersion", "kind", "metadata", "spec", "status"]
    assert document["spec"]["batching"]["globalBatchSize"] == 8
    assert "&" not in text
    assert "!!" not in text
    back = stored_job(store)
    assert back is not None
    assert (back.spec, back.metadata, back.status) == (wanted.spec, wanted.metadata, status)
    assert back.metadata.annotations[FOLDER] == str(tmp_path)


def test_only_one_runner_and_the_lock_dies_with_its_process(store: JobStore) -> None:
    code = (
        "import sys,time; from pathlib import Path; from lanefeed_operator.local.store import JobStore; "
        f"s = JobStore(Path({str(store.folder)!r})); s.lock(); print('locked', flush=True); time.sleep(600)"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(AlreadyRunning, match=f"being run already \\(by process {other.pid}\\)"):
            store.lock()
        assert store.runner() == other.pid
        other.kill()
    store.lock()
    store.unlock()
    assert store.runner() == 0


def test_the_wanted_size_follows_apply_semantics(store: JobStore, tmp_path: Path) -> None:
    first, status = admit(store, job(tmp_path), replicas=None)
    store.save(first, status)
    assert first.spec.replicas == 2
    store.scale(8)
    again, status = admit(store, job(tmp_path), replicas=None)
    assert again.spec.replicas == 8, "an unchanged YAML must not undo `lanefeed scale`"
    assert (again.metadata.uid, again.metadata.generation) == (first.metadata.uid, 2)
    store.save(again, status)
    edited, status = admit(store, job(tmp_path, YAML.replace("replicas: 2", "replicas: 4")), replicas=None)
    assert edited.spec.replicas == 4, "an edited YAML wins"
    store.save(edited, status)
    by_option, _ = admit(store, job(tmp_path, YAML.replace("replicas: 2", "replicas: 4")), replicas=1)
    assert by_option.spec.replicas == 1


def test_a_failed_job_goes_on_in_a_new_plan_and_a_complete_one_stays(store: JobStore, tmp_path: Path) -> None:
    wanted, status = admit(store, job(tmp_path), replicas=None)
    failed = status.model_copy(
        update={"plan_generation": 3, "conditions": [Condition(type="Failed", status="True", reason="TooManyRestarts")]}
    )
    store.save(wanted, failed)
    _, again = admit(store, job(tmp_path), replicas=None)
    assert not again.terminal
    assert again.plan.closed
    store.save(wanted, failed.model_copy(update={"conditions": [Condition(type="Complete", status="True")]}))
    _, done = admit(store, job(tmp_path), replicas=None)
    assert done.terminal


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        (
            "globalBatchSize: 8",
            "globalBatchSize: 16",
            "batching.globalBatchSize was 8 when the job began and is 16 now",
        ),
        ("replicas: 2", "replicas: 2\n  shuffle: {seed: 3}", "shuffle.seed was 0 when the job began and is 3 now"),
        ("replicas: 2", "replicas: 2\n  epochs: 3", "epochs was 1 when the job began and is 3 now"),
    ],
)
def test_what_is_fixed_for_life_is_refused_with_both_values(
    store: JobStore, tmp_path: Path, old: str, new: str, field: str
) -> None:
    wanted, status = admit(store, job(tmp_path), replicas=None)
    stream = STREAM.model_copy(update={"global_batch_size": 8, "seed": 0, "last_batch": "Drop"})
    store.save(wanted, status.model_copy(update={"stream": stream, "plan_generation": 1}))
    admit(store, job(tmp_path), replicas=None)
    with pytest.raises(LocalError, match=f"{field}: it is fixed .*--fresh"):
        admit(store, job(tmp_path, YAML.replace(old, new)), replicas=None)


def test_sizes_that_do_not_fit_are_refused_before_anything_starts(store: JobStore, tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="globalBatchSize 8 is not a multiple of 3 ranks"):
        admit(store, job(tmp_path), replicas=3)
    assert not store.scale_file.exists()
    admitted, _ = admit(store, job(tmp_path), replicas=None)
    assert admitted.spec.replicas == 2, "a refused size must not be what later runs want"


def test_a_refused_run_leaves_the_size_that_was_asked_for_before(store: JobStore, tmp_path: Path) -> None:
    first, status = admit(store, job(tmp_path), replicas=4)
    stream = STREAM.model_copy(update={"global_batch_size": 8, "seed": 0, "last_batch": "Drop"})
    store.save(first, status.model_copy(update={"stream": stream, "plan_generation": 1}))
    with pytest.raises(LocalError, match=r"epochs was 1 when the job began"):
        admit(store, job(tmp_path, YAML.replace("replicas: 2", "replicas: 8\n  epochs: 3")), replicas=None)
    with pytest.raises(LocalError, match=r"epochs was 1 when the job began"):
        admit(store, job(tmp_path, YAML.replace("replicas: 2", "replicas: 2\n  epochs: 3")), replicas=1)
    again, _ = admit(store, job(tmp_path), replicas=None)
    assert again.spec.replicas == 4


def test_a_damaged_status_is_named(store: JobStore, tmp_path: Path) -> None:
    store.status_file.write_text("spec: [")
    with pytest.raises(LocalError, match=r"status\.yaml is damaged .*--fresh"):
        admit(store, job(tmp_path), replicas=None)
    store.scale_file.write_text("replicas: many")
    with pytest.raises(LocalError, match=r"scale\.yaml: replicas is 'many': it must be a whole number from 1"):
        store.wanted_replicas()


def test_an_unknown_job_names_the_known_ones(store: JobStore, tmp_path: Path) -> None:
    root = store.folder.parent
    with pytest.raises(UnknownJob, match="no job was run here yet"):
        find(root, "other")
    store.save(job(tmp_path), Status())
    assert known_jobs(root) == ["tiny"]
    with pytest.raises(UnknownJob, match=r"known here: tiny\)"):
        find(root, "other")


def test_a_job_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"cannot read .*nothing\.yaml: No such file"):
        read_job(tmp_path / "nothing.yaml")
    with pytest.raises(JobError, match="globalBatchsize"):
        job(tmp_path, YAML.replace("globalBatchSize", "globalBatchsize"))
    with pytest.raises(JobError, match="command: is not set"):
        job(tmp_path, YAML.replace("command: [python, train.py], ", ""))


def test_forgetting_keeps_the_lock_file(store: JobStore) -> None:
    store.lock()
    store.scale(3)
    store.plans.mkdir()
    store.forget()
    assert [entry.name for entry in store.folder.iterdir()] == ["runner.lock"]
    store.unlock()
    assert load_job(YAML).metadata.name == "tiny"
