"""A small threaded HTTP server for /metrics, /healthz and /readyz. Started twice by `main`; knows no answer itself.

Anybody may connect, so connections and their threads are bounded before a byte is read: where all are taken, the one
that has waited longest for its client's request gives way to the new one. A request that is there at once is answered
whatever others do.
"""

import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from lanefeed_operator.errors import OperatorError

__all__ = ["TEXT", "Answer", "HttpServer"]

log = logging.getLogger(__name__)

TEXT = "text/plain; charset=utf-8"
#: A client has this long for its whole request, and as long to take each half of the answer.
CLIENT_SECONDS = 5.0
#: Connections at once, a thread each.
MAX_CLIENTS = 16
#: How long a new connection waits for the thread of one that was dropped for it.
GIVE_WAY_SECONDS = 1.0

#: Status, content type, body.
Answer = tuple[int, str, bytes]


class HttpServer:
    """The running server. `port` is where it listens."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Callable[[], Answer]], setting: str) -> None:
        """Bind and serve. Raises OperatorError where the port is taken, naming the `setting` to change."""
        self._pages = dict(pages)
        try:
            self._server = _Server((host, port), self._handler())
        except OSError as error:
            raise OperatorError(
                f"cannot listen at {host}:{port}: {error.strerror or error}; set {setting} to a free port"
            ) from None
        self.port: int = self._server.server_address[1]
        # Polling rarely: `close` waits for one poll, and a busy machine should not wake up for nothing.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.25,), name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(2.0)

    def _answer(self, path: str) -> Answer:
        page = self._pages.get(path)
        if page is None:
            return 404, TEXT, f"there is {', '.join(sorted(self._pages))}\n".encode()
        try:
            return page()
        except Exception:
            # The supervisor's edge of one request: a page that breaks is a fault of ours, and must not read as healthy.
            log.exception("%s broke", path)
            return 500, TEXT, b"a fault of the operator's: see its log\n"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            timeout = CLIENT_SECONDS

            def do_GET(self) -> None:
                """Answer one request."""
                outer._server.heard(self.connection)
                status, kind, body = outer._answer(self.path.partition("?")[0])
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the base's name
                """Requests are not news."""
                log.debug(format, *args)

        return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Ours to close at once: a scrape in flight is worth nothing at the end.
    block_on_close = False
    # More than the base's 5: whoever finds the queue full tries again only a second later.
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self._free = threading.BoundedSemaphore(MAX_CLIENTS)
        self._lock = threading.Lock()
        #: Connections whose request has not come yet, the oldest first -> until when it must have.
        self._silent: dict[Any, float] = {}
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give the connection a thread; another one gives way, or it is closed where all are being answered."""
        if not self._free.acquire(blocking=False):
            self._drop_oldest()
            if not self._free.acquire(timeout=GIVE_WAY_SECONDS):
                self.shutdown_request(request)
                return
        with self._lock:
            self._silent[request] = time.monotonic() + CLIENT_SECONDS
        try:
            super().process_request(request, client_address)
        except BaseException:
            # No thread could be started: the caller closes the connection.
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """A connection's thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def heard(self, request: Any) -> None:
        """The request is there: from now on it is answered, within the time that writing may take."""
        with self._lock:
            self._silent.pop(request, None)

    def service_actions(self) -> None:
        """Called four times a second: whoever sends a byte now and then is over its time too."""
        now = time.monotonic()
        with self._lock:
            for request in [one for one, until in self._silent.items() if until <= now]:
                self._drop(request)

    def shutdown_request(self, request: Any) -> None:
        """Close it; forgotten first, so that a descriptor's next owner is never shut down in its place."""
        self.heard(request)
        super().shutdown_request(request)

    def _drop_oldest(self) -> None:
        with self._lock:
            if self._silent:
                self._drop(next(iter(self._silent)))

    def _drop(self, request: Any) -> None:
        """Its thread finds the end of the stream, and ends. Call with the lock held."""
        del self._silent[request]
        try:
            request.shutdown(socket.SHUT_RDWR)
        except OSError:
            log.debug("a client was gone before it was dropped")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle is its own business; anything else is a fault of ours."""
        level = logging.DEBUG if isinstance(sys.exc_info()[1], OSError) else logging.ERROR
        log.log(level, "a request of %s failed", client_address, exc_info=level == logging.ERROR)
