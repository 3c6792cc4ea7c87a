"""Which place a command means: this machine or the cluster."""

import sys
from pathlib import Path

import pytest

from lanefeed_operator.cli import choose
from lanefeed_operator.cli.cluster import ClusterPlace, ClusterUnavailable
from lanefeed_operator.cli.places import LocalPlace
from lanefeed_operator.local.errors import LocalError, UnknownJob
from support.kube_store import KubeStore


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder in which job `here` was run."""
    folder = tmp_path / ".lanefeed" / "here"
    folder.mkdir(parents=True)
    (folder / "status.yaml").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(choose, "connect", lambda context: (KubeStore(), "default", f"context {context}"))
    return tmp_path


def test_a_job_that_was_run_here_comes_before_the_cluster(state: Path) -> None:
    assert isinstance(choose.choose("here", None, None, None), LocalPlace)
    assert isinstance(choose.choose("elsewhere", None, None, None), ClusterPlace)


@pytest.mark.parametrize(("namespace", "context"), [("a", None), (None, "b")])
def test_a_namespace_or_a_context_means_the_cluster(state: Path, namespace: str | None, context: str | None) -> None:
    assert isinstance(choose.choose("here", None, namespace, context), ClusterPlace)


def test_kubectl_lanefeed_means_the_cluster(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/kubectl-lanefeed", "status", "here"])
    assert isinstance(choose.choose("here", None, None, None), ClusterPlace)


def test_a_state_folder_or_a_file_never_means_the_cluster(state: Path) -> None:
    with pytest.raises(UnknownJob, match="known here: here"):
        choose.choose("elsewhere", Path(".lanefeed"), None, None)
    with pytest.raises(LocalError, match=r"cannot read job.yaml"):
        choose.choose("job.yaml", None, None, None)


def test_with_no_cluster_both_are_named(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_: str | None) -> None:
        raise ClusterUnavailable("no kubeconfig")

    monkeypatch.setattr(choose, "connect", nobody)
    with pytest.raises(UnknownJob, match=r"there is no job 'elsewhere' .*nor can a cluster be asked: no kubeconfig"):
        choose.choose("elsewhere", None, None, None)
