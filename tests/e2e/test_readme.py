"""The README's four lines for Kubernetes, run as they are written."""

import re

from e2e.cluster import RELEASE, ROOT, SYSTEM, Cluster
from e2e.scenarios import scenario

MARK = "<!-- run by tests/e2e/test_readme.py as written -->"


@scenario("control")
def test_the_readme_is_true(cluster: Cluster) -> None:
    """On a cluster without the release; it gets the suite's own again afterwards."""
    found = re.search(re.escape(MARK) + r"\n```sh\n(.+?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found, "the README has lost its lines for Kubernetes"
    lines = found[1].strip().splitlines()
    assert len(lines) == 4
    cluster.run(["helm", "uninstall", RELEASE, "--namespace", SYSTEM, "--wait"])
    tools = f"{ROOT / '.venv' / 'bin'}:{cluster.env['PATH']}"
    environment = [f"PATH={tools}", "REGISTRY=kube.test", "TAG=dev"]
    try:
        shell = ["env", *environment, "bash", "-euo", "pipefail", "-c", "\n".join(lines)]
        said = cluster.run(shell, seconds=900, cwd=ROOT)
        assert "3 epochs proven: every sample used exactly once" in said, said
    finally:
        for kind in ("stj/hello", "configmap/hello-data"):
            cluster.kubectl("delete", kind, "--ignore-not-found", "--wait=true")
        cluster.install(command="upgrade")
