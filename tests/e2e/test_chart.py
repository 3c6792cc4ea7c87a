"""The chart's release comes and goes while a job trains: pods never notice, and the proof at the end is whole."""

import sys
import time

from e2e.cluster import RELEASE, ROOT, SYSTEM, Cluster, wait
from e2e.job import Job
from e2e.lifetime import job
from e2e.scenarios import scenario

MIDDLE = 40


def running(made: Job) -> dict[str, str]:
    """Let it train to the middle of its first epoch; UIDs of its pods by name."""
    made.spec["template"] = {"spec": made.pod(nodes=("node1", "node2"))}
    made.apply()
    made.reaches(MIDDLE, seconds=120)
    return uids(made)


def uids(made: Job) -> dict[str, str]:
    """UIDs of its living pods by name."""
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in made.living()}


def check_end(made: Job, pods: dict[str, str]) -> None:
    """The same pods trained from the beginning to the end."""
    status = made.completes(180)
    assert {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in made.pods()} == pods
    assert status["planGeneration"] == 1
    assert not status["restarts"]["failures"] + status["restarts"]["disruptions"]


def authority(cluster: Cluster) -> dict[str, str]:
    """What the operator's Secret holds."""
    secret = cluster.get(f"/api/v1/namespaces/{SYSTEM}/secrets/{RELEASE}-tls")
    found = dict(secret["data"])
    assert found
    return found


@scenario("calm")
def test_the_api_server_takes_the_chart(cluster: Cluster) -> None:
    """tests/chart/test_on_cluster.py on this cluster: server-side dry runs, and how Prometheus finds sidecars."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/chart/test_on_cluster.py"]
    said = cluster.run(command, seconds=900, cwd=ROOT)
    assert " passed" in said, said
    assert "no cluster" not in said, said


@scenario("control")
def test_helm_test_passes(cluster: Cluster) -> None:
    """`helm test`, as the notes of the release say."""
    said = cluster.run(["helm", "test", RELEASE, "--namespace", SYSTEM, "--timeout=170s"])
    assert "Phase:          Succeeded" in said, said


@scenario("control")
def test_the_operator_cannot_read_secrets_or_run_pods(cluster: Cluster) -> None:
    """Asked of the API server itself, with the account that the operator runs as."""
    own = f"secrets/{RELEASE}-tls"
    for namespace, verb, what, may in (
        (SYSTEM, "get", own, "yes"),
        (SYSTEM, "get", "secrets", "no"),
        (SYSTEM, "list", "secrets", "no"),
        ("default", "get", own, "no"),
        ("default", "create", "pods", "no"),
        ("default", "create", "pods/exec", "no"),
        ("default", "list", "configmaps", "no"),
        ("default", "create", "jobs.batch", "yes"),
        ("default", "update", "shardedtrainingjobs.lanefeed.dev", "no"),
        ("default", "impersonate", "users", "no"),
    ):
        account = f"--as=system:serviceaccount:{SYSTEM}:{RELEASE}"
        said = cluster.kubectl("auth", "can-i", verb, what, "-n", namespace, account, check=False)
        assert said.split()[0] == may, f"{verb} {what} in {namespace}: {said}"


@scenario("control")
def test_upgraded_in_mid_run(cluster: Cluster) -> None:
    """`helm upgrade` replaces the operator; pods train on and the job ends as ever."""
    with job(cluster, "upgraded", epochs=2) as made:
        pods = running(made)
        old = cluster.operator_pod()["metadata"]["uid"]
        cluster.install(f"--set-string=podAnnotations.upgraded={time.time():.0f}", command="upgrade")
        assert cluster.operator_pod()["metadata"]["uid"] != old
        made.reaches(MIDDLE + 40)
        assert uids(made) == pods
        check_end(made, pods)


@scenario("control")
def test_uninstalled_and_installed_again_in_mid_run(cluster: Cluster) -> None:
    """`helm uninstall` takes the operator and nothing of the jobs; the next install goes on with them."""
    with job(cluster, "uninstalled", epochs=2) as made:
        pods = running(made)
        before = authority(cluster)
        cluster.run(["helm", "uninstall", RELEASE, "--namespace", SYSTEM, "--wait"])
        try:
            assert made.object()["spec"]["replicas"] == 2, "the definition and its objects stay"
            made.seen(MIDDLE + 40)
            assert uids(made) == pods, "nobody but the operator ends pods"
            assert authority(cluster) == before, "pods trust the authority that comes back"
        finally:
            cluster.install()
        assert made.step() >= MIDDLE
        made.reaches(MIDDLE + 40, seconds=90)
        check_end(made, pods)


@scenario("control")
def test_two_replicas_in_namespaces_of_their_own(cluster: Cluster) -> None:
    """Leader election, and rights in one namespace alone: the leader's pod goes, the other one takes over."""
    with job(cluster, "named", epochs=2) as made, job(cluster, "foreign") as other:
        more = (f"--set=watchNamespaces={{{made.namespace}}}", "--set=leaderElection.enabled=true")
        cluster.install(*more, command="upgrade")
        try:
            other.apply()
            pods = running(made)
            first = leader(cluster)
            cluster.kubectl("-n", SYSTEM, "delete", "pod", first, "--force", "--grace-period=0")
            wait(lambda: leader(cluster) not in ("", first), 60, "another leader")
            made.reaches(MIDDLE + 40, seconds=90)
            assert uids(made) == pods
            check_end(made, pods)
            assert other.status() == {}, "its namespace is not watched"
            log = cluster.kubectl("-n", SYSTEM, "logs", "-l", "app.kubernetes.io/component=operator", "--tail=-1")
            assert "forbidden" not in log.lower(), log
        finally:
            cluster.install(command="upgrade")


def leader(cluster: Cluster) -> str:
    """Who holds the Lease: a pod's name."""
    lease = cluster.get(f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{RELEASE}-leader")
    return str(lease["spec"].get("holderIdentity") or "")
