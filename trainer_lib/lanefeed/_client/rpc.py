"""gRPC's edges: channels over the run folder's socket, the token, and what a failed call means."""

from pathlib import Path
from typing import Any

import grpc

from lanefeed.errors import LanefeedError, NotConnected, ProtocolMismatch, SidecarError, by_kind
from lanefeed_core.wire import MAX_MESSAGE_BYTES, SOCKET_NAME, TOKEN_METADATA, TOKEN_NAME

__all__ = ["ERROR_METADATA", "NotReady", "explain", "fatal", "open_channel", "token_metadata"]

#: Trailing metadata with the kind of an error (docs/protocol.md, Errors).
ERROR_METADATA = "lanefeed-error"

#: sockaddr_un holds 107 bytes and a zero.
_MAX_SOCKET_PATH = 107

_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A channel of its own each time: a new sidecar must not inherit the backoff of the old one's address.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)

#: Without a kind of ours these say that the sidecar is not there (yet, or any more); everything else is final.
_PASSING = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
)


class NotReady(Exception):
    """The sidecar cannot be reached now; the text says what is missing. Worth another try."""


def open_channel(run_dir: Path) -> grpc.Channel:
    """A channel to the run folder's sidecar. Raises NotReady while there is no socket, NotConnected if none can be."""
    path = str(run_dir / SOCKET_NAME)
    if len(path.encode()) > _MAX_SOCKET_PATH:
        raise NotConnected(
            f"the socket's path {path} has {len(path.encode())} bytes and Unix sockets allow {_MAX_SOCKET_PATH}: use a "
            "shorter run folder (LANEFEED_RUN_DIR, or LANEFEED_SHM_ROOT for lanefeed.open)"
        )
    if not Path(path).exists():
        raise NotReady(f"there is no {path} yet")
    return grpc.insecure_channel(f"unix:{path}", options=_OPTIONS)


def token_metadata(run_dir: Path) -> list[tuple[str, str]]:
    """The token as call metadata. Raises NotReady while there is no token."""
    path = run_dir / TOKEN_NAME
    try:
        return [(TOKEN_METADATA, path.read_text().strip())]
    except FileNotFoundError:
        raise NotReady(f"there is no {path} yet") from None
    except OSError as error:
        raise NotConnected(
            f"cannot read {path}: {error.strerror}; the trainer's user must be in the group of the run folder"
        ) from None


def fatal(error: grpc.RpcError) -> LanefeedError | None:
    """The error to raise for a failed call, or None where trying again may help."""
    call: Any = error
    code, details = call.code(), call.details() or ""
    kind = next((value for key, value in call.trailing_metadata() or () if key == ERROR_METADATA), "")
    if code == grpc.StatusCode.UNAVAILABLE or (not kind and code in _PASSING):
        return None
    if kind:
        return by_kind(kind, details)
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return ProtocolMismatch(
            f"the sidecar does not know this call ({details}): use one Lanefeed version in both images"
        )
    return SidecarError(f"the sidecar answered {code.name}: {details}")


def explain(error: grpc.RpcError) -> str:
    """A failed call for a message, one line."""
    call: Any = error
    details = (call.details() or "no details").splitlines()[0]
    if "Connection refused" in details:
        # gRPC names the address three times over.
        details = "connection refused: nobody listens on its socket"
    return f"{call.code().name}: {details}"
