"""Options of `index` and `trial` that say how documents are packed, as `PackingRequest.options` has them."""

import argparse

from lanefeed_core.errors import StreamError
from lanefeed_core.packing import CONCAT, MODES, PackingRequest
from lanefeed_sidecar.errors import ConfigError

__all__ = ["add_packing", "packing_of"]


def add_packing(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("--sequence-length", type=int, help="pack documents of tokens into sequences of so many")
    parser.add_argument("--token-column", default="", help="the column of tokens (the only list of whole numbers)")
    parser.add_argument("--eos-token", type=int, help="put after each document (none)")
    parser.add_argument("--pack-mode", default="", choices=("", *MODES))
    parser.add_argument("--cross-document-mask", action="store_true", help="deliver document and position ids too")


def packing_of(args: argparse.Namespace) -> PackingRequest | None:
    """What they say. Raises ConfigError."""
    if args.sequence_length is None:
        if args.token_column or args.eos_token is not None or args.pack_mode or args.cross_document_mask:
            raise ConfigError("options of packing are given without --sequence-length: say how long a sequence is")
        return None
    try:
        return PackingRequest(
            args.sequence_length, args.token_column, args.eos_token, args.pack_mode or CONCAT, args.cross_document_mask
        )
    except StreamError as error:
        raise ConfigError(str(error)) from None
