"""How many pods may be connected: container runtimes give 1,024 descriptors, a job of 2,000 pods needs more; and memory
must not run out however many connect."""

import asyncio
import logging
import resource
from pathlib import Path

import pytest

from lanefeed_operator.coordinator import cluster, room
from lanefeed_operator.coordinator.certstore import Certificates
from support.kube_store import KubeStore

UNLIMITED = resource.RLIM_INFINITY
MOST = cluster.MAX_DESCRIPTORS


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "connections"),
    [
        (1024, 524_288, MOST, MOST - 256),
        (1024, 4096, 4096, 3840),
        (20_000, 20_000, None, 19_744),
        (1024, UNLIMITED, MOST, MOST - 256),
        (UNLIMITED, UNLIMITED, None, MOST - 256),
        (200, 200, None, 64),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_it_goes(
    soft: int, hard: int, raised: int | None, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits[0]))
    assert cluster._connections() == connections
    assert asked == ([raised] if raised is not None else [])


def test_a_limit_that_may_not_be_raised_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    with caplog.at_level(logging.WARNING):
        assert cluster._connections() == 768
    assert "open files stay limited to 1024" in caplog.text


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        (str(512 << 20), 6007),
        (str(192 << 20), 819),
        (str(8 << 20), 64),
        (str(1 << 40), MOST - 256),
        ("max", MOST - 256),
        # Unlimited in the words of cgroup v1; a file that nobody understands.
        ("9223372036854771712", MOST - 256),
        ("", MOST - 256),
        (None, MOST - 256),
    ],
)
def test_connections_fit_into_the_containers_memory(
    text: str | None, bound: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "memory.max"
    if text is not None:
        file.write_text(f"{text}\n")
    limit = room.memory_limit([tmp_path / "of the other version", file])
    monkeypatch.setattr(room, "memory_limit", lambda: limit)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (MOST, MOST))
    with caplog.at_level(logging.INFO):
        assert cluster._bound() == bound
    assert f"at most {bound} pods can be connected" in caplog.text


def test_the_bound_is_what_grpc_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[tuple[str, object]]] = []

    class Stop(Exception):
        pass

    def start(_service: object, _address: str, _add: object, limits: list[tuple[str, object]], _tasks: object) -> None:
        given.append(limits)
        raise Stop

    certificates = Certificates(KubeStore(), "system", "certs", ["a.example.org"], lambda: 1_800_000_000.0)
    monkeypatch.setattr(cluster, "start", start)
    monkeypatch.setattr(cluster, "_bound", lambda: 77)
    with pytest.raises(Stop):
        cluster.serve_cluster(None, "127.0.0.1:0", certificates, None, lambda: 0.0)  # type: ignore[arg-type]
    assert ("grpc.max_allowed_incoming_connections", 77) in given[0]


def test_looking_at_the_certificates_goes_on_after_a_fault_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    looked: list[int] = []

    class Broken:
        def refresh(self) -> str:
            looked.append(1)
            if len(looked) == 3:
                raise asyncio.CancelledError
            raise ZeroDivisionError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cluster._renew(Broken(), 0.0))  # type: ignore[arg-type]
    assert len(looked) == 3
    assert "looking at the certificates of the report service broke; trying again" in caplog.text
    assert "ZeroDivisionError" in caplog.text
