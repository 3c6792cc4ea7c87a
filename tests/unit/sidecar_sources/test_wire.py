"""A server that sends a byte now and then holds no reader for longer than a read may take."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lanefeed_sidecar.sources.objects import Attempt, ReadFailed
from lanefeed_sidecar.sources.wire import Client, Timeouts

SIZE = 4096
#: Seconds that a read may take; a server drips for twenty times as long.
WHOLE = 1.0
PAUSE, DRIPS = 0.05, 400


@contextmanager
def server(begin: bytes, drips: int) -> Iterator[tuple[str, list[int]]]:
    """A web server that answers one request: `begin` at once, then so many drips. Its URL, and the drips it sent."""
    listening, over, sent = socket.create_server(("127.0.0.1", 0)), threading.Event(), list[int]()

    def serve() -> None:
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(begin)
            while len(sent) < drips and not over.wait(PAUSE):
                connection.sendall(b"1")
                sent.append(1)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/a.parquet", sent
    finally:
        over.set()
        thread.join(60)
        listening.close()


def head(status: str, length: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Range: bytes 0-{SIZE - 1}/{SIZE}\r\n{length}\r\n\r\n".encode()


@pytest.mark.parametrize(
    "begin",
    [
        head("206 Partial Content", f"Content-Length: {SIZE}"),
        head("206 Partial Content", "Transfer-Encoding: chunked") + b"1000\r\n",
        head("503 Slow Down", f"Content-Length: {SIZE}"),
        b"HTTP/1.1 206 Partial Content\r\nServer: ",
        b"",
    ],
    ids=["body", "chunk", "error", "headers", "status"],
)
def test_an_answer_that_drips_is_given_up(begin: bytes) -> None:
    """Each byte of it comes in time, the whole does not."""
    client = Client(Timeouts(connect=60, silent=WHOLE, slowest=1e9))
    with server(begin, DRIPS) as (url, sent):
        with pytest.raises(ReadFailed, match="came") as caught:
            client.read(url, 0, memoryview(bytearray(SIZE)), Attempt(), {})
        assert len(sent) < DRIPS, "it was not waited for to the end"
    client.close()
    assert caught.value.kind == "timeout"


def test_a_small_answer_that_drips_is_given_up() -> None:
    client = Client(Timeouts(connect=60, silent=WHOLE, slowest=1e9))
    with server(head("200 OK", f"Content-Length: {SIZE}"), DRIPS) as (url, sent):
        with pytest.raises(ReadFailed) as caught:
            client.get(url)
        assert len(sent) < DRIPS
    client.close()
    assert caught.value.kind == "timeout"


def test_an_answer_that_drips_and_ends_in_time_is_one() -> None:
    client = Client(Timeouts(connect=60, silent=60, slowest=1e9))
    view = bytearray(SIZE)
    begin = head("206 Partial Content", f"Content-Length: {SIZE}") + b"1" * (SIZE - 3)
    with server(begin, 3) as (url, _):
        assert client.read(url, 0, memoryview(view), Attempt(), {}).status == 206
    client.close()
    assert view == b"1" * SIZE
