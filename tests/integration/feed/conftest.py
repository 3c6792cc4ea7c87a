"""The pods of these tests."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.feed_pod import Pod


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
