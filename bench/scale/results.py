"""bench/results/scale.json: one section for each benchmark, with its figures, goals and command."""

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = ["FILE", "record"]

FILE = Path(__file__).parents[1] / "results" / "scale.json"


def record(section: str, command: str, figures: dict[str, Any], goals: dict[str, float]) -> bool:
    """Put a section into the file and print it; whether every figure is at or below its goal."""
    met = {name: figures[name] <= goal for name, goal in goals.items()}
    FILE.parent.mkdir(parents=True, exist_ok=True)
    whole = json.loads(FILE.read_text()) if FILE.exists() else {}
    whole[section] = {
        "command": command,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "figures": figures,
        "goals_at_most": goals,
        "met": met,
    }
    FILE.write_text(json.dumps(whole, indent=1, sort_keys=True) + "\n")
    for name, value in figures.items():
        goal = f"  (goal <= {goals[name]}: {'met' if met[name] else 'NOT MET'})" if name in goals else ""
        print(f"{section}.{name} = {value}{goal}")
    return all(met.values())
