"""A pod's folder and a scripted sidecar in it, for tests of the client."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.scripted_server import Script


@pytest.fixture
def folder(shm_root: Path) -> Iterator[Path]:
    path = shm_root / "pod"
    path.mkdir()
    yield path
    shutil.rmtree(path)


@pytest.fixture
def server(folder: Path) -> Iterator[Script]:
    script = Script(folder)
    script.start()
    yield script
    script.stop()
