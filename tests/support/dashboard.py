"""The dashboard's queries, asked of a Prometheus that has scraped a job: what each panel would show."""

import json
import re
from typing import Any, Protocol

from support.helm import CHART

__all__ = ["answers", "panels"]


class Asks(Protocol):
    """`support.prometheus.Prometheus`."""

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """An instant query."""


def panels() -> list[dict[str, Any]]:
    """All that show something."""
    found = json.loads((CHART / "files/dashboard.json").read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def answers(server: Asks, *, namespace: str, stj: str, rate: str = "15s") -> dict[str, list[tuple[str, float]]]:
    """Panel and legend -> what its query answers now, with these choices made in the dashboard."""
    found = {}
    for panel in panels():
        for target in panel["targets"]:
            query = (
                target["expr"].replace("$namespace", namespace).replace("$stj", stj).replace("$__rate_interval", rate)
            )
            series = [(_legend(target["legendFormat"], labels), value) for labels, value in server.query(query)]
            found[f"{panel['title']}: {target['legendFormat']}"] = series
    return found


def _legend(text: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: labels.get(match[1], ""), text)
