"""The Feed servicer: a thin edge between gRPC and the hub. Errors become status codes here and nowhere else."""

import logging
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import grpc

from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_core.proto import lanefeed_pb2_grpc as rpc
from lanefeed_sidecar.errors import AuthError, ProtocolMismatch, SidecarError
from lanefeed_sidecar.feed.commits import Committer
from lanefeed_sidecar.feed.hub import Hub
from lanefeed_sidecar.feed.life import Life
from lanefeed_sidecar.feed.messages import MAX_TEXT

__all__ = ["ERROR_METADATA", "FeedService", "abort"]

log = logging.getLogger(__name__)

#: Trailing metadata that names the error's kind.
ERROR_METADATA = "lanefeed-error"
#: How long a stream may take to say whose it is.
BEGIN_SECONDS = 10.0


def abort(context: grpc.ServicerContext, error: SidecarError) -> NoReturn:
    """End the call with the error's status, kind and text."""
    if isinstance(error, AuthError):
        code = grpc.StatusCode.UNAUTHENTICATED
    elif error.retryable:
        code = grpc.StatusCode.UNAVAILABLE
    else:
        code = grpc.StatusCode.FAILED_PRECONDITION
    context.set_trailing_metadata(((ERROR_METADATA, error.kind),))
    context.abort(code, str(error)[:MAX_TEXT])
    raise AssertionError("abort returned")


class FeedService(rpc.FeedServicer):
    """Attach, Stream and Commit of one pod's ranks."""

    def __init__(self, hub: Hub, committer: Committer) -> None:
        """Serve `hub`."""
        self._hub, self._committer = hub, committer
        #: Streams that have not said yet whose they are: each holds a thread.
        self._waiting = threading.BoundedSemaphore(len(hub.ranks) + 4)

    def Attach(self, request: pb.AttachRequest, context: grpc.ServicerContext) -> pb.AttachReply:
        """A rank's handshake."""
        try:
            return self._hub.attach(request)
        except SidecarError as error:
            if not error.retryable:
                log.warning("rank %d may not attach: %s: %s", request.rank, error.kind, error)
            self._hub.stats.error(error.kind)
            abort(context, error)

    def Commit(self, request: pb.CommitRequest, context: grpc.ServicerContext) -> pb.CommitReply:
        """A rank's checkpoint is durable."""
        try:
            return self._committer.commit(request)
        except SidecarError as error:
            log.warning("the commit of rank %d failed: %s", request.rank, error)
            self._hub.stats.error(error.kind)
            abort(context, error)

    def Stream(self, requests: Iterator[pb.ClientMessage], context: grpc.ServicerContext) -> Iterator[pb.ServerMessage]:
        """A rank's stream: progress up, frames and events down."""
        if not self._waiting.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams that have not sent Begin")
        try:
            uplink = _Uplink(self._hub, requests)
            life = uplink.wait(context)
        except SidecarError as error:
            self._hub.stats.error(error.kind)
            abort(context, error)
        finally:
            self._waiting.release()
        if not context.add_callback(lambda: self._hub.close_stream(life)):
            self._hub.close_stream(life)
            return
        try:
            yield from life.messages()
        except SidecarError as error:
            abort(context, error)
        finally:
            self._hub.close_stream(life)


class _Uplink:
    """Reads what the trainer sends, in a thread of its own: gRPC's iterator has no timeout."""

    def __init__(self, hub: Hub, requests: Iterator[pb.ClientMessage]) -> None:
        self._hub, self._requests = hub, requests
        self._begun = threading.Event()
        self._life: Life | None = None
        self._error: SidecarError | None = None
        threading.Thread(target=self._run, name="uplink", daemon=True).start()

    def wait(self, context: Any) -> Life:
        """The life that the stream's Begin names. Raises SidecarError."""
        if not self._begun.wait(BEGIN_SECONDS):
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"a stream must send Begin within {BEGIN_SECONDS:.0f} s")
        if self._life is None:
            raise self._error or ProtocolMismatch("the stream ended before it sent Begin")
        return self._life

    def _run(self) -> None:
        try:
            for message in self._requests:
                self._take(message)
        except SidecarError as error:
            self._fail(error)
        except Exception as error:
            # gRPC raises a bare Exception from the iterator when the call is over, whatever ended it.
            log.debug("uplink ended: %r", error)
        finally:
            self._begun.set()
            if self._life is not None and self._error is None:
                # Half-closed: no slot will come back, so nothing more can be sent.
                self._hub.close_stream(self._life)

    def _take(self, message: pb.ClientMessage) -> None:
        if self._life is not None and message.HasField("progress"):
            self._life.progress(message.progress)
            if message.progress.stop_wanted:
                self._hub.stop_wanted()
        elif self._life is None and message.HasField("begin"):
            self._life = self._hub.open_stream(message.begin)
            self._begun.set()
        else:
            raise ProtocolMismatch("a stream sends Begin once, first, and then Progress")

    def _fail(self, error: SidecarError) -> None:
        self._error = error
        if self._life is not None:
            log.warning("rank %d: %s", self._life.rank, error)
            self._hub.stats.error(error.kind)
            self._life.fail(error)
