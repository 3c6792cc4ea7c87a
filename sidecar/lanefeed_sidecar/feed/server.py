"""The gRPC server on the pod's Unix socket: token, message cap, bounded threads, no keepalive that kills the frozen.

A Unix socket authenticates nobody: whoever may enter the folder (mode 0750) must also show the pod's token, in every
call, compared in constant time.
"""

import hmac
import logging
import os
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from lanefeed_core.proto import lanefeed_pb2_grpc as rpc
from lanefeed_core.wire import MAX_MESSAGE_BYTES, TOKEN_METADATA
from lanefeed_sidecar.errors import AuthError, ConfigError
from lanefeed_sidecar.feed.service import abort
from lanefeed_sidecar.pipeline.stats import Stats

__all__ = ["FeedServer"]

log = logging.getLogger(__name__)

#: A trainer that is stopped in a debugger answers no ping; it must find its stream when it goes on.
NEVER_MS = 2**31 - 1


class _TokenCheck(grpc.ServerInterceptor):
    """Refuses every call that does not show the token."""

    def __init__(self, token: str, stats: Stats) -> None:
        self._token, self._stats = token.encode(), stats

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """gRPC's hook: the handler to use."""
        given = next((v for k, v in details.invocation_metadata if k == TOKEN_METADATA), "")
        sent = given.encode() if isinstance(given, str) else given
        handler = continuation(details)
        if handler is None or hmac.compare_digest(sent, self._token):
            return handler
        self._stats.error(AuthError.__name__)

        def refuse(_request: Any, context: grpc.ServicerContext) -> None:
            what = "wrong" if sent else "missing"
            abort(
                context,
                AuthError(f"the token is {what}: send the text of the run folder's file `token` as {TOKEN_METADATA}"),
            )

        if handler.request_streaming and handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(
                refuse, handler.request_deserializer, handler.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(refuse, handler.request_deserializer, handler.response_serializer)


class FeedServer:
    """The running server."""

    def __init__(self, service: rpc.FeedServicer, socket: Path, token: str, *, ranks: int, stats: Stats) -> None:
        """Bind the socket; raises ConfigError where that fails."""
        # Two streams a rank (a new one while the old one ends), the unary calls, and streams that have not begun.
        threads = 3 * ranks + 12
        self._server = grpc.server(
            futures.ThreadPoolExecutor(threads, thread_name_prefix="feed"),
            interceptors=(_TokenCheck(token, stats),),
            # Calls that wait for a thread, so that a flood of refused ones turns no trainer away.
            maximum_concurrent_rpcs=threads + 256,
            options=[
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_concurrent_streams", threads),
                ("grpc.keepalive_time_ms", NEVER_MS),
                ("grpc.http2.max_ping_strikes", 0),
                ("grpc.so_reuseport", 0),
            ],
        )
        rpc.add_FeedServicer_to_server(service, self._server)
        try:
            self._server.add_insecure_port(f"unix:{socket}")
        except RuntimeError as error:
            raise ConfigError(f"cannot listen at {socket}: {error}") from None
        # Connecting needs write permission; the folder keeps strangers out, the group is the trainer's.
        os.chmod(socket, 0o660)

    def start(self) -> None:
        """Accept calls."""
        self._server.start()

    def stop(self, grace: float) -> None:
        """Refuse new calls, give the present ones `grace` seconds, then cancel them."""
        self._server.stop(grace).wait(grace + 1.0)
