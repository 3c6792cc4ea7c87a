"""What a user sees of a wrong job manifest: every fault at once, with path, line and the right word."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanefeed_operator.api.load import dump_job, load_job
from lanefeed_operator.api.quantity import format_bytes, parse_bytes
from lanefeed_operator.api.rules import reserved
from lanefeed_operator.errors import JobError

GOOD = """\
apiVersion: lanefeed.dev/v1alpha1
kind: ShardedTrainingJob
metadata:
  name: demo
spec:
  replicas: 2
  data:
    uri: data/
  batching:
    globalBatchSize: 32
  template:
    spec:
      priorityClassName: high
      containers:
        - name: trainer
          image: x
          resources: {limits: {cpu: 2}}
"""


def faults(text: str) -> dict[str, tuple[int, str]]:
    with pytest.raises(JobError) as caught:
        load_job(text, "job.yaml")
    assert "job.yaml" in str(caught.value)
    return {p.path: (p.line, p.message) for p in caught.value.problems}


def test_a_good_job_keeps_what_is_kubernetes_own() -> None:
    job = load_job(GOOD)
    assert job.spec.template.spec.model_extra == {"priorityClassName": "high"}
    assert job.spec.template.trainer.model_extra == {"resources": {"limits": {"cpu": 2}}}
    assert load_job(dump_job(job)) == job


def test_the_examples_load() -> None:
    for path in sorted(Path("examples").glob("*/job.yaml")):
        load_job(path.read_text(), path)


def test_a_misspelt_field_is_named_with_its_path_and_the_right_one() -> None:
    found = faults(GOOD.replace("globalBatchSize: 32", "globalBatchSize: 32\n    globalBatchsize: 3"))
    assert found == {"spec.batching.globalBatchsize": (11, "is not a field: did you mean globalBatchSize?")}


def test_a_strange_field_lists_those_that_there_are() -> None:
    found = faults(GOOD.replace("    uri: data/", "    uri: data/\n    zzz: 1"))
    assert "the fields here are columns, digest, format, images, onCorrupt, uri" in found["spec.data.zzz"][1]


def test_all_errors_come_at_once_rules_too() -> None:
    text = GOOD.replace("name: demo", "name: Demo").replace("replicas: 2", "replicas: 2\n  epochs: two\n  shufle: {}")
    text = text.replace("globalBatchSize: 32", "globalBatchSize: 1\n    lastBatch: partial")
    found = faults(text)
    assert found["spec.shufle"] == (8, "is not a field: did you mean shuffle?")
    assert found["spec.epochs"][0] == 7
    assert "did you mean Partial?" in found["spec.batching.lastBatch"][1]
    assert "'Demo' is not a DNS name" in found["metadata.name"][1]
    assert "smaller than the 2 ranks" in found["spec.batching.globalBatchSize"][1]


def test_what_is_missing() -> None:
    found = faults(GOOD.replace("    uri: data/\n", "    format: Parquet\n"))
    assert found == {"spec.data.uri": (7, "is missing: it is required")}


def test_an_error_of_yaml_names_its_line() -> None:
    with pytest.raises(JobError, match="line 6: this is not YAML"):
        load_job(GOOD.replace("  replicas: 2", "  replicas: [2"), "job.yaml") if False else load_job(
            GOOD.replace("  replicas: 2", "\treplicas: 2"), "job.yaml"
        )


@pytest.mark.parametrize("text", ["", "- 1", "hello", "a: !!python/object:os.system x"])
def test_what_is_no_job_at_all(text: str) -> None:
    with pytest.raises(JobError):
        load_job(text)


def test_a_key_that_is_written_twice() -> None:
    found = faults(GOOD + "  replicas: 3\n".replace("  ", "  ", 1))
    assert "is written twice" in found["spec.replicas"][1]


PACKED = "columns: [x]\n  batching:\n    layout: Packed\n    packed: {sequenceLength: 8}"
RULES = [
    ("replicas: 2", "replicas: 2\n  epochBoundary: Continuous", "spec.maxSteps", "no last epoch"),
    ("globalBatchSize: 32", "globalBatchSize: 33", "spec.batching.globalBatchSize", "set batching.uneven to Allow"),
    ("globalBatchSize: 32", "globalBatchSize: 32\n    lanes: 40", "spec.batching.lanes", "above globalBatchSize 32"),
    ("globalBatchSize: 32", "globalBatchSize: 32\n    layout: Packed", "spec.batching.packed", "sequenceLength"),
    ("globalBatchSize: 32", "globalBatchSize: 32\n    packed: {sequenceLength: 8}", "spec.batching.packed", "is Rows"),
    (
        "uri: data/\n  batching:",
        f"uri: data/\n    {PACKED}",
        "spec.data.columns",
        "x and",
    ),
    ("replicas: 2", "replicas: 2\n  elastic: {minReplicas: 3}", "spec.replicas", "below elastic.minReplicas 3"),
    ("replicas: 2", "replicas: 2\n  elastic: {maxReplicas: 1}", "spec.replicas", "above elastic.maxReplicas 1"),
    ("name: trainer", "name: train", "spec.template.spec.containers", "needs one container named 'trainer'"),
    ("image: x", "image: x\n          env: [{name: PET_NNODES, value: '1'}]", None, "the control plane sets"),
    ("image: x", "image: x\n          env: [{name: LANEFEED_JOB, value: '1'}]", None, "the control plane sets"),
    ("priorityClassName: high", "restartPolicy: Always", "spec.template.spec.restartPolicy", "Never"),
    ("uri: data/", "uri: []", "spec.data.uri", "is empty"),
    ("name: demo", f"name: {'a' * 46}", "metadata.name", "46 characters"),
    ("kind: ShardedTrainingJob", "kind: Job", "kind", "must be ShardedTrainingJob"),
    ("v1alpha1", "v9", "apiVersion", "this Lanefeed knows"),
]


@pytest.mark.parametrize(("old", "new", "path", "message"), RULES)
def test_rules_name_field_value_and_remedy(old: str, new: str, path: str | None, message: str) -> None:
    found = faults(GOOD.replace(old, new))
    path = path or "spec.template.spec.containers[0].env[0].name"
    assert message in found[path][1]
    assert found[path][0] > 0


def test_users_may_set_what_is_theirs() -> None:
    assert not reserved("LANEFEED_SHM_ROOT")
    assert not reserved("LANEFEED_READ_PATIENCE_SECONDS")
    assert not reserved("MY_RANK")
    assert reserved("LANEFEED_PLAN_GENERATION")
    assert reserved("WORLD_SIZE")


@given(st.integers(0, 1 << 62))
def test_quantities_are_exact(value: int) -> None:
    assert parse_bytes(format_bytes(value)) == value


@pytest.mark.parametrize(("text", "value"), [("512Mi", 512 << 20), ("1.5Gi", 3 << 29), ("2k", 2000), (7, 7), ("0", 0)])
def test_quantities_as_kubernetes_writes_them(text: str | int, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["5 Gigs", "-1", "1mb", "", True, None, [1]])
def test_other_quantities_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="such as 512Mi"):
        parse_bytes(text)  # type: ignore[arg-type]
