"""A cluster, where one of ../shared/kube is up in $KUBE_STATE. Never that of $KUBECONFIG: it may be somebody's own."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.helm import helm


class Cluster:
    """kubectl and helm against it."""

    def __init__(self, kubeconfig: Path, kubectl: str) -> None:
        self.kubeconfig, self._kubectl = kubeconfig, kubectl
        self._environment = os.environ | {"KUBECONFIG": str(kubeconfig)}

    def run(
        self, program: str, *arguments: str, text: str = "", timeout: float = 200
    ) -> subprocess.CompletedProcess[str]:
        """A command with its output."""
        return subprocess.run(
            [program, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env=self._environment,
        )

    def kubectl(self, *arguments: str, text: str = "", timeout: float = 200) -> str:
        """Its output. Fails the test with its words."""
        done = self.run(self._kubectl, *arguments, text=text, timeout=timeout)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def try_kubectl(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """As `kubectl`, failures too."""
        return self.run(self._kubectl, *arguments, text=text)

    def get(self, *arguments: str) -> Any:
        """Objects as they are."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def helm(self, *arguments: str, timeout: float = 200) -> str:
        """Its output. Fails the test with its words."""
        done = self.run(helm(), *arguments, timeout=timeout)
        assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def wait(self, what: str, ask: Callable[[], Any], seconds: float = 150) -> Any:
        """Until `ask` answers something true; its answer."""
        deadline = time.monotonic() + seconds
        while True:
            found = ask()
            if found:
                return found
            assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
            time.sleep(0.3)

    def has_image(self, name: str) -> bool:
        """Whether every node has it."""
        nodes = self.get("nodes")["items"]
        return all(any(name in (i.get("names") or ()) for i in n["status"].get("images", ())) for n in nodes)


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """Skips where none is up."""
    state = Path(os.environ.get("KUBE_STATE", "/tmp/kube"))
    kubeconfig = state / "admin.conf"
    kubectl = shutil.which("kubectl") or str(state / "bin/kubectl")
    if not kubeconfig.exists() or not Path(kubectl).exists():
        pytest.skip(f"no cluster: no {kubeconfig}, or no kubectl; ../shared/kube/up starts one")
    found = Cluster(kubeconfig, kubectl)
    done = found.try_kubectl("get", "--raw", "/readyz", "--request-timeout=20s")
    if done.returncode != 0:
        pytest.skip(f"no cluster: the one of {kubeconfig} does not answer: {done.stderr.strip()[-200:]}")
    return found


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """One of the test's own, under the pod security standard `restricted`; gone afterwards."""
    name = f"chart-{abs(hash(request.node.name)) % 10**6:06}"
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    try:
        yield name
    finally:
        cluster.kubectl("delete", "namespace", name, "--wait=false")
