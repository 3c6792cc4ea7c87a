"""GETs of byte ranges over HTTP: kept connections, deadlines, and answers that are checked before they are believed.

Called by the `http` and `s3` stores from read threads. One try each; every way to fail has a kind. The standard library
is enough here, and its sockets can be cut from another thread, which a hedged read needs.
"""

import email.utils
import http.client
import io
import re
import socket
import ssl
import threading
import time
import urllib.request
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

from lanefeed_sidecar.sources.objects import Attempt, ReadFailed

__all__ = ["Answer", "Client", "Timeouts", "retry_after"]

_AGENT = "lanefeed"
_BLOCK = 1 << 20
_MAX_ERROR = 64 << 10
_REDIRECTS = 5
#: A connection that nobody used for so long was probably closed by the other side.
_IDLE_SECONDS = 50.0
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)$")
_STALE = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds: to connect, without one byte, and for a whole read of `size` bytes, redirects and headers included."""

    connect: float = 10.0
    silent: float = 20.0
    #: Bytes a second below which a read is given up.
    slowest: float = 64e3

    def whole(self, size: int) -> float:
        """The most that a read may take."""
        return self.silent + size / self.slowest


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. `version`: its ETag, else its time; `total`: bytes of the object, -1 where unknown."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes = b""

    @property
    def version(self) -> str:
        """What the server says of the object's version."""
        return self.headers.get("ETag") or self.headers.get("Last-Modified") or ""

    @property
    def total(self) -> int:
        """Bytes of the object."""
        found = re.search(r"/(\d+)$", self.headers.get("Content-Range", ""))
        return int(found[1]) if found else int(self.headers.get("Content-Length") or -1) if self.status == 200 else -1


