"""A channel to the report service that follows what changes under it: the CA is rotated, addresses move, names fail.

Used by the reporter and by the indexer's upload, one thread at a time. `unix:` targets are on this machine and go
without TLS; every other one needs the CA's file, and until that is there nobody is called. A new channel is made when
the file's text changes, and after a few failures in a row: gRPC's own waits for names and connections grow to minutes.
"""

import logging
from pathlib import Path
from typing import Any

import grpc

from lanefeed_core.proto import lanefeed_pb2_grpc as rpc
from lanefeed_core.wire import CONTROL_TRUST_NAME, MAX_MESSAGE_BYTES, TOKEN_METADATA
from lanefeed_sidecar.errors import Unavailable

__all__ = ["ControlChannel", "explain"]

log = logging.getLogger(__name__)

#: Failures in a row after which a channel is given up.
MAX_FAILURES = 3
_OPTIONS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    # Else a new channel gets the old one's connection, with its old trust and its waits.
    ("grpc.use_local_subchannel_pool", 1),
]


class ControlChannel:
    """The present channel to `target`, and the token for its calls."""

    def __init__(self, target: str, token_path: str, control_dir: Path | None) -> None:
        """Nothing is opened yet.

        Args:
            target: "unix:/path", or "host:port" for TLS.
            token_path: file with the token, read for each call (projected ones are rotated); "": none is sent.
            control_dir: folder with the CA (`ca.crt`).
        """
        self.target = target
        self._token_path = token_path
        self._trust = None if target.startswith("unix:") else (control_dir or Path()) / CONTROL_TRUST_NAME
        self._ca = b""
        self._channel: Any = None
        self._stub: Any = None
        self._failures = 0

    def stub(self) -> Any:
        """The service, over the present channel. Raises Unavailable while there is no CA."""
        ca = self._read_trust()
        if self._channel is not None and (ca != self._ca or self._failures >= MAX_FAILURES):
            if ca != self._ca:
                log.info("the CA of the control plane has changed: connecting anew")
            self.close()
        if self._channel is None:
            self._ca, self._failures = ca, 0
            self._channel = self._open(ca)
            self._stub = rpc.CoordinatorStub(self._channel)
        return self._stub

    def metadata(self) -> list[tuple[str, str]]:
        """The token. Raises Unavailable where it cannot be read."""
        if not self._token_path:
            return []
        try:
            return [(TOKEN_METADATA, Path(self._token_path).read_text().strip())]
        except OSError as error:
            raise Unavailable(f"the token {self._token_path} cannot be read: {error.strerror}") from None

    def worked(self) -> None:
        """A call was answered."""
        self._failures = 0

    def failed(self) -> None:
        """A call was not."""
        self._failures += 1

    def close(self) -> None:
        """Close the channel; the next `stub` opens another."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _read_trust(self) -> bytes:
        if self._trust is None:
            return b""
        try:
            found = self._trust.read_bytes()
        except OSError as error:
            raise Unavailable(
                f"there is no CA to trust: {self._trust}: {error.strerror}; the operator puts it into the job's "
                "trust ConfigMap"
            ) from None
        if not found.strip():
            raise Unavailable(f"there is no CA to trust: {self._trust} is empty")
        return found

    def _open(self, ca: bytes) -> Any:
        if self._trust is None:
            return grpc.insecure_channel(self.target, options=_OPTIONS)
        return grpc.secure_channel(self.target, grpc.ssl_channel_credentials(root_certificates=ca), options=_OPTIONS)


def explain(error: Exception) -> str:
    """A failed call for a log line."""
    if isinstance(error, grpc.RpcError) and isinstance(error, grpc.Call):
        return f"{error.code().name}: {error.details()}"
    return str(error) if isinstance(error, Unavailable) else repr(error)
