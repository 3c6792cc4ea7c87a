"""Options of `lanefeed index` and `lanefeed bench` that say how documents are packed. Decides nothing."""

from typing import Annotated

import typer

from lanefeed_core.packing import PackingRequest
from lanefeed_operator.api.spec import PackMode
from lanefeed_operator.local.errors import LocalError

__all__ = ["EosToken", "HowPacked", "SequenceLength", "TokenColumn", "packing_options"]

SequenceLength = Annotated[
    int | None, typer.Option(help="Pack documents of tokens into sequences of so many (docs/packing.md).")
]
TokenColumn = Annotated[str, typer.Option(help="Their column (the only list of whole numbers).")]
EosToken = Annotated[int | None, typer.Option(help="Put after each document (none).")]
HowPacked = Annotated[PackMode, typer.Option(help="How they are packed.")]


def packing_options(length: int | None, column: str, eos_token: int | None, mode: PackMode) -> tuple[str, ...]:
    """As the sidecar's commands take them. Raises LocalError, StreamError."""
    if length is not None:
        return PackingRequest(length, column, eos_token, mode.value).options()
    if column or eos_token is not None:
        raise LocalError("--token-column and --eos-token are of packing: give --sequence-length too")
    return ()
