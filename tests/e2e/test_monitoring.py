"""A real Prometheus scrapes a running job with the chart's configuration: what dashboard and alerts would say."""

import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from chaos.chaos import GLOBAL_BATCH
from e2e.cluster import SYSTEM, Cluster
from e2e.job import Job
from e2e.lifetime import LOGS, job
from e2e.scenarios import scenario
from support.dashboard import answers
from support.prometheus import Prometheus, prometheus

#: Empty while all is well.
QUIET = {"Errors of loaders, by kind: {{stj}} {{kind}}"}
#: Rates need two scrapes, and panels a job that moves meanwhile.
SCRAPES_SECONDS = 12


@scenario("calm")
def test_prometheus_sees_a_job_train(cluster: Cluster) -> None:
    """Sidecars and operator are found, every panel of the dashboard has an answer, no rule is broken."""
    with job(cluster, "watched", epochs=40) as made, TemporaryDirectory() as folder:
        made.spec["template"] = {"spec": made.pod(nodes=("node1", "node2"))}
        made.apply()
        with prometheus(cluster.state / "admin.conf", Path(folder)) as server:
            made.reaches(20, seconds=120)
            made.allow(10**9)
            server.wait("both sidecars", lambda: len(targets(server, made)) == 2, 60)
            time.sleep(SCRAPES_SECONDS)
            check_targets(server, made)
            check_panels(server, made)
            check_rules(server)
            made.patch(suspend=True)
            age = f'lanefeed_operator_commit_age_seconds{{namespace="{made.namespace}"}}'
            server.wait("no age of a commit where nothing runs", lambda: not server.query(age), 60)


def targets(server: Prometheus, made: Job) -> list[dict[str, str]]:
    """Labels of the job's sidecars that are up."""
    found = [t for t in server.targets() if t["labels"]["namespace"] == made.namespace and t["health"] == "up"]
    assert all(t["discoveredLabels"]["__meta_kubernetes_pod_container_init"] == "true" for t in found)
    return [t["labels"] for t in found]


def check_targets(server: Prometheus, made: Job) -> None:
    """Whose metrics they are is in their labels, and their numbers are the job's."""
    assert {t["pod"] for t in targets(server, made)} == {pod["metadata"]["name"] for pod in made.living()}
    assert {(t["stj"], t["plan_generation"]) for t in targets(server, made)} == {(made.name, "1")}
    mine = f'{{namespace="{made.namespace}", stj="{made.name}"}}'
    steps = [value for _, value in server.query(f"lanefeed_total_step{mine}")]
    assert len(steps) == 2
    assert min(steps) >= 20
    (samples,) = [value for _, value in server.query(f"sum(lanefeed_samples_total{mine})")]
    assert samples >= min(steps) * GLOBAL_BATCH * 0.9, "epochs' last steps are smaller"
    (age,) = [value for _, value in server.query(f"lanefeed_operator_commit_age_seconds{mine}")]
    assert 0 <= age < 60
    operators = {labels["namespace"] for labels, _ in server.query("lanefeed_operator_build_info")}
    assert operators == {SYSTEM}


def check_panels(server: Prometheus, made: Job) -> None:
    """No panel is empty; what they answer is kept for a reader."""
    found = answers(server, namespace=made.namespace, stj=made.name)
    LOGS.mkdir(exist_ok=True)
    (LOGS / "dashboard.json").write_text(json.dumps(found, indent=1) + "\n")
    assert not [panel for panel, series in found.items() if not series and panel not in QUIET]
    ((_, waiting),) = found["Worst rank waits for data: worst rank"]
    assert 0 <= waiting <= 1
    ((_, samples),) = found["Samples per second: samples/s"]
    assert samples > 0
    attached = dict(found["Trainers attached: {{stj}} attached"])
    assert attached == {f"{made.name} attached": 2.0}


def check_rules(server: Prometheus) -> None:
    """Every rule is evaluated without an error."""
    rules = [rule for group in server.api("rules")["groups"] for rule in group["rules"]]
    assert rules
    assert {rule["name"]: rule.get("lastError", "") for rule in rules if rule["health"] != "ok"} == {}
