"""How many pods may be connected: container runtimes give 1,024 descriptors, a job of 2,000 pods needs more."""

import logging
import resource

import pytest

from lanefeed_operator.coordinator import cluster

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
