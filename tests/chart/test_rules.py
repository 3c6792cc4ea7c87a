"""The alerts: promtool's cases, no alert without cases and page, and cases that notice a broken rule."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.helm import CHART, ROOT, one, promtool, run, template

RULES = CHART / "files/rules.yaml"
CASES = ROOT / "tests/chart/rules_test.yaml"
RUNBOOKS = ROOT / "docs/runbooks"
ON = {"metrics": {"rules": {"enabled": True}}}


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def names() -> list[str]:
    return [alert["alert"] for alert in alerts()]


def cases(folder: Path, rules: str) -> tuple[int, str]:
    """promtool's verdict on the cases with these rules."""
    (folder / "rules.yaml").write_text(rules)
    (folder / "rules_test.yaml").write_text(CASES.read_text())
    done = run(promtool(), "test", "rules", str(folder / "rules_test.yaml"), timeout=100)
    return done.returncode, done.stdout + done.stderr


def test_prometheus_takes_the_rules() -> None:
    done = run(promtool(), "check", "rules", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_case_holds(tmp_path: Path) -> None:
    code, text = cases(tmp_path, RULES.read_text())
    assert code == 0, text


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    checked = [c for test in yaml.safe_load(CASES.read_text())["tests"] for c in test["alert_rule_test"]]
    firing = {c["alertname"] for c in checked if c["exp_alerts"]}
    silent = {c["alertname"] for c in checked if not c["exp_alerts"]}
    assert firing == silent == set(names())


@pytest.mark.parametrize("planted", ["vector(0) == 1", "vector(1)"])
def test_tooth_the_cases_notice_every_rule_that_never_or_always_fires(tmp_path: Path, planted: str) -> None:
    broken = yaml.safe_load(RULES.read_text())
    for group in broken["groups"]:
        for rule in group["rules"]:
            rule["expr"] = planted
    code, text = cases(tmp_path, yaml.safe_dump(broken))
    assert code != 0
    assert set(re.findall(r"alertname: (\w+)", text)) == set(names()), text


@pytest.mark.parametrize("name", names())
def test_every_alert_has_a_page_that_says_what_to_look_at_and_what_to_do(name: str) -> None:
    text = (RUNBOOKS / f"{name}.md").read_text()
    assert text.startswith(f"# {name}\n")
    parts = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert parts == ["What it means", "Look at, in this order", "What to do"], f"{name}.md has {parts}"
    looked = text.partition("## Look at")[2].partition("## What to do")[0]
    assert re.search(r"^1\. ", looked, re.MULTILINE), "steps are numbered"


def test_no_page_is_left_of_an_alert_that_is_gone() -> None:
    assert {file.stem for file in RUNBOOKS.glob("Lanefeed*.md")} == set(names())


def test_every_alert_says_how_bad_it_is_and_where_its_page_is() -> None:
    for alert in alerts():
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert set(alert["annotations"]) == {"summary", "description", "runbook"}
        assert alert["annotations"]["runbook"] == f"docs/runbooks/{alert['alert']}.md"


def test_the_chart_ships_these_very_rules() -> None:
    rule = one(template(values=ON), "PrometheusRule")
    assert rule["spec"] == yaml.safe_load(RULES.read_text())


def test_alerts_can_be_left_out_labelled_and_pointed_to_ones_own_pages() -> None:
    more = {"runbookBase": "https://wiki/x/", "disabled": ["LanefeedNoCommit"], "alertLabels": {"team": "ml"}}
    rule = one(template(values={"metrics": {"rules": {"enabled": True, **more}}}), "PrometheusRule")
    found = [alert for group in rule["spec"]["groups"] for alert in group["rules"]]
    assert [alert["alert"] for alert in found] == [name for name in names() if name != "LanefeedNoCommit"]
    for alert in found:
        assert alert["labels"]["team"] == "ml"
        assert alert["labels"]["severity"]
        assert alert["annotations"]["runbook_url"] == f"https://wiki/x/{alert['alert']}.md"
