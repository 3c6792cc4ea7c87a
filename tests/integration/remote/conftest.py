"""One S3 server and one dataset for all tests of remote data."""

from collections.abc import Iterator

import pytest

from lanefeed_core.manifest import Manifest
from support.frames_oracle import write_shards
from support.s3 import S3Server, credentials, s3_server

SHARDS = [(90, 30), (70, 70), (1, 1), (120, 25), (64, 32)]


@pytest.fixture(scope="session")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def local(server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """The dataset in the server under `train/`; its manifest as local files."""
    folder = tmp_path_factory.mktemp("train")
    manifest = write_shards(folder, SHARDS)
    (folder / "_SUCCESS").write_bytes(b"")
    (folder / "_temporary").mkdir()
    (folder / "_temporary" / "x.parquet").write_bytes(b"x")
    (folder / "README.md").write_bytes(b"hello")
    (folder / ".hidden.parquet").write_bytes(b"x")
    server.put_folder(folder, "train")
    return manifest


@pytest.fixture
def s3(server: S3Server, local: Manifest, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    credentials(monkeypatch, server.url)
    return server
