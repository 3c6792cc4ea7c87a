"""What the chart renders: over a matrix of values, with typing mistakes refused, and rights that are written down."""

import itertools
import re
from typing import Any

import pytest
import yaml

from lanefeed_operator.render.constants import MANAGED_BY, METRICS_PORT_NAME, ROLE_LABEL
from lanefeed_operator.runtime.settings import NAMES, PREFIX
from support.helm import CHART, KUBE_VERSION, NAMESPACE, helm, one, run, template, try_template
from unit.render.restricted import breaks

#: Each axis with its values; the matrix is all pairs of them.
AXES: dict[str, list[dict[str, Any]]] = {
    "crds": [{}, {"crds": {"install": False}}, {"crds": {"keep": False}}],
    "scope": [{}, {"watchNamespaces": ["team-a", "team-b"]}],
    "leader": [{}, {"leaderElection": {"enabled": True}}],
    "rbac": [{}, {"rbac": {"create": False, "aggregate": False}}, {"rbac": {"gangs": True}}],
    "account": [{}, {"serviceAccount": {"create": False, "name": "mine"}}],
    "image": [{}, {"image": {"registry": "registry.test/x/", "digest": "sha256:" + "0" * 64}}],
    "network": [
        {},
        {"networkPolicy": {"enabled": False}},
        {"networkPolicy": {"metricsFrom": [{"podSelector": {}}], "reportFrom": [{"podSelector": {}}]}},
    ],
    "metrics": [
        {},
        {
            "metrics": {
                "annotations": False,
                "serviceMonitor": {"enabled": True, "labels": {"release": "p"}},
                "podMonitor": {"enabled": True, "labels": {"release": "p"}},
                "rules": {"enabled": True, "labels": {"release": "p"}},
                "dashboard": {"enabled": True, "namespace": "grafana", "annotations": {"grafana_folder": "ML"}},
            }
        },
    ],
    "pod": [
        {},
        {
            "imagePullSecrets": [{"name": "pull"}],
            "podLabels": {"a": "b"},
            "podAnnotations": {"c": "d"},
            "priorityClassName": "system-cluster-critical",
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
            "tests": {"enabled": False},
        },
    ],
}


def matrix() -> list[dict[str, Any]]:
    """As few values as show every pair of values of two axes at least once (greedy, always the same)."""
    axes = list(AXES)
    sizes = [range(len(AXES[axis])) for axis in axes]
    everyone = list(itertools.product(*sizes))
    pairs = {(i, a, j, b) for i, j in itertools.combinations(range(len(axes)), 2) for a in sizes[i] for b in sizes[j]}
    found = []
    while pairs:
        best = max(everyone, key=lambda pick: len(pairs & _pairs(pick)))
        pairs -= _pairs(best)
        found.append({k: v for axis, at in zip(axes, best, strict=True) for k, v in AXES[axis][at].items()})
    return [{}, *found]


def _pairs(pick: tuple[int, ...]) -> set[tuple[int, int, int, int]]:
    return {(i, pick[i], j, pick[j]) for i, j in itertools.combinations(range(len(pick)), 2)}


MATRIX = matrix()


def everything() -> dict[str, Any]:
    """All switches on."""
    return {k: v for axis in ("leader", "metrics", "pod") for k, v in AXES[axis][1].items()} | {
        "rbac": {"gangs": True},
        "tests": {"enabled": True},
    }


