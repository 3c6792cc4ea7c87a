"""Which cluster a person's command line asks: the one that kubectl would."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.config import incluster_config

from lanefeed_operator.kube import user
from lanefeed_operator.kube.api import ApiError
from lanefeed_operator.kube.client import configuration
from lanefeed_operator.kube.user import connect_user


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod with a service account, and no kubeconfig in its home."""
    for name in ("token", "ca.crt"):
        (tmp_path / name).write_text("x")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)


def write(path: Path, *names: str, current: str = "") -> Path:
    """A kubeconfig with these contexts, each with a server and a namespace of its name."""
    document: dict[str, Any] = {
        "clusters": [{"name": n, "cluster": {"server": f"http://{n}.test"}} for n in names],
        "users": [],
        "contexts": [{"name": n, "context": {"cluster": n, "user": "", "namespace": f"ns-{n}"}} for n in names],
    } | ({"current-context": current} if current else {})
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(document))
    return path


def asked(context: str | None = None) -> tuple[str, str, str]:
    client, namespace, name = connect_user(context)
    return client._host, namespace, name


def test_the_kubeconfig_counts_also_in_a_pod(pod: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "mine", "a", "b", current="a")
    monkeypatch.setenv("KUBECONFIG", str(file))
    assert asked() == ("http://a.test", "ns-a", "context a")
    assert asked("b") == ("http://b.test", "ns-b", "context b")
    monkeypatch.delenv("KUBECONFIG")
    write(tmp_path / ".kube" / "config", "home", current="home")
    assert asked() == ("http://home.test", "ns-home", "context home")
    assert str(configuration(None, None, 4).host).startswith("https://10.0.0.1"), "the operator's order is another"


def test_two_files_are_one_and_one_that_is_not_there_is_none(
    pod: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / "no", write(tmp_path / "one", "a", current="a"), write(tmp_path / "two", "b", current="a")]
    monkeypatch.setenv("KUBECONFIG", ":".join(map(str, files)))
    assert asked() == ("http://a.test", "ns-a", "context a")
    assert asked("b") == ("http://b.test", "ns-b", "context b")


def test_a_pod_without_a_kubeconfig_asks_its_own_cluster(
    pod: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked() == ("https://10.0.0.1:443", "default", "this cluster")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no"))
    assert asked() == ("https://10.0.0.1:443", "default", "this cluster")
    with pytest.raises(ApiError, match=r"no kubeconfig at .*/no, so no context a; set KUBECONFIG"):
        connect_user("a")


def test_a_named_context_needs_no_current_one(pod: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user, "KUBECONFIG", str(write(tmp_path / "mine", "a")))
    assert asked("a") == ("http://a.test", "ns-a", "context a")


@pytest.mark.parametrize("text", ["{", "", "- a", "contexts: 7"])
def test_a_kubeconfig_that_cannot_be_read_is_said_and_no_other_cluster_asked(
    pod: None, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine"
    file.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(ApiError, match=r"the kubeconfig .*/mine cannot be used: .*; mend it, or set KUBECONFIG"):
        connect_user()


def test_a_context_that_is_not_there_is_said(pod: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(write(tmp_path / "mine", "a", current="a")))
    with pytest.raises(ApiError, match=r"cannot be used: .*other"):
        connect_user("other")


def test_with_no_cluster_at_all_both_ways_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no"))
    with pytest.raises(ApiError, match="set KUBECONFIG, or run in a pod with a service account"):
        connect_user()
