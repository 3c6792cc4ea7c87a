"""Writes docs/metrics.md, the reference of all metrics, from the code that makes them; `--check` only compares.

The operator's are collected; the sidecar's are read from its collector's source: a sidecar without a job has none.
Used by the tests too: names in alerts, dashboard and pages must be among these.
"""

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

from lanefeed_operator.runtime.metrics import Metrics
from lanefeed_sidecar.metrics import collector

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "docs/metrics.md"
HEAD = """<!-- made by tools/gen_metrics.py from the code: edit that, then run it -->
# Metrics

Prometheus adds `namespace`, `pod` and `stj` (the ShardedTrainingJob) to those of sidecars. In those of the operator
`namespace` and `stj` say which job is meant, wherever the operator runs (`honor_labels`). How they are scraped:
[install.md](install.md#monitoring). What they mean together: the dashboard and [the alerts](runbooks/README.md)."""
ENDINGS = {"CounterMetricFamily": "_total", "InfoMetricFamily": "_info", "GaugeMetricFamily": ""}
KINDS = {"CounterMetricFamily": "counter", "InfoMetricFamily": "info", "GaugeMetricFamily": "gauge"}


@dataclass(frozen=True, slots=True)
class Series:
    """One metric as Prometheus stores it."""

    name: str
    kind: str
    text: str
    labels: tuple[str, ...] = ()


def loaders() -> list[Series]:
    """Those of sidecars."""
    found = [
        Series(f"{name}_total", "counter", text)
        for name, text in (*collector._COUNTS.values(), *collector._SECONDS.values())
    ]
    tree = ast.parse(Path(collector.__file__).read_text())
    words = {
        node.targets[0].id: node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in KINDS:
            continue
        name, text = node.args[0], node.args[1]
        if not isinstance(name, ast.Constant):
            continue  # the tables above
        said = text.value if isinstance(text, ast.Constant) else words[text.id] if isinstance(text, ast.Name) else ""
        labels = [tuple(ast.literal_eval(k.value)) for k in node.keywords if k.arg == "labels"]
        found.append(
            Series(f"{name.value}{ENDINGS[node.func.id]}", KINDS[node.func.id], str(said), labels[0] if labels else ())
        )
    return sorted(found, key=lambda series: series.name)


def operator() -> list[Series]:
    """Those of the operator."""
    registry = Metrics()._registry
    # A counter that has counted nothing shows no labels.
    named = {getattr(c, "_name", ""): tuple(getattr(c, "_labelnames", ())) for c in registry._collector_to_names}
    found = []
    for family in registry.collect():
        labels = named.get(family.name) or tuple(getattr(family, "_labelnames", ()))
        ending = "_total" if family.type == "counter" else ""
        found.append(Series(family.name + ending, family.type, family.documentation, labels))
    return sorted(found, key=lambda series: series.name)


def page() -> str:
    """The page."""
    lines = HEAD.splitlines()
    for title, series in (("Sidecars, port 9404 of each training pod", loaders()), ("Operator, port 9405", operator())):
        lines += ["", f"## {title}", "", "| metric | type | labels | |", "|---|---|---|---|"]
        lines += [
            f"| `{s.name}` | {s.kind} | {', '.join(f'`{label}`' for label in s.labels)} | {s.text.replace('|', '/')} |"
            for s in series
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the file, or with --check compare it."""
    made = page()
    if "--check" not in sys.argv:
        FILE.write_text(made)
    elif not FILE.exists() or FILE.read_text() != made:
        sys.exit(f"{FILE.relative_to(ROOT)} is not what tools/gen_metrics.py makes of the code: run it")
    else:
        print("the metrics' reference is up to date")


if __name__ == "__main__":
    main()
