"""The cluster of a session and its scenarios. Collected only with LANEFEED_E2E=1, which `make e2e` sets.

LANEFEED_E2E_STATE: where the cluster lives (/tmp/lanefeed-kube). LANEFEED_E2E_KEEP=1 is for work on these tests: a
cluster that is up there is used as it is, images and release included, and left running.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import KUBE, NODES, Cluster
from e2e.lifetime import LOGS
from e2e.scenarios import Scenarios

if os.environ.get("LANEFEED_E2E") != "1":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Instead of the one for all other tests: scenarios run commands while other tests end."""


@pytest.fixture(scope="session")
def cluster(shm_root: Path) -> Iterator[Cluster]:
    """A cluster of three nodes with Kueue and the operator, from this tree's images and chart."""
    if not (KUBE / "up").exists():
        pytest.exit(
            f"{KUBE} is not there, which starts a Kubernetes: set LANEFEED_KUBE, or LANEFEED_SKIP_E2E=1 for CI", 1
        )
    if os.geteuid() != 0:
        pytest.exit("end-to-end tests make network namespaces and start kubelets: run them as root", 1)
    shutil.rmtree(LOGS, ignore_errors=True)
    found = Cluster(Path(os.environ.get("LANEFEED_E2E_STATE", "/tmp/lanefeed-kube")))
    if os.environ.get("LANEFEED_E2E_KEEP") == "1":
        yield found
        shutil.rmtree(found.shared, ignore_errors=True)
        return
    try:
        found.build()
        found.up(NODES)
        found.load()
        found.kueue()
        found.install()
        yield found
    finally:
        found.down()


@pytest.fixture(scope="session")
def results(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Scenarios]:
    """All scenarios that the selected tests ask for, under way."""
    wanted = [item.get_closest_marker("scenario") for item in request.session.items]
    names = [mark.args[0] for mark in wanted if mark is not None]
    running = Scenarios(cluster, names)
    yield running
    running.join(seconds=600)
