"""Two replicas against a real API server: one acts; a leader that was paused past its lease ends and writes nothing."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.operator.processes import OperatorProcess, job
from lanefeed_operator.kube.api import JOBS, LEASES, STJS
from support.apiserver import ApiServer, until

LEASE = "lanefeed-operator-leader"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, shm_root: Path) -> Iterator[ApiServer]:
    with ApiServer.running(tmp_path_factory.mktemp("kube")) as found:
        yield found


def holder(server: ApiServer) -> str:
    return str(server.api().get(LEASES, "a", LEASE)["spec"]["holderIdentity"])


def indexer_of(server: ApiServer, name: str) -> bool:
    return f"{name}-index" in [o["metadata"]["name"] for o in server.api().list(JOBS, "a")]


def replica(server: ApiServer, folder: Path, name: str) -> OperatorProcess:
    return OperatorProcess(server.kubeconfig(name), folder, name, LEADER_ELECTION="true")


@pytest.mark.slow
def test_a_paused_leader_is_followed_and_no_write_of_it_lands(server: ApiServer, tmp_path: Path) -> None:
    with replica(server, tmp_path, "one") as one:
        one.ready()
        with replica(server, tmp_path, "two") as two:
            two.ready("standby: one leads")
            assert two.get("/readyz")[0] == 200, "a standby is ready, so that rollouts end"
            assert "the report service listens" not in two.text, "reports reach the leader alone"
            assert (one.metric("leader"), two.metric("leader")) == (1, 0)
            server.api().create(STJS, "a", job("first"))
            until("the leader's work", lambda: indexer_of(server, "first"))

            one.process.send_signal(signal.SIGSTOP)
            # Work for the paused one: it finds it in its sockets when it goes on.
            server.api().create(STJS, "a", job("second"))
            until("the second to lead", lambda: holder(server) == "two", 100.0)
            two.ready("ready")
            until("the second's work", lambda: indexer_of(server, "second"))
            before = server.writes("one")
            one.process.send_signal(signal.SIGCONT)
            assert one.process.wait(60) == 1
            time.sleep(1.0)
            assert server.writes("one") == before, "a write of the paused leader landed"
            assert "another replica may act by now" in one.text
            assert holder(server) == "two"
            code, seconds = two.terminate()
            assert (code, seconds < 25.0) == (0, True)
        assert holder(server) == "", "a leader that ends lets go of the lease"


def test_a_leader_that_ends_is_followed_at_once(server: ApiServer, tmp_path: Path) -> None:
    with replica(server, tmp_path, "one") as one:
        one.ready()
        with replica(server, tmp_path, "two") as two:
            two.ready("standby: one leads")
            assert one.terminate()[0] == 0
            until("the second to lead", lambda: holder(server) == "two")
            two.ready("ready")
            server.api().create(STJS, "a", job("third"))
            until("its work", lambda: indexer_of(server, "third"))
            assert two.terminate()[0] == 0


@pytest.mark.slow
def test_a_leader_without_an_api_server_ends_before_another_could_lead(server: ApiServer, tmp_path: Path) -> None:
    with replica(server, tmp_path, "one") as one:
        one.ready()
        with server.frozen():
            begun = time.monotonic()
            assert one.process.wait(60) == 1
            # After 10 s, by its clock (tests/unit/runtime/test_lease.py: from then on it writes nothing); here it ends.
            assert time.monotonic() - begun < 30.0