def test_helm_lint_finds_nothing() -> None:
    done = run(helm(), "lint", "--strict", "--kube-version", KUBE_VERSION, str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout + done.stderr


@pytest.mark.parametrize("values", MATRIX, ids=range(len(MATRIX)))
def test_every_pair_of_values_renders_sound_objects(values: dict[str, Any]) -> None:
    objects = template(values=values)
    names = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
    assert len(set(names)) == len(names), "two objects of one name"
    for kind, namespace, name in names:
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", name), name
        if kind not in ("CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"):
            assert namespace, f"{kind} {name} lies wherever kubectl stands"
    text = yaml.safe_dump_all(objects)
    assert "<no value>" not in text
    for o in objects:
        if o["kind"] in ("Deployment", "Pod"):
            pod = o["spec"]["template"]["spec"] if o["kind"] == "Deployment" else o["spec"]
            assert not breaks(pod), "the pod security standard `restricted`"
        if o["kind"] in ("Role", "ClusterRole"):
            _is_modest(o)


def _is_modest(role: dict[str, Any]) -> None:
    """No star, no secret but one of its own by name, and no user who writes a job's status."""
    for rule in role["rules"]:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        if "secrets" in rule["resources"]:
            assert rule["resourceNames"] == ["lf-lanefeed-tls"]
            assert role["kind"] == "Role"
            assert role["metadata"]["namespace"] == NAMESPACE
    if "aggregate-to" in yaml.safe_dump(role["metadata"]):
        writes = {v for (_, r), verbs in rights(role).items() if r.endswith("/status") for v in verbs}
        assert writes <= {"get", "list", "watch"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"watchNamespace": ["a"]}, "watchNamespace"),
        ({"crds": {"kept": True}}, "kept"),
        ({"metrics": {"podMonitor": {"enable": True}}}, "enable"),
        ({"metrics": {"rules": {"runbookBase": "wiki"}}}, "runbookBase"),
        ({"metrics": {"podMonitor": {"interval": "15"}}}, "interval"),
        ({"workers": 0}, "workers"),
        ({"report": {"coordinator": "host-without-port"}}, "coordinator"),
        ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"image": {"digest": "abc"}}, "digest"),
        ({"sidecar": {"user": 0}}, "user"),
        ({"leaderElection": True}, "leaderElection"),
        ({"watchNamespaces": ["Team_A"]}, "watchNamespaces"),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name"),
    ],
)
def test_a_typing_mistake_is_refused_by_name(values: dict[str, Any], words: str) -> None:
    done = try_template(values=values)
    assert done.returncode != 0
    assert words in done.stderr, done.stderr


def test_the_schema_knows_every_value_and_no_other() -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    open_ended = {"podSecurityContext", "securityContext", "resources", "labels", "annotations", "affinity"}

    def compare(node: dict[str, Any], found: dict[str, Any], path: str) -> None:
        assert node["additionalProperties"] is False, path
        assert set(node["properties"]) - {"global"} == set(found), path
        for name, child in found.items():
            if isinstance(child, dict) and name not in open_ended and "properties" in node["properties"][name]:
                compare(node["properties"][name], child, f"{path}.{name}")

    schema["properties"]["resources"]["properties"].pop("claims")
    compare(schema, values, "values")


@pytest.mark.parametrize(
    ("version", "taken"),
    [
        ("1.32.9", False),
        ("1.33.5", False),
        ("1.33.6", True),
        ("1.33.9-eks-1a2b3c", True),
        ("1.34.0", False),
        ("1.34.1", False),
        ("1.34.2", True),
        ("1.34.4-gke.100", True),
        ("1.35.0", True),
    ],
)
def test_kubernetes_that_leaves_pods_with_sidecars_stuck_is_refused(version: str, taken: bool) -> None:
    done = try_template(version=version)
    assert (done.returncode == 0) is taken, done.stderr
    if not taken:
        assert "kubeVersion" in done.stderr


# ---- rights ----------------------------------------------------------------------------------------------------

#: All that the operator may do in a namespace whose jobs it runs. docs/security.md gives the reason of each.
IN_NAMESPACES = {
    ("lanefeed.dev", "shardedtrainingjobs"): {"get", "list", "watch", "delete"},
    ("lanefeed.dev", "shardedtrainingjobs/status"): {"update"},
    ("batch", "jobs"): {"get", "list", "watch", "create", "delete"},
    ("", "pods"): {"get", "list", "watch", "delete"},
    ("", "pods/status"): {"patch"},
    ("", "configmaps"): {"get", "create", "patch", "delete"},
    ("", "services"): {"get", "create"},
    ("events.k8s.io", "events"): {"create"},
}
WITHOUT_NAMESPACE = {
    ("", "nodes"): {"list", "watch"},
    ("authentication.k8s.io", "tokenreviews"): {"create"},
}
GANGS = {
    ("scheduling.volcano.sh", "podgroups"): {"get", "create", "delete"},
    ("scheduling.x-k8s.io", "podgroups"): {"get", "create", "delete"},
}
OWN = {("", "secrets/lf-lanefeed-tls"): {"get", "patch"}}
LEASE = {
    ("coordination.k8s.io", "leases"): {"create"},
    ("coordination.k8s.io", "leases/lf-lanefeed-leader"): {"get", "patch"},
}


