"""/healthz, /readyz and the little server under them; how silent watches are noticed."""

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from lanefeed_operator.errors import OperatorError
from lanefeed_operator.kube.api import JOBS, NODES, PODS, STJS, Forbidden, Kind, NotFound, Unreachable
from lanefeed_operator.runtime import http as web
from lanefeed_operator.runtime.health import STALE_SECONDS, Health, api_answers
from lanefeed_operator.runtime.http import Answer, HttpServer
from lanefeed_operator.runtime.watches import Watches
from lanefeed_operator.runtime.workers import QueueState
from support.kube_store import KubeStore

KINDS = (STJS, JOBS, PODS, NODES)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_ready_follows_what_main_says() -> None:
    health = Health()
    assert health.readyz()[0] == 503
    health.waiting("the CRD is not installed")
    assert health.readyz() == (503, "text/plain; charset=utf-8", b"the CRD is not installed\n")
    health.ready("standby: one leads")
    assert health.readyz()[::2] == (200, b"standby: one leads\n")
    health.ready()
    assert health.readyz()[::2] == (200, b"ready\n")
    health.waiting("ending")
    assert health.readyz()[0] == 503


def test_a_silent_watch_is_sick_only_while_the_api_server_answers() -> None:
    clock, answers, asked = Clock(), [True], []

    def ask() -> bool:
        asked.append(clock.now)
        return answers[0]

    health = Health(clock)
    health.api_answers = ask
    health.watches = lambda: {"pods": 12.0}
    assert health.healthz()[0] == 200
    assert asked == [], "nobody is asked while all is well"
    health.watches = lambda: {"pods": STALE_SECONDS + 1, "jobs": 3.0}
    status, _, text = health.healthz()
    assert status == 500
    assert b"pods (301 s)" in text
    assert b"jobs" not in text
    answers[0] = False
    clock.now += 5
    assert health.healthz()[0] == 500, "an answer is good for a while"
    clock.now += 6
    assert health.healthz()[0] == 200
    assert len(asked) == 2


def test_a_queue_that_does_not_move_is_sick() -> None:
    health = Health()
    health.queue = lambda: QueueState(5, STALE_SECONDS + 1, 0.0, 5)
    assert b"the head of the queue has waited for 301 s" in health.healthz()[2]
    health.queue = lambda: QueueState(0, 0.0, STALE_SECONDS + 1, 5)
    assert b"a pass has taken 301 s" in health.healthz()[2]
    health.queue = lambda: QueueState(5, 5.0, 5.0, 5)
    health.reports_quiet = lambda: 31.0
    assert b"the report service has not moved for 31 s" in health.healthz()[2]
    health.reports_quiet = lambda: 1.0
    assert health.healthz()[0] == 200


