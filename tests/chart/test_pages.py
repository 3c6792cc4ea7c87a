"""Links between pages lead somewhere, and commands in them name values and files that there are."""

import re
from pathlib import Path

import pytest
import yaml

from support.helm import CHART, ROOT

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", CHART / "README.md", *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path, text: str) -> list[str]:
    """Links of the text, as if it stood in the page, that lead nowhere."""
    found = []
    for link in LINK.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert not broken(page, page.read_text())


def test_tooth_a_broken_link_or_anchor_is_seen() -> None:
    text = "[a](nowhere.md) [b](install.md#no-such-part) [c](install.md#monitoring) [d](https://x)"
    assert broken(ROOT / "docs/operations.md", text) == ["nowhere.md", "install.md#no-such-part"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_values_that_are_set_on_a_command_line_are_the_charts(page: Path) -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for given in re.findall(r"--set(?:-string)?[ =](\S+)", page.read_text()):
        for name in re.findall(r"(?:^|,)([\w.]+)=", given.strip("`'\"")):
            node = values
            for part in name.split("."):
                assert part in node, f"{name} is no value of the chart"
                node = node[part]
