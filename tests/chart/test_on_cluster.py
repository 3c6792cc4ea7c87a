"""The chart on a real API server, and a real Prometheus that must find native sidecars; skipped with no cluster up."""

import json
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart.conftest import Cluster
from support.discovery import META, pod_targets
from support.helm import CHART, ROOT, template
from support.ports import free_port
from support.prometheus import prometheus

IMAGE = "kube.test/lanefeed-sidecar:dev"
#: Objects of the Prometheus operator, whose definitions this cluster lacks.
FOREIGN = {"PodMonitor", "ServiceMonitor", "PrometheusRule"}
VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "two replicas, gangs, dashboard": {
        "leaderElection": {"enabled": True},
        "rbac": {"gangs": True},
        "metrics": {"dashboard": {"enabled": True}},
        "networkPolicy": {"metricsFrom": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]},
    },
    "namespaced": {"watchNamespaces": ["default"]},
    "openshift": {
        "sidecar": {"user": "cluster", "sharedGroup": "cluster"},
        "podSecurityContext": {"runAsUser": None, "runAsGroup": None},
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_api_server_takes_every_object_without_a_warning(cluster: Cluster, namespace: str, variant: str) -> None:
    objects = template("-n", namespace, values=VARIANTS[variant])
    for found in objects:
        if found["kind"] in FOREIGN:
            continue
        for checked in (found, *_pods(found)):
            arguments = (
                "apply",
                "--server-side",
                "--force-conflicts",
                "--dry-run=server",
                "--validate=strict",
                "-f",
                "-",
            )
            done = cluster.try_kubectl(*arguments, text=yaml.safe_dump(checked))
            assert done.returncode == 0, f"{checked['kind']}: {done.stderr}"
            assert "Warning" not in done.stderr, done.stderr


def test_the_api_server_takes_the_policy_of_the_security_page(cluster: Cluster, namespace: str) -> None:
    found = re.search(r"```yaml\n(.+?)```", (ROOT / "docs/security.md").read_text(), re.DOTALL)
    assert found
    done = cluster.try_kubectl(
        "apply", "-n", namespace, "--dry-run=server", "--validate=strict", "-f", "-", text=found[1]
    )
    assert done.returncode == 0, done.stderr


def _pods(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod that a Deployment makes: standards are enforced on pods alone."""
    if found["kind"] != "Deployment":
        return []
    template = found["spec"]["template"]
    meta = {**template["metadata"], "name": "operator-pod", "namespace": found["metadata"]["namespace"]}
    spec = {**template["spec"], "serviceAccountName": "default"}
    return [{"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}]


# ---- Prometheus ------------------------------------------------------------------------------------------------

#: A page of metrics that a sidecar could serve, without its data.
PAGE = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(b"lanefeed_quarantined_shards 2\\n")
http.server.ThreadingHTTPServer(("", 9404), Handler).serve_forever()
"""


def _pod(namespace: str) -> dict[str, Any]:
    """As the operator renders them: a native sidecar with a named port, and the labels of a training pod."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsUser": 65532}
    common = {"image": IMAGE, "imagePullPolicy": "Never", "securityContext": security}
    labels = {"app.kubernetes.io/managed-by": "lanefeed", "lanefeed.dev/role": "pods", "lanefeed.dev/job": "mine"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "mine-3-0",
            "namespace": namespace,
            "labels": labels | {"lanefeed.dev/plan-generation": "3"},
        },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "initContainers": [
                {
                    **common,
                    "name": "lanefeed-sidecar",
                    "restartPolicy": "Always",
                    "command": ["python", "-c", PAGE],
                    "ports": [{"name": "feed-metrics", "containerPort": 9404}],
                }
            ],
            "containers": [{**common, "name": "trainer", "command": ["python", "-c", "import time; time.sleep(600)"]}],
        },
    }


def test_prometheus_finds_native_sidecars_and_the_alert_fires(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    if not cluster.has_image(IMAGE):
        pytest.skip(f"{IMAGE} is not on every node: make images, then load it")
    cluster.kubectl("apply", "-f", "-", text=yaml.safe_dump(_pod(namespace)))
    with prometheus(cluster.kubeconfig, tmp_path) as server:
        mine = f'{{namespace="{namespace}"}}'
        found = server.wait("the sidecar's metrics", lambda: server.query(f"lanefeed_quarantined_shards{mine}"), 150)
        (labels, value) = found[0]
        assert value == 2
        kept = {name: labels[name] for name in ("namespace", "pod", "stj", "plan_generation")}
        assert kept == {"namespace": namespace, "pod": "mine-3-0", "stj": "mine", "plan_generation": "3"}
        target = next(t for t in server.targets() if t["labels"].get("namespace") == namespace)
        assert target["discoveredLabels"]["__meta_kubernetes_pod_container_init"] == "true"
        fired = f'ALERTS{{alertname="LanefeedQuarantinedShards", namespace="{namespace}", alertstate="firing"}}'
        alert = server.wait("the alert", lambda: server.query(fired), 150)[0][0]
        assert alert["stj"] == "mine"
        assert alert["severity"] == "warning"


def test_discovery_of_another_makers_sees_pods_as_ours_does(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """kubernetes_sd itself with the chart's relabelling, as Debian's vmagent does it."""
    program = shutil.which("vmagent")
    if program is None:
        pytest.skip("there is no vmagent: install Debian's package victoria-metrics")
    if not cluster.has_image(IMAGE):
        pytest.skip(f"{IMAGE} is not on every node: make images, then load it")
    cluster.kubectl("apply", "-f", "-", text=yaml.safe_dump(_pod(namespace)))
    cluster.kubectl("wait", "-n", namespace, "--for=condition=Ready", "pod/mine-3-0", "--timeout=150s")
    scrape = yaml.safe_load((CHART / "files/scrape.yaml").read_text())
    for job in scrape["scrape_configs"]:
        job["kubernetes_sd_configs"][0]["kubeconfig_file"] = str(cluster.kubeconfig)
    (tmp_path / "scrape.yml").write_text(yaml.safe_dump(scrape))
    port = free_port()
    arguments = [f"-promscrape.config={tmp_path / 'scrape.yml'}", f"-httpListenAddr=127.0.0.1:{port}"]
    arguments += ["-remoteWrite.url=http://127.0.0.1:1/", f"-remoteWrite.tmpDataPath={tmp_path / 'data'}"]
    with (tmp_path / "log").open("w") as log:
        agent = subprocess.Popen([program, *arguments], stdout=log, stderr=log)
    try:
        theirs = _theirs(port, namespace, agent, tmp_path / "log")
    finally:
        agent.kill()
        agent.wait()
    assert theirs["labels"] | {"job": "", "instance": ""} == {
        "namespace": namespace,
        "pod": "mine-3-0",
        "stj": "mine",
        "plan_generation": "3",
        "job": "",
        "instance": "",
    }
    ours = [t["labels"] for t in pod_targets(cluster.get("pod", "mine-3-0", "-n", namespace))]
    (sidecar,) = [labels for labels in ours if labels.get(META + "pod_container_port_name") == "feed-metrics"]
    found = {name: value for name, value in theirs["discoveredLabels"].items() if name.startswith(META)}
    assert found[META + "pod_container_init"] == "true"
    assert {name: found.get(name) for name in sidecar if name in found} == {
        n: v for n, v in sidecar.items() if n in found
    }
    assert sidecar.keys() - found.keys() <= {META + "pod_container_image"}, "an older agent does not tell the image"


def _theirs(port: int, namespace: str, agent: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
    """The one target in the namespace."""
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline and agent.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/targets?state=active", timeout=5) as answer:
                targets = json.loads(answer.read())["data"]["activeTargets"]
            found = [t for t in targets if t["labels"].get("namespace") == namespace]
            if found:
                assert len(found) == 1, found
                return dict(found[0])
        except OSError:
            pass
        time.sleep(0.5)
    raise AssertionError(f"vmagent found no target in {namespace}: {log.read_text()[-2000:]}")
