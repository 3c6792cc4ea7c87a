"""A proxy between a client and a real HTTP server that is slow, unreliable or wrong, as a test says.

Everything goes through: it adds latency, caps the bandwidth of all connections together, and plants one fault in a
request that `plan` picks. It keeps a log of all requests, so that tests count instead of timing.
"""

from __future__ import annotations

import http.client
import http.server
import socket
import socketserver
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

#: Faults that `plan` may name.
FAULTS = ("stall", "silent", "reset", "503", "500", "range", "truncate", "flip", "expired", "denied", "whole")
_BLOCK = 64 << 10


@dataclass(frozen=True)
class Seen:
    """One request."""

    at: float
    method: str
    path: str
    range: str
    fault: str
    key: str


@dataclass
class FaultProxy:
    """Serves at `port` what the server at `upstream` (a port of this machine) has."""

    upstream: int
    latency: float = 0.0
    #: Bytes a second of all bodies together; 0: no cap.
    cap: float = 0.0
    #: What to do to a request: a fault's name, or "".
    plan: Callable[[Seen], str] = lambda _: ""
    retry_after: float = 1.0
    #: How long "stall" and "silent" hang.
    hang: float = 60.0
    #: Access key that is accepted; others are told that their token has expired. "": any.
    accepted_key: str = ""
    log: list[Seen] = field(default_factory=list)
    #: Nothing gets through: connections are reset at once.
    down: bool = False

    def __enter__(self) -> FaultProxy:
        self._lock = threading.Lock()
        self._free_at = 0.0
        self._ended = threading.Event()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.cut()
        self._server.server_close()
        self._thread.join(60)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def counts(self) -> Counter[str]:
        """Requests by fault; "" are those that went through."""
        return Counter(seen.fault for seen in self.log)

    def ranged(self) -> list[Seen]:
        """Reads of data."""
        return [seen for seen in self.log if seen.range]

    def most_in(self, seconds: float, since: float = 0.0) -> int:
        """The most requests that came within so many seconds."""
        times = [seen.at for seen in self.log if seen.at >= since]
        return max((sum(t <= u < t + seconds for u in times) for t in times), default=0)

    def note(self, seen: Seen) -> None:
        with self._lock:
            self.log.append(seen)

    def wait(self, seconds: float) -> None:
        self._ended.wait(seconds)

    def pay(self, size: int) -> None:
        """Wait until the line is free for so many bytes."""
        if not self.cap:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(now, self._free_at) + size / self.cap
            pause = self._free_at - now
        self._ended.wait(pause)


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.open: set[socket.socket] = set()

    def process_request(self, request, client_address):  # type: ignore[no-untyped-def]
        self.open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request):  # type: ignore[no-untyped-def]
        self.open.discard(request)
        super().shutdown_request(request)

    def cut(self) -> None:
        for one in list(self.open):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def handle_error(self, request, client_address) -> None:  # type: ignore[no-untyped-def]
        """A client that went away is what faults are about."""


def reset(connection: socket.socket) -> None:
    """End a connection with an RST."""
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass
    connection.close()


class _Handler(http.server.BaseHTTPRequestHandler):
    owner: FaultProxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.up: http.client.HTTPConnection | None = None

    def finish(self) -> None:
        if self.up is not None:
            self.up.close()
        try:
            super().finish()
        except OSError:
            pass

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""

    def do_GET(self) -> None:
        owner = self.owner
        if owner.down:
            owner.note(Seen(time.monotonic(), self.command, self.path, "", "down", ""))
            return self._cut()
        seen = Seen(time.monotonic(), self.command, self.path, self.headers.get("Range", ""), "", _key(self))
        fault = owner.plan(seen)
        if owner.accepted_key and seen.key and seen.key != owner.accepted_key:
            fault = "expired"
        owner.note(Seen(seen.at, seen.method, seen.path, seen.range, fault, seen.key))
        owner.wait(owner.latency)
        if fault == "silent":
            owner.wait(owner.hang)
            return self._cut()
        if fault in ("503", "500", "expired", "denied"):
            return self._refuse(fault)
        return self._forward(fault)

    do_HEAD = do_PUT = do_POST = do_GET

    def _refuse(self, fault: str) -> None:
        status, code = {
            "503": (503, "SlowDown"),
            "500": (500, "InternalError"),
            "expired": (403, "ExpiredToken"),
            "denied": (403, "AccessDenied"),
        }[fault]
        body = f"<Error><Code>{code}</Code><Message>as the test says</Message></Error>".encode()
        self.send_response(status)
        if fault == "503":
            self.send_header("Retry-After", f"{self.owner.retry_after:.0f}")
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _forward(self, fault: str) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size) if size else None
        headers = {k.title(): v for k, v in self.headers.items()}
        for name in ("Connection", "Transfer-Encoding"):
            headers.pop(name, None)
        if fault == "whole":
            headers.pop("Range", None)
        if fault == "range" and "Range" in headers:
            first, last = headers["Range"].removeprefix("bytes=").split("-")
            shift = 1 if int(first) else -1
            headers["Range"] = f"bytes={int(first) - shift}-{int(last) - shift}"
        if self.up is None:
            self.up = http.client.HTTPConnection("127.0.0.1", self.owner.upstream, timeout=60)
        self.up.request(self.command, self.path, body, headers)
        answer = self.up.getresponse()
        data = answer.read()
        if answer.will_close:
            self.up.close()
            self.up = None
        if fault == "flip" and data:
            middle = len(data) // 2
            data = data[:middle] + bytes([data[middle] ^ 0x40]) + data[middle + 1 :]
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in ("connection", "server", "date", "content-length", "transfer-encoding"):
                self.send_header(name, value)
        length = answer.headers.get("Content-Length") if self.command == "HEAD" else len(data)
        self.send_header("Content-Length", str(length or 0))
        self.end_headers()
        if self.command != "HEAD":
            self._send(data, fault)

    def _send(self, data: bytes, fault: str) -> None:
        stop = len(data) // 2 if fault in ("stall", "reset", "truncate") else len(data)
        view = memoryview(data)[:stop]
        for at in range(0, stop, _BLOCK):
            part = view[at : at + _BLOCK]
            self.owner.pay(len(part))
            self.wfile.write(part)
        if fault == "stall":
            self.owner.wait(self.owner.hang)
        if fault in ("stall", "reset"):
            return self._cut()
        if fault == "truncate":
            self.close_connection = True
        return None

    def _cut(self) -> None:
        self.close_connection = True
        reset(self.connection)


def _key(handler: http.server.BaseHTTPRequestHandler) -> str:
    """The access key that signed the request, in its URL or its header."""
    query = parse_qs(urlsplit(handler.path).query)
    given = query.get("X-Amz-Credential", [""])[0]
    said = handler.headers.get("Authorization", "")
    if "Credential=" in said:
        given = said.split("Credential=")[1]
    return given.split("/")[0]
