"""The operator's environment: defaults, every value, and what a wrong one is answered with."""

from pathlib import Path

import pytest

from lanefeed_operator.runtime import settings as s

NOWHERE = Path("/nonexistent")
LEAST = {"LANEFEED_OPERATOR_SIDECAR_IMAGE": "kube.test/sidecar:1", "LANEFEED_OPERATOR_NAMESPACE": "lanefeed"}


def read(**more: str) -> s.OperatorSettings:
    return s.read(LEAST | {s.PREFIX + key: value for key, value in more.items()}, namespace_file=NOWHERE)


def test_defaults() -> None:
    got = read()
    assert got.render.coordinator == "lanefeed-operator.lanefeed.svc:9443"
    assert got.coordinator_host == "lanefeed-operator.lanefeed.svc"
    assert (got.report_port, got.metrics_port, got.health_port) == (9443, 9405, 8080)
    assert (got.workers, got.leader_election, got.log_json, got.watch_namespaces) == (4, False, False, ())
    assert got.identity
    assert got.render.sidecar_user == 65532


def test_every_value_is_read() -> None:
    got = read(
        COORDINATOR="10.200.0.1:9443",
        WATCH_NAMESPACES=" team-a, team-b ,team-a,",
        LEADER_ELECTION="true",
        LOG_FORMAT="json",
        LOG_LEVEL="debug",
        WORKERS="9",
        RESYNC_SECONDS="30",
        SIDECAR_USER="cluster",
        SHARED_GROUP="1234",
        SIDECAR_PULL_POLICY="Never",
        SIDECAR_CPU="2",
        POD="operator-0",
        REPORT_PORT="1",
        METRICS_PORT="0",
        HEALTH_PORT="0",
    )
    assert got.watch_namespaces == ("team-a", "team-b")
    assert got.leader_election
    assert (got.log_json, got.log_level) == (True, "DEBUG")
    assert (got.workers, got.resync_seconds, got.identity) == (9, 30.0, "operator-0")
    assert (got.render.sidecar_user, got.render.shared_group) == (None, 1234)
    assert (got.render.image_pull_policy, got.render.sidecar_cpu) == ("Never", "2")
    assert got.coordinator_host == "10.200.0.1"


def test_an_ipv6_coordinator_is_read() -> None:
    assert read(COORDINATOR="[fd00::1]:9443").coordinator_host == "fd00::1"


def test_own_namespace_comes_from_the_service_account(tmp_path: Path) -> None:
    file = tmp_path / "namespace"
    file.write_text("from-file\n")
    environ = {"LANEFEED_OPERATOR_SIDECAR_IMAGE": "x"}
    assert s.read(environ, namespace_file=file).namespace == "from-file"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("WORKERS", "0", "LANEFEED_OPERATOR_WORKERS is '0': give a whole number from 1 to 64"),
        ("WORKERS", "two", "a whole number"),
        ("HEALTH_PORT", "70000", "give a whole number from 0 to 65535"),
        ("LEADER_ELECTION", "yes", "give one of true, false"),
        ("LOG_FORMAT", "xml", "give one of text, json"),
        ("SIDECAR_PULL_POLICY", "Sometimes", "give one of Always, IfNotPresent, Never"),
        ("COORDINATOR", "operator", "give host:port as pods reach the report service"),
        ("COORDINATOR", "fd00::1:9443", "give host:port"),
        ("WATCH_NAMESPACES", "Team_A", "give names of namespaces"),
        ("SIDECAR_USER", "0", "give a number above 0, or 'cluster'"),
        ("RESYNC_SECONDS", "1", "give a number from 10 to 3600"),
        ("METRICS_PORT", "8080", "give each a port of its own"),
        ("SIDECAR_IMAGES", "x", "LANEFEED_OPERATOR_SIDECAR_IMAGES is not known"),
    ],
)
def test_a_wrong_value_is_named_with_its_remedy(name: str, value: str, text: str) -> None:
    with pytest.raises(s.SettingsError) as error:
        read(**{name: value})
    assert text in str(error.value)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(s.SettingsError) as error:
        s.read({"LANEFEED_OPERATOR_WORKERS": "x"}, namespace_file=NOWHERE)
    for text in ("SIDECAR_IMAGE is not set", "NAMESPACE is not set", "WORKERS is 'x'"):
        assert text in str(error.value)


def test_the_table_names_every_variable_that_is_read() -> None:
    """The table is what docs and `unknown` go by."""
    asked: set[str] = set()

    class Spy(dict[str, str]):
        def get(self, key: str, default: str = "") -> str:  # type: ignore[override]
            asked.add(key.removeprefix(s.PREFIX))
            return super().get(key, default)

    s.read(Spy(LEAST), namespace_file=NOWHERE)
    assert asked == set(s.NAMES)


def test_service_links_of_kubernetes_are_passed_over() -> None:
    got = read(
        SERVICE_HOST="10.96.0.7",
        PORT="tcp://10.96.0.7:9443",
        PORT_9443_TCP_ADDR="10.96.0.7",
        REPORT_PORT="tcp://10.96.0.7:9443",
        REPORT_SERVICE_PORT_REPORT="9443",
    )
    assert got.report_port == 9443
