"""The client against a local HTTP server that answers as an API server does, also where things go wrong."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from kubernetes.client.configuration import Configuration
from kubernetes.config import ConfigException

from lanefeed_operator.kube import api
from lanefeed_operator.kube.client import Client

Answer = tuple[int, dict[str, str], Any]


class Server(ThreadingHTTPServer):
    """Answers what `script` says, in turn; the last answer is repeated. Remembers (method, path, headers, body)."""

    daemon_threads = True

    def __init__(self) -> None:
        self.script: list[Answer] = [(200, {}, {})]
        self.seen: list[tuple[str, str, dict[str, str], Any]] = []
        self.delay = 0.0
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.server.seen.append((self.command, self.path, dict(self.headers), body))
        script = self.server.script
        code, headers, content = script.pop(0) if len(script) > 1 else script[0]
        time.sleep(self.server.delay)
        if code == 0:
            # The connection breaks.
            self.close_connection = True
            self.connection.shutdown(2)
            return
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    thread = threading.Thread(target=found.serve_forever, args=(0.02,))
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def client(server: Server, **more: Any) -> Client:
    settings = Configuration()
    settings.host = f"http://127.0.0.1:{server.server_port}"
    settings.api_key["authorization"] = "Bearer secret"
    return Client(settings, first_wait=0.01, **more)


def status(code: int, reason: str, message: str) -> Answer:
    return code, {}, {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code}


def test_paths_queries_and_credentials(server: Server) -> None:
    with_client = client(server)
    with_client.get(api.PODS, "ns", "p")
    with_client.create(api.JOBS, "ns", {"metadata": {"name": "j"}})
    with_client.create(api.JOBS, "ns", {"metadata": {"name": "j"}}, dry_run=True)
    with_client.replace_status(api.STJS, "ns", {"metadata": {"name": "x", "resourceVersion": "7"}, "status": {}})
    with_client.patch(api.PODS, "ns", "p", {"status": {"phase": "Failed"}}, subresource="status")
    with_client.get(api.NODES, "", "n1")
    strict = "fieldManager=lanefeed-operator&fieldValidation=Strict"
    assert [(method, path) for method, path, _, _ in server.seen] == [
        ("GET", "/api/v1/namespaces/ns/pods/p"),
        ("POST", f"/apis/batch/v1/namespaces/ns/jobs?{strict}"),
        ("POST", f"/apis/batch/v1/namespaces/ns/jobs?{strict}&dryRun=All"),
        (
            "PUT",
            "/apis/lanefeed.dev/v1alpha1/namespaces/ns/shardedtrainingjobs/x/status?fieldManager=lanefeed-operator",
        ),
        ("PATCH", f"/api/v1/namespaces/ns/pods/p/status?{strict}"),
        ("GET", "/api/v1/nodes/n1"),
    ]
    assert all(headers["Authorization"] == "Bearer secret" for _, _, headers, _ in server.seen)
    assert server.seen[1][3] == {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}}
    assert server.seen[4][2]["Content-Type"] == "application/merge-patch+json"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (status(404, "NotFound", "no pod p"), api.NotFound),
        (status(409, "AlreadyExists", "there is one"), api.AlreadyExists),
        (status(409, "Conflict", "it was modified"), api.Conflict),
        (status(422, "Invalid", "spec.x: Required value"), api.Invalid),
        (status(400, "BadRequest", 'unknown field "spec.y"'), api.Invalid),
        (status(403, "Forbidden", "you may not"), api.Forbidden),
        (status(401, "Unauthorized", "who are you"), api.Forbidden),
        (status(405, "MethodNotAllowed", "not here"), api.ApiError),
        (status(500, "InternalError", "etcd is away"), api.Unreachable),
        ((503, {}, b"upstream is away"), api.Unreachable),
        ((200, {}, b"<html>"), api.Unreachable),
    ],
)
def test_refusals_become_our_errors_with_the_servers_words(
    server: Server, answer: Answer, kind: type[api.ApiError]
) -> None:
    server.script = [answer]
    with pytest.raises(api.ApiError) as caught:
        client(server).create(api.JOBS, "ns", {"metadata": {"name": "j"}})
    assert type(caught.value) is kind
    words = answer[2]["message"] if isinstance(answer[2], dict) else answer[2].decode()
    assert words in str(caught.value)
    if answer[0] >= 300:
        assert caught.value.code == answer[0]
    assert len(server.seen) == 1, "a create is not repeated: it may have been done"


def test_reading_is_tried_again_and_writing_is_not(server: Server) -> None:
    server.script = [status(500, "InternalError", "x"), (0, {}, None), (200, {}, {"kind": "Pod"})]
    assert client(server).get(api.PODS, "ns", "p") == {"kind": "Pod"}
    assert len(server.seen) == 3
    server.script = [(0, {}, None)]
    with pytest.raises(api.Unreachable, match="does not answer"):
        client(server).patch(api.PODS, "ns", "p", {})
    assert len(server.seen) == 4


def test_too_many_requests_is_waited_for_also_by_writes(server: Server) -> None:
    busy = (429, {"Retry-After": "1"}, {"message": "slow down"})
    server.script = [busy, (201, {}, {"kind": "Job"})]
    began = time.monotonic()
    assert client(server).create(api.JOBS, "ns", {"metadata": {"name": "j"}}) == {"kind": "Job"}
    assert time.monotonic() - began >= 1.0
    server.script = [(429, {"Retry-After": "120"}, {"message": "slow down"})]
    began = time.monotonic()
    with pytest.raises(api.Unreachable, match="slow down") as caught:
        client(server).create(api.JOBS, "ns", {"metadata": {"name": "j"}})
    assert caught.value.retry_after == 120.0
    assert time.monotonic() - began < 60.0, "a long wait is the work queue's"


def test_a_server_that_says_nothing_costs_the_deadline_and_no_more(server: Server) -> None:
    server.delay = 1.0
    began = time.monotonic()
    with pytest.raises(api.Unreachable, match="does not answer"):
        client(server, seconds=0.3).get(api.PODS, "ns", "p")
    assert time.monotonic() - began < 50.0


def test_nobody_listens() -> None:
    settings = Configuration()
    settings.host = "http://127.0.0.1:1"
    with pytest.raises(api.Unreachable, match="does not answer") as caught:
        Client(settings, first_wait=0.01).get(api.PODS, "ns", "p")
    assert caught.value.code == 0


def chunk(names: list[str], place: str = "") -> Answer:
    return 200, {}, {"metadata": {"continue": place}, "items": [{"metadata": {"name": name}} for name in names]}


def test_lists_come_in_chunks_and_begin_anew_when_the_place_is_lost(server: Server) -> None:
    server.script = [chunk(["a", "b"], "next"), chunk(["c"])]
    found = client(server).list(api.PODS, labels="x=y")
    assert [o["metadata"]["name"] for o in found] == ["a", "b", "c"]
    assert found[0]["kind"] == "Pod"
    assert server.seen[0][1] == "/api/v1/pods?limit=500&labelSelector=x%3Dy"
    assert server.seen[1][1].endswith("&continue=next")
    server.script = [chunk(["a"], "next"), status(410, "Expired", "too old"), chunk(["a", "b"])]
    names = [o["metadata"]["name"] for o in client(server).list(api.PODS)]
    assert names == ["a", "b"], "what was read before the list was begun anew is not doubled"


def test_deleting_what_is_gone_is_no_error(server: Server) -> None:
    server.script = [status(404, "NotFound", "gone")]
    client(server).delete(api.JOBS, "ns", "j", uid="u", propagation="Foreground", grace=0)
    assert server.seen[0][3] == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "u"},
        "propagationPolicy": "Foreground",
        "gracePeriodSeconds": 0,
    }
    server.script = [status(409, "Conflict", "another UID")]
    with pytest.raises(api.Conflict):
        client(server).delete(api.JOBS, "ns", "j", uid="u")


def test_whose_token_it_is(server: Server) -> None:
    user = {
        "username": "system:serviceaccount:team:default",
        "extra": {
            "authentication.kubernetes.io/pod-name": ["p"],
            "authentication.kubernetes.io/pod-uid": ["u-1"],
        },
    }
    good = {"authenticated": True, "audiences": ["lanefeed.dev/coordinator"], "user": user}
    server.script = [(201, {}, {"status": good})]
    owner = client(server).token_owner("t", "lanefeed.dev/coordinator")
    assert owner == api.TokenOwner("team", "default", "p", "u-1")
    server.script = [(201, {}, {"status": good | {"audiences": ["other"]}})]
    assert client(server).token_owner("t", "lanefeed.dev/coordinator") is None
    server.script = [(201, {}, {"status": {"authenticated": False}})]
    assert client(server).token_owner("t", "lanefeed.dev/coordinator") is None
    server.script = [(201, {}, {"status": good | {"user": {"username": "admin"}}})]
    owner = client(server).token_owner("t", "lanefeed.dev/coordinator")
    assert owner == api.TokenOwner("", "admin", "", "")


def test_every_request_is_told_to_the_hook(server: Server) -> None:
    told: list[tuple[str, int]] = []
    server.script = [status(500, "InternalError", "x"), (200, {}, {})]
    client(server, hook=lambda verb, code, _: told.append((verb, code))).get(api.PODS, "ns", "p")
    assert told == [("get", 500), ("get", 200)]


@pytest.mark.parametrize(
    "fault", [ConfigException("Token file exists but empty."), PermissionError(13, "Permission denied")]
)
def test_a_token_that_cannot_be_read_for_a_moment_is_an_outage_and_read_again(server: Server, fault: Exception) -> None:
    settings, faults = Configuration(), [fault]
    settings.host = f"http://127.0.0.1:{server.server_port}"
    settings.api_key["BearerToken"] = "bearer stale"

    def refresh(settings: Any) -> None:
        if faults:
            raise faults.pop()
        settings.api_key["BearerToken"] = "bearer fresh"

    settings.refresh_api_key_hook = refresh
    found = Client(settings, first_wait=0.01)
    with pytest.raises(api.Unreachable, match=r"PATCH .*/pods/p\?.*: the credentials cannot be read: .*") as caught:
        found.patch(api.PODS, "ns", "p", {})
    assert caught.value.code == 0
    assert server.seen == [], "nobody was asked without credentials"
    faults.append(fault)
    found.get(api.PODS, "ns", "p")
    assert server.seen[0][2]["Authorization"] == "bearer fresh"