class Client:
    """Connections to any number of hosts. Thread safe."""

    def __init__(self, timeouts: Timeouts | None = None) -> None:
        """Connects at the first request."""
        self.timeouts = timeouts or Timeouts()
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, str], list[tuple[float, http.client.HTTPConnection]]] = {}
        self._tls: ssl.SSLContext | None = None
        self._closed = False

    # ---- requests ----------------------------------------------------------------------------------------------

    def read(self, url: str, start: int, view: memoryview, attempt: Attempt, headers: dict[str, str]) -> Answer:
        """Fill `view` with the bytes from `start`. Raises ReadFailed unless exactly those came."""
        wanted = f"bytes={start}-{start + len(view) - 1}"
        return self._get(url, {**headers, "Range": wanted}, (start, view), attempt)

    def get(self, url: str, headers: dict[str, str] | None = None, limit: int = 8 << 20) -> Answer:
        """A whole small answer with its body."""
        return self._get(url, headers or {}, None, Attempt(), limit)

    def _get(
        self,
        url: str,
        headers: dict[str, str],
        into: tuple[int, memoryview] | None,
        attempt: Attempt,
        limit: int = 0,
    ) -> Answer:
        deadline = time.monotonic() + self.timeouts.whole(len(into[1]) if into else limit)
        for _ in range(_REDIRECTS):
            answer = self._once(urlsplit(url), headers, into, attempt, deadline, limit)
            target = answer.headers.get("Location")
            if answer.status not in (301, 302, 303, 307, 308) or not target:
                return answer
            url = urljoin(url, target)
        raise ReadFailed("refused", f"more than {_REDIRECTS} redirects")

    def _once(
        self,
        url: SplitResult,
        headers: dict[str, str],
        into: tuple[int, memoryview] | None,
        attempt: Attempt,
        deadline: float,
        limit: int,
    ) -> Answer:
        connection, kept = self._take(url)
        response: http.client.HTTPResponse | None = None
        try:
            try:
                response = self._ask(connection, url, headers, attempt, deadline)
            except _STALE:
                if not kept or attempt.cancelled:
                    raise
                # The other side had closed it while it was idle: no failure of this read.
                connection.close()
                connection = self._connect(url)
                response = self._ask(connection, url, headers, attempt, deadline)
            answer = self._receive(response, into, limit)
        except BaseException as error:
            attempt.holds(None)
            connection.close()
            if response is not None:
                # The connection forgets a response after which it closes.
                response.close()
            if attempt.cancelled:
                raise ReadFailed("cancelled", "another read was quicker") from None
            raise _failure(error) from error
        attempt.holds(None)
        if response.will_close or not response.isclosed():
            connection.close()
            response.close()
        else:
            self._give_back(url, connection)
        return answer

    def _ask(
        self,
        connection: http.client.HTTPConnection,
        url: SplitResult,
        headers: dict[str, str],
        attempt: Attempt,
        deadline: float,
    ) -> http.client.HTTPResponse:
        connection.response_class = partial(_Response, deadline=deadline)  # type: ignore[assignment]
        if connection.sock is None:
            connection.connect()
        if connection.sock is not None:
            # Of a kept one too: the end of its former read may have been near.
            connection.sock.settimeout(self.timeouts.silent)
        attempt.holds(connection.sock)
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        if getattr(connection, "through_proxy", False):
            target = url.geturl()
        about = {"Host": url.netloc.rpartition("@")[2], "User-Agent": _AGENT, "Accept-Encoding": "identity"}
        connection.request("GET", target, headers={**about, **headers})
        return connection.getresponse()

    def _receive(self, response: http.client.HTTPResponse, into: tuple[int, memoryview] | None, limit: int) -> Answer:
        if into is None or response.status not in (200, 206):
            most = limit if response.status < 400 and into is None else _MAX_ERROR
            return Answer(response.status, response.headers, response.read(most))
        start, view = into
        _check_range(response, start, len(view))
        at = 0
        while at < len(view):
            got = response.readinto(view[at : at + _BLOCK])
            if not got:
                raise ReadFailed("short", f"the body ended after {at} of {len(view)} bytes")
            at += got
        # The end of the body is read too, or the connection cannot be used again.
        if response.length == 0 or not response.read(1):
            response.close()
        return Answer(response.status, response.headers)

    # ---- connections -------------------------------------------------------------------------------------------

    def _take(self, url: SplitResult) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            idle = self._idle.get((url.scheme, url.netloc), [])
            while idle:
                since, connection = idle.pop()
                if time.monotonic() - since < _IDLE_SECONDS:
                    return connection, True
                connection.close()
        return self._connect(url), False

    def _connect(self, url: SplitResult) -> http.client.HTTPConnection:
        host, port = url.hostname or "", url.port
        proxy = None if urllib.request.proxy_bypass(host) else urllib.request.getproxies().get(url.scheme)
        at = urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy else None
        there = (at.hostname or "", at.port) if at else (host, port)
        if url.scheme != "https":
            plain = http.client.HTTPConnection(*there, timeout=self.timeouts.connect)
            plain.through_proxy = at is not None  # type: ignore[attr-defined]
            return plain
        secure = http.client.HTTPSConnection(*there, timeout=self.timeouts.connect, context=self._context())
        if at is not None:
            secure.set_tunnel(host, port)
        return secure

    def _context(self) -> ssl.SSLContext:
        with self._lock:
            if self._tls is None:
                self._tls = ssl.create_default_context()
            return self._tls

    def _give_back(self, url: SplitResult, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.setdefault((url.scheme, url.netloc), []).append((time.monotonic(), connection))
                return
        connection.close()

    def close(self) -> None:
        """Close idle connections."""
        with self._lock:
            self._closed = True
            for kept in self._idle.values():
                for _, connection in kept:
                    connection.close()
            self._idle.clear()


class _Response(http.client.HTTPResponse):
    """An answer whose every byte, headers and the bodies of errors included, comes before a deadline."""

    def __init__(self, sock: socket.socket, *more: Any, deadline: float, **named: Any) -> None:
        """As the connection makes it; `deadline`: by the monotonic clock."""
        super().__init__(sock, *more, **named)
        self.fp = io.BufferedReader(_InTime(self.fp.detach(), sock, deadline))


class _InTime(io.RawIOBase):
    """Bytes of a socket until the deadline.

    A socket's own timeout begins anew with each byte, and a buffered reader asks until it has all that it was asked
    for: a server that sends a byte now and then would hold a reader for as long as it likes.
    """

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, deadline: float) -> None:
        """`raw` reads from `sock`, and is closed with this."""
        self._raw, self._sock, self._deadline = raw, sock, deadline
        self._came = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """What is there, after a wait for the first byte. Raises ReadFailed after the deadline, or TimeoutError."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise ReadFailed("timeout", f"it came too slowly: {self._came} bytes of the answer when its time was over")
        if left < (self._sock.gettimeout() or left + 1):
            self._sock.settimeout(left)
        got = self._raw.readinto(buffer) or 0
        self._came += got
        return got

    def close(self) -> None:
        """Let go of the socket."""
        self._raw.close()
        super().close()


def _check_range(response: http.client.HTTPResponse, start: int, length: int) -> None:
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise ReadFailed("range", f"the answer is {response.headers['Content-Encoding']}-encoded, not the object")
    if response.status == 200:
        if start == 0 and response.length == length:
            return
        raise ReadFailed("range", "the server sent the whole object instead of the range: it must serve ranges")
    said = response.headers.get("Content-Range", "")
    found = _RANGE.match(said)
    if not found or (int(found[1]), int(found[2])) != (start, start + length - 1):
        raise ReadFailed("range", f"asked for bytes {start}-{start + length - 1}, the answer is {said or 'unnamed'}")
    if response.length is not None and response.length < length:
        raise ReadFailed("short", f"the answer has {response.length} bytes and should have {length}")


def _failure(error: BaseException) -> BaseException:
    """The failure that an exception of a try means; what is no failure of reading stays itself."""
    if isinstance(error, TimeoutError):
        return ReadFailed("timeout", "no byte came in time")
    if isinstance(error, ssl.SSLCertVerificationError):
        return ReadFailed("refused", f"its certificate is not trusted: {error.verify_message} (see SSL_CERT_FILE)")
    if isinstance(error, ConnectionRefusedError | socket.gaierror):
        return ReadFailed("connect", f"no connection: {error.strerror}")
    if isinstance(error, http.client.IncompleteRead):
        return ReadFailed("short", "the body ended early")
    if isinstance(error, OSError | http.client.HTTPException):
        return ReadFailed("reset", f"the connection broke: {error or type(error).__name__}")
    return error


def retry_after(said: str, now: float) -> float:
    """Seconds that a header Retry-After asks to wait, in seconds or until a date; 0 where it asks for none.

    `now`: seconds since 1970.
    """
    said = said.strip()
    if said.isdigit():
        return float(said)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(said).timestamp() - now) if said else 0.0
    except (ValueError, TypeError):
        return 0.0
