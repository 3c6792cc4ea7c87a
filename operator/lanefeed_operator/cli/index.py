"""`lanefeed index`: what a dataset is made of, and what in its files makes it slow."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lanefeed_operator.api.spec import PackMode
from lanefeed_operator.cli.common import console
from lanefeed_operator.cli.packing import EosToken, HowPacked, SequenceLength, TokenColumn, packing_options
from lanefeed_operator.local import indexer

__all__ = ["index"]

MAX_LEFT_OUT = 20


def index(
    uri: Annotated[list[str], typer.Argument(help="Files, folders or globs.")],
    out: Annotated[Path | None, typer.Option(help="Write the manifest to this file.")] = None,
    columns: Annotated[str, typer.Option(help="Columns that will be delivered, comma-separated (all).")] = "",
    sequence_length: SequenceLength = None,
    token_column: TokenColumn = "",
    eos_token: EosToken = None,
    pack_mode: HowPacked = PackMode.CONCAT,
) -> None:
    """Make the manifest of a dataset and say what to improve in its files."""
    options = ["--columns", columns] if columns else []
    options += packing_options(sequence_length, token_column, eos_token, pack_mode)
    if out is not None:
        options += ["--out", str(out)]
    report = indexer.index([*options, "--", *uri])
    screen = console()
    screen.print(_facts(report))
    screen.print(_columns(report))
    if report["lint"]:
        screen.print(_lint(report))
    _left_out(screen, report)
    if out is not None:
        screen.print(f"manifest written to {out}")


def _facts(report: dict[str, Any]) -> Table:
    grid = Table.grid(padding=(0, 2))
    for name, value in (
        ("samples", f"{report['rows']:,}"),
        ("shards", f"{report['shards']:,} ({report['format']})"),
        ("row groups", f"{report['row_groups']:,}"),
        ("bytes", f"{report['bytes'] / 1e6:,.1f} MB stored, {report['row_bytes']:,.0f} bytes a sample decoded"),
        ("digest", report["digest"]),
        *_packing(report["packing"]),
    ):
        grid.add_row(f"[dim]{name}[/]", value)
    return grid


def _packing(packing: dict[str, Any] | None) -> list[tuple[str, str]]:
    if packing is None:
        return []
    what = f"{packing['documents']:,} documents, {packing['tokens']:,} tokens of column {packing['column']}"
    how = f"{packing['mode']}, sequences of {packing['sequence_length']:,} tokens, {packing['padding']:.2%} padding"
    return [("documents", what), ("packed", how)]


def _columns(report: dict[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("column", "type", "nulls"):
        table.add_column(name)
    for column in report["columns"]:
        table.add_row(column["name"], column["type"], "yes" if column["nullable"] else "no")
    return table


def _lint(report: dict[str, Any]) -> Table:
    table = Table(title="What could be better", title_justify="left")
    for name in ("code", "what", "remedy"):
        table.add_column(name, overflow="fold")
    for finding in report["lint"]:
        table.add_row(finding["code"], finding["what"], finding["remedy"])
    return table


def _left_out(out: Console, report: dict[str, Any]) -> None:
    for word in ("quarantined", "skipped"):
        entries = report[word]
        for entry in entries[:MAX_LEFT_OUT]:
            out.print(f"{word}: {entry['path']}: {entry['reason']}", markup=False)
        if len(entries) > MAX_LEFT_OUT:
            out.print(f"... and {len(entries) - MAX_LEFT_OUT} more {word}")
