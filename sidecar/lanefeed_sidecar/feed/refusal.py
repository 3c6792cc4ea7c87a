"""A Feed service that answers every call with the error that kept the sidecar from starting.

Served by the supervisor in a cluster, where a sidecar that cannot go on stays up: trainers that wait for it learn why
at once, and leave, instead of waiting until their deadline.
"""

from collections.abc import Iterator

import grpc

from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.proto import lanefeed_pb2_grpc as rpc
from lanefeed_sidecar.errors import SidecarError
from lanefeed_sidecar.feed.service import abort

__all__ = ["Refusal"]


class Refusal(rpc.FeedServicer):
    """No rank may attach."""

    def __init__(self, error: SidecarError) -> None:
        """`error`: why."""
        self._error = error

    def Attach(self, request: pb.AttachRequest, context: grpc.ServicerContext) -> pb.AttachReply:
        """Refused."""
        abort(context, self._error)

    def Commit(self, request: pb.CommitRequest, context: grpc.ServicerContext) -> pb.CommitReply:
        """Refused."""
        abort(context, self._error)

    def Stream(self, requests: Iterator[pb.ClientMessage], context: grpc.ServicerContext) -> Iterator[pb.ServerMessage]:
        """Refused."""
        abort(context, self._error)
