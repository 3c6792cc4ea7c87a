"""PutManifest: an indexer's manifest in pieces, with every bound checked while it comes in.

Called by `service` for an authenticated caller. What is kept in memory is what has arrived of a few uploads, never more
than one manifest's worth of each; a caller that sends slowly, nothing, or more than it said is cut off.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.wire import PROTOCOL_VERSION
from lanefeed_operator.coordinator.rejected import Rejected

__all__ = ["MAX_MANIFEST_BYTES", "Upload", "receive", "receive_first"]

#: What render's chunks hold in ConfigMaps, and a little more, so that render says what to do about one too large.
MAX_MANIFEST_BYTES = 16 << 20
MAX_PIECE_BYTES = 1 << 20
#: Fields around the data of a piece; a failure's message.
MAX_FRAME_BYTES = 64 << 10
#: Every piece must come within this time, and the whole at this many bytes a second besides.
PIECE_SECONDS = 15.0
LEAST_BYTES_PER_SECOND = 64 << 10

#: Gives the next message's bytes, None at the end.
Read = Callable[[], Awaitable[bytes | None]]


@dataclass(frozen=True, slots=True)
class Upload:
    """A whole manifest."""

    digest: str
    data: bytes


async def receive_first(read: Read) -> pb.ManifestPiece:
    """The first piece: whose manifest it is, how large, or why there is none. Raises Rejected."""
    first = await _piece(read, PIECE_SECONDS)
    if first is None:
        raise Rejected.invalid("the upload ended before its first piece")
    if first.protocol != PROTOCOL_VERSION:
        raise Rejected.invalid(f"the indexer speaks protocol {first.protocol} and the control plane {PROTOCOL_VERSION}")
    if not first.HasField("failure") and not 0 < first.size <= MAX_MANIFEST_BYTES:
        raise Rejected.too_large(
            f"a manifest of {first.size} bytes does not fit: at most {MAX_MANIFEST_BYTES} do. Use fewer, larger shards"
        )
    return first


async def receive(first: pb.ManifestPiece, read: Read, clock: Callable[[], float] = time.monotonic) -> Upload:
    """The rest of what `first` began. Raises Rejected."""
    until = clock() + PIECE_SECONDS + first.size / LEAST_BYTES_PER_SECOND
    parts, have = [first.data], len(first.data)
    while have < first.size:
        piece = await _piece(read, min(PIECE_SECONDS, until - clock()))
        if piece is None:
            raise Rejected.invalid(f"the upload ended after {have} of {first.size} bytes: send it again from the start")
        if not piece.data:
            raise Rejected.invalid("a piece without data: only the first may be empty")
        parts.append(piece.data)
        have += len(piece.data)
    if have > first.size:
        raise Rejected.too_large(f"the upload has {have} bytes and more, and its first piece said {first.size}")
    return Upload(first.digest, b"".join(parts))


async def _piece(read: Read, seconds: float) -> pb.ManifestPiece | None:
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            body = await read()
    except TimeoutError:
        raise Rejected.busy(
            "the next piece of the manifest did not come in time: send it again from the start"
        ) from None
    if body is None:
        return None
    if len(body) > MAX_PIECE_BYTES + MAX_FRAME_BYTES:
        raise Rejected.too_large(f"a piece of {len(body)} bytes: at most {MAX_PIECE_BYTES} of data go into one")
    try:
        return pb.ManifestPiece.FromString(body)
    except DecodeError:
        raise Rejected.invalid("a piece of the manifest is no message of this protocol") from None
