"""Pods and a report service over TLS for these tests."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.feed_pod import Pod
from support.report_tls import ReportService


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ReportService]:
    """Not up yet."""
    made = ReportService(tmp_path / "control")
    yield made
    made.down()


@pytest.fixture
def make_pod(tmp_path: Path) -> Iterator[Callable[..., Pod]]:
    """Makes pods and ends them with the test."""
    pods: list[Pod] = []

    def make(**fields: Any) -> Pod:
        folder = tmp_path / f"pod-{len(pods)}"
        folder.mkdir()
        pods.append(Pod(folder, **fields))
        return pods[-1]

    yield make
    for pod in pods:
        pod.close()
