"""A small threaded HTTP server for /metrics, /healthz and /readyz. Started twice by `main`; knows no answer itself."""

import logging
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from lanefeed_operator.errors import OperatorError

__all__ = ["TEXT", "Answer", "HttpServer"]

log = logging.getLogger(__name__)

TEXT = "text/plain; charset=utf-8"
#: A client that sends nothing is dropped after this long; more at once than that are turned away.
CLIENT_SECONDS = 5.0
MAX_CLIENTS = 16

#: Status, content type, body.
Answer = tuple[int, str, bytes]


class HttpServer:
    """The running server. `port` is where it listens."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Callable[[], Answer]], setting: str) -> None:
        """Bind and serve. Raises OperatorError where the port is taken, naming the `setting` to change."""
        self._pages = dict(pages)
        self._busy = threading.BoundedSemaphore(MAX_CLIENTS)
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
                if not outer._busy.acquire(blocking=False):
                    self.send_error(503, "too many clients")
                    return
                try:
                    status, kind, body = outer._answer(self.path.partition("?")[0])
                finally:
                    outer._busy.release()
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

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle is its own business; anything else is a fault of ours."""
        level = logging.DEBUG if isinstance(sys.exc_info()[1], OSError) else logging.ERROR
        log.log(level, "a request of %s failed", client_address, exc_info=level == logging.ERROR)