def rights(role: dict[str, Any]) -> dict[tuple[str, str], set[str]]:
    """(group, resource or resource/name) -> verbs."""
    found: dict[tuple[str, str], set[str]] = {}
    for rule in role["rules"]:
        for group, resource in itertools.product(rule["apiGroups"], rule["resources"]):
            for name in rule.get("resourceNames", [""]):
                key = (group, f"{resource}/{name}" if name else resource)
                found.setdefault(key, set()).update(rule["verbs"])
    return found


def operators_role(objects: list[dict[str, Any]]) -> dict[str, Any]:
    return one(objects, "ClusterRole", "lf-lanefeed-lanefeed-system")


def test_the_operator_may_do_this_and_no_more() -> None:
    objects = template()
    assert rights(operators_role(objects)) == IN_NAMESPACES | WITHOUT_NAMESPACE
    assert rights(one(objects, "Role")) == OWN


def test_two_replicas_may_have_a_lease_and_gangs_a_pod_group() -> None:
    objects = template(values={"leaderElection": {"enabled": True}, "rbac": {"gangs": True}})
    assert rights(one(objects, "Role")) == OWN | LEASE
    assert rights(operators_role(objects)) == IN_NAMESPACES | WITHOUT_NAMESPACE | GANGS


def test_with_namespaces_named_it_has_rights_in_those_alone() -> None:
    objects = template(values={"watchNamespaces": ["team-a", "team-b"]})
    assert rights(operators_role(objects)) == WITHOUT_NAMESPACE
    roles = {o["metadata"]["namespace"]: o for o in objects if o["kind"] == "Role"}
    assert set(roles) == {NAMESPACE, "team-a", "team-b"}
    assert rights(roles["team-a"]) == rights(roles["team-b"]) == IN_NAMESPACES
    bound = {o["metadata"]["namespace"]: o for o in objects if o["kind"] == "RoleBinding"}
    for namespace, binding in bound.items():
        assert binding["roleRef"]["name"] == roles[namespace]["metadata"]["name"]
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "lf-lanefeed", "namespace": NAMESPACE}]


# ---- what else must not be lost --------------------------------------------------------------------------------


def test_uninstalling_keeps_the_definition_and_the_certificate_unless_told_otherwise() -> None:
    keep = {"helm.sh/resource-policy": "keep"}
    objects = template()
    assert one(objects, "CustomResourceDefinition")["metadata"]["annotations"] == keep
    secret = one(objects, "Secret")
    assert secret["metadata"]["annotations"] == keep
    assert "data" not in secret, "an upgrade would write over the certificate"
    objects = template(values={"crds": {"keep": False}})
    assert "annotations" not in one(objects, "CustomResourceDefinition")["metadata"]
    objects = template(values={"crds": {"install": False}})
    assert not [o for o in objects if o["kind"] == "CustomResourceDefinition"]


def test_never_two_operators_without_a_lease_and_a_budget_only_for_two() -> None:
    alone, two = template(), template(values={"leaderElection": {"enabled": True}})
    for objects, replicas in ((alone, 1), (two, 2)):
        spec = one(objects, "Deployment")["spec"]
        assert spec["replicas"] == replicas
        assert spec["strategy"] == {"type": "Recreate"}
    assert not [o for o in alone if o["kind"] == "PodDisruptionBudget"], "it would block every drain"
    assert one(two, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_the_documented_way_lets_nodes_report() -> None:
    """For pods with hostNetwork; the words are those of the chart's values, of the page and of the runbook."""
    written = "[{ipBlock: {cidr: 10.0.0.0/16}}]"
    for page in ("charts/lanefeed/values.yaml", "docs/pod-template.md", "docs/runbooks/LanefeedReportsFailing.md"):
        assert written in (CHART.parents[1] / page).read_text(), page
    policy = one(template(values={"networkPolicy": {"reportFrom": yaml.safe_load(written)}}), "NetworkPolicy")
    report = [rule for rule in policy["spec"]["ingress"] if rule["ports"] == [{"port": "report"}]]
    assert {"ipBlock": {"cidr": "10.0.0.0/16"}} in report[0]["from"]
    assert len(report) == 1


def test_no_service_asks_for_the_port_of_a_sidecar() -> None:
    """Ports of native sidecars are not found by name before Kubernetes 1.32, and nothing here needs to."""
    for service in [o for o in template(values=everything()) if o["kind"] == "Service"]:
        assert service["spec"]["selector"]["app.kubernetes.io/component"] == "operator"


def environment(objects: list[dict[str, Any]]) -> dict[str, Any]:
    container = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in container["env"]}


