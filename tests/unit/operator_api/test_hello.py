"""examples/kubernetes: a job whose checkpoints go with its pods is not scaled, and its trainer says what it misses."""

import runpy
from pathlib import Path

import pytest

from lanefeed_operator.api.load import load_job
from lanefeed_operator.errors import JobError

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "kubernetes"


@pytest.mark.parametrize("replicas", [1, 4])
def test_the_smallest_job_cannot_be_scaled(replicas: int) -> None:
    text = (EXAMPLES / "hello.yaml").read_text()
    assert load_job(text).spec.replicas == 2
    assert "emptyDir: {}" in text
    with pytest.raises(JobError, match=r"elastic\.m\w+Replicas 2"):
        load_job(text.replace("replicas: 2\n", f"replicas: {replicas}\n", 1))


def test_a_checkpoint_that_is_not_in_this_pod_is_missed_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKPOINTS", str(tmp_path))
    written = runpy.run_path(str(EXAMPLES / "train.py"))["written"]
    with pytest.raises(SystemExit, match=r"step-000050-gen1.* is not in this pod: mount a volume that all pods share"):
        written("step-000050-gen1")
    (tmp_path / "step-000050-gen1").mkdir()
    (tmp_path / "step-000050-gen1" / "model.pt").touch()
    assert written("step-000050-gen1") == tmp_path / "step-000050-gen1" / "model.pt"
