"""Writes the CRD into the chart and docs/fields.md from the typed API; `--check` only says whether they are up to date.

`--plain` prints the CRD alone, for `kubectl apply --server-side -f -`.
"""

import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "operator"), str(ROOT / "trainer_lib")]

from lanefeed_operator.api import crd  # noqa: E402 -- works in a bare clone too

CHART = ROOT / "charts/lanefeed/templates/crd.yaml"
FIELDS = ROOT / "docs/fields.md"
#: `helm uninstall` leaves what carries it; all jobs go with the CRD.
KEEP = "  annotations:\n    helm.sh/resource-policy: keep\n"
MADE = "made by tools/gen_crd.py from operator/lanefeed_operator/api: edit that, then `make crd`"


class _Dumper(yaml.SafeDumper):
    """No anchors: a reader of the chart should not have to follow them."""

    def ignore_aliases(self, data: Any) -> bool:
        """Never."""
        return True


def plain() -> str:
    """The CRD as YAML."""
    return yaml.dump(crd.definition(), Dumper=_Dumper, sort_keys=False, width=120)


def template() -> str:
    """The CRD as the chart's template."""
    text = plain()
    if "{{" in text:
        sys.exit("a text of the CRD has {{ in it, which Helm would read: write it otherwise")
    if text.count(KEEP) != 1:
        sys.exit(f"the CRD has {KEEP!r} {text.count(KEEP)} times: the chart's crds.keep switches exactly one")
    text = text.replace(KEEP, f"  {{{{- if .Values.crds.keep }}}}\n{KEEP}  {{{{- end }}}}\n")
    return f"{{{{- /* {MADE} */ -}}}}\n{{{{- if .Values.crds.install }}}}\n{text}{{{{- end }}}}\n"


def fields() -> str:
    """The field reference."""
    root = crd.schema()
    lines = [
        f"<!-- {MADE} -->",
        "# Fields of a ShardedTrainingJob",
        "",
        f"`{crd.API_VERSION}`, short name `{crd.SHORT}`. The same text: `kubectl explain stj.spec`. Bold: required.",
        "Fields of the pod template that are not listed are Kubernetes' own and are kept as written"
        " ([pod-template.md](pod-template.md)).",
    ]
    for part in ("spec", "status"):
        node = root["properties"][part]
        lines += ["", f"## {part}", "", node["description"], "", "| field | type | |", "|---|---|---|"]
        lines += [_row(path, field, node) for path, field in crd.fields(node)]
        rules = [(path, rule) for path, found in _rules(node, part) for rule in found]
        if rules:
            lines += ["", f"## Rules of {part}", "", "Checked by the API server on every write.", ""]
            lines += [f"- `{path}`: {rule['message']}" for path, rule in rules]
    lines += ["", "## Rules of the object", ""]
    lines += [f"- {rule['message']}" for rule in root["x-kubernetes-validations"]]
    return "\n".join(lines) + "\n"


def _row(path: str, field: dict[str, Any], root: dict[str, Any]) -> str:
    parent, _, name = path.rpartition(".")
    above = dict(crd.fields(root)).get(parent.removesuffix("[]"), root)
    above = above["items"] if parent.endswith("[]") else above
    shown = f"**`{path}`**" if name in above.get("required", ()) else f"`{path}`"
    text = field.get("description", "").replace("|", "\\|")
    return f"| {shown} | {_type(field)} | {text} |"


def _type(field: dict[str, Any]) -> str:
    if "enum" in field:
        return ", ".join(field["enum"])
    if field.get("x-kubernetes-int-or-string"):
        return "quantity"
    kind = field.get("type", "string or list")
    if kind == "array":
        kind = f"list of {field['items'].get('type', 'value')}s"
    low, high = field.get("minimum"), field.get("maximum")
    if low is not None and high is not None and high < 1 << 62:
        return f"{kind}, {low} to {high}"
    return f"{kind}, {low} or more" if low is not None else str(kind)


def _rules(node: dict[str, Any], path: str) -> list[tuple[str, list[dict[str, Any]]]]:
    found = [(path, node["x-kubernetes-validations"])] if "x-kubernetes-validations" in node else []
    for name, child in node.get("properties", {}).items():
        found += _rules(child, f"{path}.{name}")
    return found + (_rules(node["items"], f"{path}[]") if "items" in node else [])


def main() -> None:
    """Write the files, or with --check compare them, or with --plain print the CRD."""
    if "--plain" in sys.argv:
        print(plain(), end="")
        return
    made = {CHART: template(), FIELDS: fields()}
    if "--check" in sys.argv:
        wrong = [str(f.relative_to(ROOT)) for f, text in made.items() if not f.exists() or f.read_text() != text]
        if wrong:
            sys.exit(f"{', '.join(wrong)}: not what tools/gen_crd.py makes of the API; run `make crd`")
        print("the CRD and the field reference are up to date")
        return
    for file, text in made.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


if __name__ == "__main__":
    main()
