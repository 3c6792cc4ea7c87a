"""The metrics port is open to every pod: whoever holds connections takes no threads, and keeps no probe or hook out."""

import contextlib
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest

from lanefeed_sidecar.metrics import http, places
from lanefeed_sidecar.metrics.health import Health
from lanefeed_sidecar.metrics.http import MAX_CLIENTS, MAX_CONNECTIONS, MetricsServer
from lanefeed_sidecar.metrics.places import Places

CROWD = 200


class Port:
    """A server, and the clients of this test."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.server = MetricsServer("127.0.0.1", 0, Health())
        stack.callback(self.server.close)
        self._stack = stack
        host, _, port = self.server.address.rpartition(":")
        self._place = (host, int(port))

    def connect(self, said: bytes = b"") -> socket.socket:
        client = self._stack.enter_context(socket.create_connection(self._place, timeout=60))
        # Where it was cut meanwhile, that is what the caller finds.
        with contextlib.suppress(OSError):
            client.sendall(said)
        return client

    def get(self, path: str) -> tuple[int, str]:
        with urllib.request.urlopen(f"http://{self.server.address}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()


@pytest.fixture
def port() -> Iterator[Port]:
    with contextlib.ExitStack() as stack:
        yield Port(stack)


def threads() -> int:
    """Those that serve a connection."""
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def ended(client: socket.socket) -> bool:
    """Whether the server has let go of it, within a minute."""
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("said", [b"", b"GET /metr"])
def test_a_crowd_that_asks_nothing_takes_no_threads_and_keeps_no_probe_out(port: Port, said: bytes) -> None:
    # By then none of them has been here for long: the time that each has is not what lets the probes in.
    most = 0
    for number in range(CROWD):
        port.connect(said)
        most = max(most, threads())
        if number % 50 == 49:
            assert port.get("/healthz") == (200, "ok\n")
    # One that was cut may be at its end still when its place has been given on.
    assert most <= 2 * MAX_CONNECTIONS < CROWD
    port.server.leave_key = "u-1"
    assert port.get("/leave?seconds=3&job=u-1") == (200, "nothing runs yet\n")


def test_a_byte_now_and_then_gains_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CLIENT_SECONDS", 1.0)
    with contextlib.ExitStack() as stack:
        port = Port(stack)
        clients = [port.connect(b"GET /") for _ in range(3)]
        end = time.monotonic() + 60
        for client in clients:
            client.settimeout(0.1)
        while clients:
            assert time.monotonic() < end, f"{len(clients)} clients still hold a thread"
            for client in list(clients):
                try:
                    client.sendall(b"x")
                    if client.recv(1) == b"":
                        clients.remove(client)
                except TimeoutError:
                    continue
                except ConnectionError:
                    clients.remove(client)
        assert port.get("/healthz") == (200, "ok\n")


def test_who_is_being_answered_is_not_sent_away(port: Port) -> None:
    """All scrapes that may be are in the making: probes and hooks find a place, and no crowd ends the scrapes."""
    hold, rendering = threading.Event(), threading.Semaphore(0)

    def render() -> bytes:
        rendering.release()
        hold.wait(60)
        return b"figures 1\n"

    port.server.render, port.server.leave_key = render, "u-1"
    try:
        scrapes = [port.connect(b"GET /metrics HTTP/1.0\r\n\r\n") for _ in range(MAX_CLIENTS)]
        assert all(rendering.acquire(timeout=60) for _ in scrapes)
        for _ in range(CROWD):
            port.connect()
        assert b"503" in port.connect(b"GET /metrics HTTP/1.0\r\n\r\n").recv(100)
        assert port.get("/healthz") == (200, "ok\n")
        assert port.get("/leave?seconds=3&job=u-1") == (200, "nothing runs yet\n")
        hold.set()
        for scrape in scrapes:
            with scrape.makefile("rb") as file:
                assert file.read().endswith(b"figures 1\n")
    finally:
        hold.set()


class Guests:
    """Places on a clock of their own, whose connections let go once they were cut."""

    def __init__(self, number: int) -> None:
        self.now = 0.0
        self.places = Places(number, 5.0, lambda: self.now)
        self.gone: list[str] = []

    def come(self, address: str) -> "Guest":
        guest = Guest(self, address)
        guest.came = self.places.take(guest, address)  # type: ignore[arg-type]
        return guest


class Guest:
    """Has what is asked of a socket."""

    came = False

    def __init__(self, guests: Guests, address: str) -> None:
        self._guests, self._address = guests, address

    def shutdown(self, _how: int) -> None:
        self._guests.gone.append(self._address)
        threading.Thread(target=self._guests.places.release, args=(self,)).start()


def test_the_one_that_waits_longest_of_the_largest_crowd_gives_way() -> None:
    guests = Guests(4)
    for second, address in enumerate(["kubelet", "crowd", "crowd", "other"]):
        guests.now = float(second)
        assert guests.come(address).came
    guests.now = 5.0
    guests.come("new")
    assert guests.gone == ["crowd"]
    # Each address has one now: the first goes, though its time is not over.
    guests.come("newer")
    assert guests.gone == ["crowd", "kubelet"]


def test_time_is_counted_from_the_connection_on_and_not_while_we_make_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(places, "HANDOVER_SECONDS", 0.01)
    guests = Guests(1)
    guest = guests.come("a")
    guests.now = 5.0
    guests.places.cut_late()
    with guests.places.answering(guest):  # type: ignore[arg-type]
        guests.now = 100.0
        guests.places.cut_late()
        assert not guests.come("b").came, "nobody gives way who is being answered"
    guests.now = 105.0
    guests.places.cut_late()
    assert guests.gone == []
    guests.now = 105.1
    guests.places.cut_late()
    assert guests.gone == ["a"]
