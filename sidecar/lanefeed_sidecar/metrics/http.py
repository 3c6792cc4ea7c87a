"""/metrics, /healthz, /readyz and /leave on one small threaded server: for Prometheus, kubelet and the local runner.

Every pod of a cluster reaches it. `places` bounds the connections and their time, this module what they may ask for.
"""

import contextlib
import hmac
import logging
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from lanefeed_core.wire import LEAVE_PATH
from lanefeed_sidecar.errors import ConfigError
from lanefeed_sidecar.metrics.health import Health
from lanefeed_sidecar.metrics.places import Places

__all__ = ["MetricsServer"]

log = logging.getLogger(__name__)

#: A client has so long for its whole request, and as long to take the answer.
CLIENT_SECONDS = 5.0
#: Scrapes that are answered at once, and hooks that wait; more are turned away.
MAX_CLIENTS = 16
MAX_LEAVING = 2
#: Connections at once, each a thread: with all those, some are left for probes, whose answers take no time.
MAX_CONNECTIONS = MAX_CLIENTS + MAX_LEAVING + 4
TEXT = "text/plain; charset=utf-8"
#: The kubelet's preStop hook of the trainer (feed/leave.py).
MAX_LEAVE_SECONDS = 86_400.0


class MetricsServer:
    """The running server. `address` is host:port."""

    def __init__(self, host: str, port: int, health: Health) -> None:
        """Bind and serve. Raises ConfigError where the port is taken."""
        self._health = health
        #: Makes the text of /metrics; set once there is something to show.
        self.render: Callable[[], bytes] = lambda: b""
        #: Waits until the trainer may be ended, at most that many seconds after a stop was agreed, and says why.
        self.leave: Callable[[float], str] = lambda _seconds: "nothing runs yet"
        #: What whoever asks for `leave` must know: the job's UID, which pods of others cannot read. "": nobody may.
        self.leave_key = ""
        self._busy = threading.BoundedSemaphore(MAX_CLIENTS)
        # These wait for long: probes must not have to.
        self._leaving = threading.BoundedSemaphore(MAX_LEAVING)
        self._places = Places(MAX_CONNECTIONS, CLIENT_SECONDS)
        try:
            self._server = _Server((host, port), self._handler(), self._places)
        except OSError as error:
            raise ConfigError(
                f"the metrics port {host}:{port} cannot be used: {error.strerror}; set sidecar.metricsPort "
                "to a free one, or to 0"
            ) from None
        self.address = f"{host}:{self._server.server_address[1]}"
        thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True)
        thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def may_leave(self, query: str) -> bool:
        """Whether the request knows the job's UID: the port is open to every pod of a cluster."""
        given = parse_qs(query).get("job", [""])[-1]
        return bool(self.leave_key) and hmac.compare_digest(given.encode(), self.leave_key.encode())

    def answer(self, path: str, query: str = "") -> tuple[int, str, bytes]:
        """Status, content type and body for a path."""
        if path == LEAVE_PATH:
            seconds = _number(parse_qs(query).get("seconds", [""])[-1])
            return 200, TEXT, f"{self.leave(min(seconds, MAX_LEAVE_SECONDS))}\n".encode()
        if path == "/metrics":
            return 200, "text/plain; version=0.0.4; charset=utf-8", self.render()
        if path == "/healthz":
            return 200, TEXT, b"ok\n"
        if path == "/readyz":
            reason = self._health.reason
            return (503, TEXT, f"{reason}\n".encode()) if reason else (200, TEXT, b"ready\n")
        return 404, TEXT, b"there is /metrics, /healthz, /readyz and /leave\n"

    def _room(self, path: str) -> threading.BoundedSemaphore | None:
        """What bounds the answers to that path that are made at once. None: they take no time."""
        return {LEAVE_PATH: self._leaving, "/metrics": self._busy}.get(path)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            timeout = CLIENT_SECONDS

            def do_GET(self) -> None:
                """Answer one request."""
                path, _, query = self.path.partition("?")
                if path == LEAVE_PATH and not outer.may_leave(query):
                    self.send_error(403, "this is the kubelet's: name the job's UID")
                    return
                room = outer._room(path)
                if room is not None and not room.acquire(blocking=False):
                    self.send_error(503, "too many clients")
                    return
                with contextlib.ExitStack() as stack:
                    if room is not None:
                        stack.callback(room.release)
                    stack.enter_context(outer._places.answering(self.connection))
                    status, kind, body = outer.answer(path, query)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the base's name
                """Requests are not news."""
                log.debug(format, *args)

        return Handler


def _number(text: str) -> float:
    """Seconds out of a query; 0 where there are none."""
    return float(text) if text.isdecimal() else 0.0


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Ours to close at once: a scrape in flight is worth nothing at the end.
    block_on_close = False
    # A probe that came beside a crowd is not to wait for a second SYN.
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], places: Places) -> None:
        self._places = places
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for it, where there is a place; else it is closed at once."""
        if self._places.take(request, str(client_address[0])):
            super().process_request(request, client_address)
        else:
            log.debug("%s was turned away: all connections are in use", client_address)
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Its thread is done with it, or it never had one."""
        self._places.release(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Whenever the server looks: several times a second."""
        self._places.cut_late()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle is its own business; anything else is a fault of ours."""
        level = logging.DEBUG if isinstance(sys.exc_info()[1], OSError) else logging.ERROR
        log.log(level, "a request of %s failed", client_address, exc_info=level == logging.ERROR)
