"""YAML for people: block style, no anchors, no Python tags, keys in the order given; and reading with the C loader.

Used by the state folder and `lanefeed status -o yaml`.
"""

from pathlib import Path
from typing import Any

import yaml

__all__ = ["dump", "load"]


_Base = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_Base):  # type: ignore[misc, valid-type]
    """libyaml's emitter (the status is written at each commit), without anchors: what occurs twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        """Never use one."""
        return True


def _text(dumper: Any, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    node: yaml.ScalarNode = dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)
    return node


_Dumper.add_representer(str, _text)


def dump(data: dict[str, Any]) -> str:
    """Plain dicts, lists, str, numbers and bool -> YAML. Raises yaml.YAMLError for anything else."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def load(path: Path) -> dict[str, Any]:
    """One document; {} for an empty file. Raises OSError, yaml.YAMLError, and ValueError where it is no mapping."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with path.open("rb") as source:
        document = yaml.load(source, Loader=loader) or {}  # noqa: S506 -- a safe one
    if not isinstance(document, dict):
        raise ValueError(f"it holds {type(document).__name__} and not keys with values")
    return document