def test_the_operator_knows_every_variable_that_the_chart_sets() -> None:
    found = environment(template(values=everything()))
    ours = {name.removeprefix(PREFIX) for name in found if name.startswith(PREFIX)}
    assert ours <= NAMES
    assert ours >= {
        "SIDECAR_IMAGE",
        "COORDINATOR",
        "CERT_SECRET",
        "WATCH_NAMESPACES",
        "LEADER_ELECTION",
        "LEASE",
        "POD",
    }


def test_variables_name_the_objects_that_the_chart_makes() -> None:
    objects = template(
        values={"leaderElection": {"enabled": True}, "watchNamespaces": ["a", "b"], "report": {"port": 7}}
    )
    found = environment(objects)
    assert found[f"{PREFIX}CERT_SECRET"] == one(objects, "Secret")["metadata"]["name"]
    service = one(objects, "Service")
    assert found[f"{PREFIX}COORDINATOR"] == f"{service['metadata']['name']}.{NAMESPACE}.svc:7"
    assert {p["name"]: p["port"] for p in service["spec"]["ports"]} == {"report": 7, "metrics": 9405}
    assert found[f"{PREFIX}LEASE"] in [
        n for r in one(objects, "Role", "-own")["rules"] for n in r.get("resourceNames", ())
    ]
    assert found[f"{PREFIX}WATCH_NAMESPACES"] == "a,b"
    assert found[f"{PREFIX}LEADER_ELECTION"] == "true"
    assert found[f"{PREFIX}SIDECAR_IMAGE"] == "lanefeed-sidecar:0.1.0"


def test_the_pod_monitor_gives_the_labels_that_plain_prometheus_gives() -> None:
    plain = yaml.safe_load((CHART / "files/scrape.yaml").read_text())["scrape_configs"][0]["relabel_configs"]
    labels = {rule["target_label"]: rule["source_labels"] for rule in plain if "target_label" in rule}
    monitor = one(template(values=everything()), "PodMonitor")["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    ours = {rule["targetLabel"]: rule["sourceLabels"] for rule in endpoint["relabelings"]}
    # The Prometheus operator gives these to every target.
    assert ours == {name: source for name, source in labels.items() if name not in ("namespace", "pod")}
    (port,) = [
        rule["regex"] for rule in plain if rule["source_labels"] == ["__meta_kubernetes_pod_container_port_name"]
    ]
    assert endpoint["port"] == port == METRICS_PORT_NAME
    assert monitor["selector"]["matchLabels"] == {**MANAGED_BY, ROLE_LABEL: "pods"}


def test_a_digest_wins_over_a_tag() -> None:
    digest = "sha256:" + "a" * 64
    image = {"registry": "registry.test", "repository": "x/op", "tag": "1", "digest": digest}
    pod = one(template(values={"image": image}), "Deployment")["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == f"registry.test/x/op@{digest}"
    pod = one(template(values={"image": {**image, "digest": ""}}), "Deployment")["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "registry.test/x/op:1"


def test_one_registry_and_tag_are_enough_for_both_images() -> None:
    objects = template("--set", "registry=registry.test/x,tag=1.2,image.tag=1.3")
    container = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "registry.test/x/lanefeed-operator:1.3"
    assert environment(objects)[f"{PREFIX}SIDECAR_IMAGE"] == "registry.test/x/lanefeed-sidecar:1.2"


@pytest.mark.parametrize(("given", "shown"), [(1_000_660_000, "1000660000"), (65532, "65532"), ("cluster", "cluster")])
def test_users_and_groups_are_written_in_full(given: object, shown: str) -> None:
    """Numbers of a values file are floats to Helm, which writes a million as 1e+06."""
    found = template(values={"sidecar": {"user": given, "sharedGroup": given}})
    (container,) = one(found, "Deployment")["spec"]["template"]["spec"]["containers"]
    values = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert values[f"{PREFIX}SIDECAR_USER"] == values[f"{PREFIX}SHARED_GROUP"] == shown
