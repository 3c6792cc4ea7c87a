"""Writes charts/lanefeed/files/dashboard.json from tools/dashboard.yaml; `--check` only says whether it is up to date.

The YAML holds what a person edits: questions, words, queries. This holds Grafana's JSON around them.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
SOURCE_FILE = ROOT / "tools/dashboard.yaml"
FILE = ROOT / "charts/lanefeed/files/dashboard.json"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
CHOSEN = 'namespace=~"$namespace", stj=~"$stj"'
WIDTH = 24
KEYS = {"title", "text", "kind", "unit", "width", "stack", "most", "steps", "queries"}


def dashboard() -> dict[str, Any]:
    """Grafana's model of it (schema 39: Grafana 10.4 and later)."""
    return {
        "uid": "lanefeed",
        "title": "Lanefeed: is my training starving, and why?",
        "tags": ["lanefeed"],
        "description": "Made by tools/gen_dashboard.py.",
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [_source(), *_choices()]},
        "panels": list(_panels(yaml.safe_load(SOURCE_FILE.read_text())["rows"])),
    }


def expression(text: str) -> str:
    """A query as Grafana sends it, but for its variables."""
    rates = {
        name: f"sum by (namespace, stj, pod, rank) (rate(lanefeed_trainer_{name}_seconds_total{{@}}[@]))"
        for name in ("wait", "step")
    }
    share = f"({rates['wait']} / ({rates['wait']} + {rates['step']}))"
    return text.replace("SHARE", share).replace("{@", "{" + CHOSEN).replace("[@]", "[$__rate_interval]")


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {}}


def _choices() -> Iterator[dict[str, Any]]:
    metric = "lanefeed_session_start_time_seconds"
    for name, label, query in (
        ("namespace", "Namespace", f"label_values({metric}, namespace)"),
        ("stj", "Job", f'label_values({metric}{{namespace=~"$namespace"}}, stj)'),
    ):
        yield {
            "name": name,
            "label": label,
            "type": "query",
            "datasource": DATASOURCE,
            "query": {"query": query, "refId": name},
            "definition": query,
            "refresh": 2,
            "sort": 1,
            "includeAll": True,
            "allValue": ".*",
            "multi": True,
            "current": {"text": ["All"], "value": ["$__all"]},
        }


def _panels(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    number = y = 0
    for row in rows:
        number += 1
        place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        yield {
            "id": number,
            "type": "row",
            "title": row["title"],
            "collapsed": False,
            "panels": [],
            "gridPos": place,
        }
        x, y, tall = 0, y + 1, 0
        for panel in row["panels"]:
            number += 1
            unknown = panel.keys() - KEYS
            if unknown:
                sys.exit(
                    f"tools/dashboard.yaml: panel {panel['title']!r} has {sorted(unknown)}, known are {sorted(KEYS)}"
                )
            width, height = panel.get("width", 12), 4 if panel.get("kind") == "stat" else 8
            if x + width > WIDTH:
                x, y, tall = 0, y + tall, 0
            tall = max(tall, height)
            yield _panel(panel, number, {"x": x, "y": y, "w": width, "h": height})
            x += width
        y += tall


def _panel(panel: dict[str, Any], number: int, place: dict[str, int]) -> dict[str, Any]:
    kind = panel.get("kind", "timeseries")
    levels: list[dict[str, Any]] = [{"color": "green", "value": None}]
    levels += [{"color": c, "value": v} for c, v in zip(("yellow", "red"), panel.get("steps", ()), strict=False)]
    defaults: dict[str, Any] = {"unit": panel.get("unit", "short"), "min": 0}
    defaults["thresholds"] = {"mode": "absolute", "steps": levels}
    if "most" in panel:
        defaults["max"] = panel["most"]
    if kind == "stat":
        options: dict[str, Any] = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
        options |= {"colorMode": "value", "graphMode": "area", "textMode": "value", "justifyMode": "auto"}
    else:
        stack = panel.get("stack", False)
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 20 if stack else 0,
            "showPoints": "never",
            "stacking": {"mode": "normal" if stack else "none", "group": "A"},
        }
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return {
        "id": number,
        "type": kind,
        "title": panel["title"],
        "description": panel["text"],
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [_target(chr(ord("A") + at), query) for at, query in enumerate(panel["queries"])],
    }


def _target(name: str, query: dict[str, str]) -> dict[str, Any]:
    return {
        "refId": name,
        "datasource": DATASOURCE,
        "expr": expression(query["expr"]),
        "legendFormat": query["legend"],
        "editorMode": "code",
        "range": True,
    }


def main() -> None:
    """Write the file, or with --check compare it."""
    made = json.dumps(dashboard(), indent=1) + "\n"
    if "--check" not in sys.argv:
        FILE.write_text(made)
    elif not FILE.exists() or FILE.read_text() != made:
        sys.exit(f"{FILE.relative_to(ROOT)} is not what tools/gen_dashboard.py makes of tools/dashboard.yaml: run it")
    else:
        print("the dashboard is up to date")


if __name__ == "__main__":
    main()
