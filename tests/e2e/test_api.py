"""What only a real API server can say, asked in the suite's own cluster: elsewhere these tests skip, or do not run."""

import sys

from e2e.cluster import ROOT, Cluster
from e2e.scenarios import scenario


@scenario("calm")
def test_wrong_manifests_are_refused_in_words_and_examples_are_taken(cluster: Cluster) -> None:
    """unit/crd/on_server.py: forty wrong manifests and forbidden changes, all examples and what is rendered of them."""
    said = cluster.run([sys.executable, "tests/unit/crd/on_server.py"], seconds=900, cwd=ROOT)
    assert said.rstrip().endswith("no fault"), said


@scenario("calm")
def test_client_and_tokens_on_a_real_api_server(cluster: Cluster) -> None:
    """The client's assumptions; whose projected tokens may report, and that all others are refused."""
    files = ["tests/integration/kube/test_client_real.py", "tests/integration/report/test_real_api.py"]
    said = cluster.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files], seconds=900, cwd=ROOT)
    assert " passed" in said, said
    assert " skipped" not in said, said
