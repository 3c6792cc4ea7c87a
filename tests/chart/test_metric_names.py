"""Every metric that an alert, the dashboard or a page names is one that the code makes, with the labels asked for."""

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.helm import CHART, ROOT, promtool, run

#: What Prometheus adds: see the PodMonitor and tests/chart/prometheus.yaml.
TARGET_LABELS = {"namespace", "pod", "stj", "plan_generation"}
PACKAGES = {"lanefeed_core", "lanefeed_sidecar", "lanefeed_operator"}
NAME = re.compile(r"\blanefeed_[a-z0-9_]+\b(?![/.(])")
SELECTOR = re.compile(r"\b(lanefeed_[a-z0-9_]+)\{([^}]*)\}")

Known = dict[str, set[str]]


def _generator() -> Any:
    """tools/gen_metrics.py: tools are no package."""
    spec = importlib.util.spec_from_file_location("gen_metrics", ROOT / "tools/gen_metrics.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gen_metrics"] = module
    spec.loader.exec_module(module)
    return module


gen_metrics = _generator()


def loaders() -> Known:
    """Series of the sidecars and their labels."""
    return {series.name: set(series.labels) for series in gen_metrics.loaders()}


def operator() -> Known:
    """Series of the operator and their labels."""
    found = {series.name: set(series.labels) for series in gen_metrics.operator()}
    for series in gen_metrics.operator():
        if series.kind == "histogram":
            found |= {f"{series.name}{ending}": {"le", *series.labels} for ending in ("_bucket", "_count", "_sum")}
    return found


def known() -> Known:
    return loaders() | operator()


def unknown(text: str, series: Known) -> Iterator[str]:
    """Names and labels in the text that no code makes."""
    for name in sorted(set(NAME.findall(text)) - PACKAGES):
        if name not in series:
            yield name
    for name, inside in SELECTOR.findall(text):
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside):
            if name in series and label not in series[name] | TARGET_LABELS:
                yield f"{name}{{{label}}}"


def expressions() -> list[str]:
    rules = yaml.safe_load((CHART / "files/rules.yaml").read_text())["groups"]
    dashboard = json.loads((CHART / "files/dashboard.json").read_text())
    found = [rule["expr"] for group in rules for rule in group["rules"]]
    found += [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return found + [variable.get("definition", "") for variable in dashboard["templating"]["list"]]


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_both_ends_are_found() -> None:
    assert loaders()["lanefeed_trainer_wait_seconds_total"] == {"rank"}
    assert loaders()["lanefeed_read_bytes_total"] == set()
    assert "lanefeed_build_info" in loaders()
    assert operator()["lanefeed_operator_commit_age_seconds"] == {"namespace", "stj"}
    assert "le" in operator()["lanefeed_operator_reconcile_seconds_bucket"]


def test_alerts_and_dashboard_ask_for_what_there_is() -> None:
    assert not [wrong for expression in expressions() for wrong in unknown(expression, known())]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_what_there_is(page: Path) -> None:
    assert not list(unknown(page.read_text(), known()))


def test_the_reference_is_what_the_code_says() -> None:
    arguments = [sys.executable, "tools/gen_metrics.py", "--check"]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_helm_test_asks_for_a_metric_that_there_is() -> None:
    assert not list(unknown((CHART / "files/helm_test.py").read_text(), known()))


def test_tooth_a_misspelt_metric_or_label_is_seen() -> None:
    text = 'sum(rate(lanefeed_trainer_wait_second_total[5m])) + lanefeed_cursor{what="step", rnk="1", stj=~"x"}'
    assert list(unknown(text, known())) == ["lanefeed_trainer_wait_second_total", "lanefeed_cursor{rnk}"]


# ---- the dashboard's form --------------------------------------------------------------------------------------


def test_the_dashboard_is_what_its_table_says() -> None:
    done = subprocess.run(
        [sys.executable, "tools/gen_dashboard.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_prometheus_understands_every_query_of_the_dashboard(tmp_path: Path) -> None:
    panels = json.loads((CHART / "files/dashboard.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    plain = [re.sub(r"\$(namespace|stj)", ".*", query).replace("$__rate_interval", "1m") for query in queries]
    rules = [{"record": f"panel:query:{at}", "expr": query} for at, query in enumerate(plain)]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = run(promtool(), "check", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_has_what_grafana_needs() -> None:
    dashboard = json.loads((CHART / "files/dashboard.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies over another"
        taken |= cells
        if panel["type"] != "row":
            assert len(panel["description"]) > 15, f"{panel['title']} says nothing"
            assert panel["targets"]
            for target in panel["targets"]:
                assert target["datasource"]["uid"] == panel["datasource"]["uid"] == "${datasource}"
    assert {v["name"] for v in dashboard["templating"]["list"]} == {"datasource", "namespace", "stj"}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps([p.get("targets") for p in panels])))
    assert used == {"datasource", "namespace", "stj", "__rate_interval"}
