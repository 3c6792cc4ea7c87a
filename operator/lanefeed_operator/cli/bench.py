"""`lanefeed bench`: what can this dataset deliver on this machine, and what holds it up."""

from typing import Annotated, Any

import typer
from rich.table import Table

from lanefeed_core.images import ImageColumn, ImageError, image_options
from lanefeed_operator.api.quantity import parse_bytes
from lanefeed_operator.api.spec import PackMode
from lanefeed_operator.cli.common import console
from lanefeed_operator.cli.packing import EosToken, HowPacked, SequenceLength, TokenColumn, packing_options
from lanefeed_operator.local import indexer
from lanefeed_operator.local.errors import LocalError

__all__ = ["bench"]

#: Indexing a large dataset takes its time before the measuring begins.
PATIENCE_SECONDS = 1800.0
NAMES = {
    "decode_cpu": "decoding",
    "decode_waiting": "waiting for storage, or for a core",
    "opening": "opening shards",
    "scatter": "copying into shuffle windows",
}


def bench(
    uri: Annotated[list[str], typer.Argument(help="Files, folders or globs.")],
    global_batch_size: Annotated[int, typer.Option(help="Samples of a step.", min=1)] = 256,
    columns: Annotated[str, typer.Option(help="Columns that will be delivered, comma-separated (all).")] = "",
    image: Annotated[
        list[str] | None, typer.Option(help="A column of images, as COLUMN=HEIGHTxWIDTH; may be given again.")
    ] = None,
    sequence_length: SequenceLength = None,
    token_column: TokenColumn = "",
    eos_token: EosToken = None,
    pack_mode: HowPacked = PackMode.CONCAT,
    decode_threads: Annotated[int, typer.Option(help="0: as a sidecar would choose.", min=0)] = 0,
    read_ahead: Annotated[str, typer.Option(help="Read-ahead budget, as sidecar.readAheadBytes.")] = "512Mi",
    seconds: Annotated[float, typer.Option(help="How long to measure.", min=0.5)] = 5.0,
    shuffle: Annotated[bool, typer.Option(help="As shuffle.enabled.")] = True,
) -> None:
    """Read a dataset as fast as it goes, and say what limits it."""
    try:
        budget = parse_bytes(read_ahead)
    except ValueError as error:
        raise LocalError(f"--read-ahead {error}") from None
    options = ["--batch", str(global_batch_size), "--threads", str(decode_threads), "--seconds", str(seconds)]
    options += ["--read-ahead", str(budget), *([] if shuffle else ["--no-shuffle"])]
    options += ["--columns", columns] if columns else []
    options += image_options([_image(text) for text in image or ()])
    options += packing_options(sequence_length, token_column, eos_token, pack_mode)
    out = console()
    with out.status("reading ..."):
        found = indexer.trial([*options, "--", *uri], seconds=seconds + PATIENCE_SECONDS)
    out.print(_facts(found, global_batch_size))
    out.print(_shares(found))
    out.print(f"[bold]limit: {found['limit']}[/]. {found['advice']}")


def _image(text: str) -> ImageColumn:
    column, _, size = text.rpartition("=")
    height, _, width = size.partition("x")
    if not (column and height.isdecimal() and width.isdecimal()):
        raise LocalError(f"--image is {text!r}: write COLUMN=HEIGHTxWIDTH, such as image=224x224")
    try:
        return ImageColumn(column=column, height=int(height), width=int(width))
    except ImageError as error:
        raise LocalError(f"--image {text}: {str(error).removeprefix('data.images: ')}") from None


def _facts(found: dict[str, Any], batch: int) -> Table:
    grid = Table.grid(padding=(0, 2))
    for name, value in (
        ("delivered", f"{found['samples_per_second']:,.0f} samples/s, {found['bytes_per_second'] / 1e6:,.0f} MB/s"),
        ("steps", f"{found['samples_per_second'] / batch:,.1f} a second of {batch:,} samples"),
        ("read", f"{found['read_bytes_per_second'] / 1e6:,.0f} MB/s as stored"),
        (
            "first batch",
            f"after {found['first_batch_seconds']:.2f} s, {found['index_seconds']:.2f} s of indexing before",
        ),
        ("cores", f"{found['cores_busy']:.1f} of {found['cores']} busy, {found['threads']} decode threads"),
        ("order", f"{found['lanes']} lanes, windows of {found['window']:,} rows"),
    ):
        grid.add_row(f"[dim]{name}[/]", value)
    return grid


def _shares(found: dict[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("a decode thread's time")
    table.add_column("%", justify="right")
    left = 1.0
    for key, name in NAMES.items():
        share = min(left, float(found["shares"][key]))
        left -= share
        table.add_row(name, f"{100 * share:.0f}")
    table.add_row("the rest: waiting for room, locks", f"{100 * left:.0f}")
    return table