def test_a_probe_does_not_hang_with_the_api_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where packets vanish a question takes half a minute: the kubelet would restart us for that."""
    monkeypatch.setattr("lanefeed_operator.runtime.health.ANSWER_SECONDS", 0.05)
    go, asked = threading.Event(), list[int]()

    def hang() -> bool:
        asked.append(1)
        return go.wait(60)

    health = Health()
    health.ready()
    health.api_answers = hang
    health.watches = lambda: {"pods": STALE_SECONDS + 1}
    begun = time.monotonic()
    for _ in range(3):
        status, _, text = health.healthz()
        assert status == 200
        assert b"the API server does not answer, and these watches are silent: pods (301 s)" in text
    assert health.readyz()[0] == 200
    assert time.monotonic() - begun < 50
    assert len(asked) == 1, "one question at a time"
    go.set()
    health._asking.join(60)
    assert health.healthz()[0] == 500, "now it answers"


def test_passes_that_wait_for_an_api_server_that_is_away_are_no_reason_for_a_restart() -> None:
    health = Health()
    health.queue = lambda: QueueState(900, STALE_SECONDS + 1, 20.0, 1000)
    health.api_answers = lambda: False
    status, _, text = health.healthz()
    assert status == 200
    assert text == b"ok; the API server does not answer, and the head of the queue has waited for 301 s\n"


@pytest.mark.parametrize(
    ("error", "answers"), [(None, True), (NotFound("no"), True), (Forbidden("no"), True), (Unreachable("no"), False)]
)
def test_the_cheap_question(error: Exception | None, answers: bool) -> None:
    store = KubeStore()

    def before(*_: object) -> None:
        if error is not None:
            raise error

    store.before = before
    assert api_answers(store, "ns")() is answers


def test_a_watch_is_heard_of_by_events_and_by_each_new_request() -> None:
    clock = Clock()
    watches = Watches(KINDS, clock=clock)
    clock.now += 50
    assert set(watches.ages().values()) == {50.0}
    watches.heard(PODS, "team")
    watches.answered("/apis/lanefeed.dev/v1alpha1/shardedtrainingjobs", watch=True)
    watches.answered("/apis/batch/v1/jobs", watch=True)
    watches.answered("/apis/batch/v1/namespaces/team/jobs", watch=True)
    watches.answered("/api/v1/namespaces", watch=False)
    watches.answered("/apis/lanefeed.dev/v1alpha1", watch=False)
    assert watches.ages() == {"pods": 0.0, "shardedtrainingjobs": 0.0, "jobs": 0.0, "nodes": 50.0}
    assert watches.missing(49.0) == ["nodes"]
    assert watches.missing(51.0) == []
    clock.now += 90
    assert watches.missing(60.0) == ["nodes", "pods"], "what is watched is `ages`' business"


def test_what_went_before_a_watch_began_or_lost_its_place_is_asked_for() -> None:
    relisted: list[Kind] = []
    watches = Watches(KINDS, ["team", "else"], relisted=relisted.append)
    path = "/api/v1/namespaces/team/pods"
    watches.answered(path, watch=False)
    assert relisted == []
    watches.answered(path, watch=True)
    assert relisted == [PODS], "between our own first listing and the watch's an object can have gone"
    watches.answered(path, watch=True)
    assert relisted == [PODS], "a watch that goes on has missed nothing"
    watches.answered(path, watch=False)
    assert relisted == [PODS, PODS]


def test_of_several_namespaces_each_has_watches_of_its_own() -> None:
    clock = Clock()
    watches = Watches(KINDS, ["team", "else"], clock=clock)
    clock.now += 70
    watches.answered("/api/v1/namespaces/team/pods", watch=True)
    watches.answered("/api/v1/nodes", watch=True)
    assert watches.ages() == {"pods": 70.0, "nodes": 0.0, "jobs": 70.0, "shardedtrainingjobs": 70.0}
    assert watches.missing(60.0) == ["jobs", "pods", "shardedtrainingjobs"]
    watches.heard(PODS, "else")
    assert watches.ages()["pods"] == 0.0


@pytest.fixture
def server() -> Iterator[HttpServer]:
    def broken() -> Answer:
        raise ZeroDivisionError

    pages = {"/metrics": lambda: (200, "text/plain", b"m 1\n"), "/broken": broken}
    found = HttpServer("127.0.0.1", 0, pages, "LANEFEED_OPERATOR_METRICS_PORT")
    yield found
    found.close()


def get(server: HttpServer, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_pages(server: HttpServer) -> None:
    assert get(server, "/metrics?x=1") == (200, b"m 1\n")
    assert get(server, "/nothing") == (404, b"there is /broken, /metrics\n")
    assert get(server, "/broken")[0] == 500


def test_a_taken_port_names_the_setting(server: HttpServer) -> None:
    with pytest.raises(OperatorError, match=r"LANEFEED_OPERATOR_METRICS_PORT.* to a free port"):
        HttpServer("127.0.0.1", server.port, {}, "LANEFEED_OPERATOR_METRICS_PORT")


def test_clients_that_say_nothing_hold_up_nobody(server: HttpServer) -> None:
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]
    try:
        assert get(server, "/metrics")[0] == 200
    finally:
        for client in silent:
            client.close()


def request_threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_connections_are_bounded_before_they_have_said_anything(server: HttpServer) -> None:
    others = request_threads()
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
        # Connections are taken in their order: all others were by now.
        assert get(server, "/metrics")[0] == 200
        assert request_threads() - others <= web.MAX_CLIENTS


def test_a_byte_now_and_then_does_not_hold_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "CLIENT_SECONDS", 0.5)
    server = HttpServer("127.0.0.1", 0, {}, "LANEFEED_OPERATOR_METRICS_PORT")
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=0.02) as client:
            until, closed = time.monotonic() + 60.0, False
            while not closed and time.monotonic() < until:
                try:
                    client.sendall(b"G")
                    closed = client.recv(1) == b""
                except TimeoutError:
                    continue
                except OSError:
                    closed = True
            assert closed, "it was still connected after a minute"
    finally:
        server.close()


def test_while_all_are_being_answered_a_new_one_is_closed_and_nobody_is_cut_off() -> None:
    asked, go = threading.Semaphore(0), threading.Event()

    def slow() -> Answer:
        asked.release()
        assert go.wait(60.0)
        return 200, "text/plain", b"late\n"

    server = HttpServer("127.0.0.1", 0, {"/slow": slow}, "LANEFEED_OPERATOR_METRICS_PORT")
    answers: list[tuple[int, bytes]] = []
    clients = [
        threading.Thread(target=lambda: answers.append(get(server, "/slow")), daemon=True)
        for _ in range(web.MAX_CLIENTS)
    ]
    try:
        for client in clients:
            client.start()
        for _ in clients:
            assert asked.acquire(timeout=60.0)
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            get(server, "/slow")
        go.set()
        for client in clients:
            client.join(60.0)
        assert answers == [(200, b"late\n")] * web.MAX_CLIENTS
    finally:
        go.set()
        server.close()
