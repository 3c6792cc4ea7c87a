"""Stores that are read by other people's libraries, on real servers: exact, failures counted, an outage borne."""

import gc
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from integration.remote.test_faults import reading
from lanefeed_core.manifest import Manifest
from lanefeed_sidecar.errors import ConfigError, DataError
from lanefeed_sidecar.formats import remote
from lanefeed_sidecar.index import build_manifest
from lanefeed_sidecar.sources import list_shards
from support.frames_oracle import Reader, drain, write_shards
from support.ports import free_port
from support.stores import ftp_server, gcs_put, gcs_server

SHARDS = [(90, 30), (41, 20), (1, 1)]
AWAY_SECONDS = 1.5


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    """A folder of shards, and its manifest as local files."""
    made = tmp_path_factory.mktemp("stores") / "train"
    return made, write_shards(made, SHARDS)


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    # The shards are small: else all of them came with the footer.
    monkeypatch.setattr(remote, "TAIL_BYTES", 2048)
    for name in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)


class Store:
    """A server that can be taken away. `kinds`: what its absence may be counted as."""

    def __init__(self, server: Callable[[], AbstractContextManager[object]], uri: str, kinds: set[str]) -> None:
        self.server, self.uri, self.kinds = server, uri, kinds
        self.up = ExitStack()
        self.up.enter_context(server())

    def at(self, path: str) -> str:
        return self.uri.replace("train", path)

    def away(self) -> threading.Timer:
        """Kill it; it comes back by itself."""
        self.up.close()
        timer = threading.Timer(AWAY_SECONDS, lambda: self.up.enter_context(self.server()))
        timer.start()
        return timer


@pytest.fixture(params=["gs", "ftp"])
def store(
    request: pytest.FixtureRequest, data: tuple[Path, Manifest], tmp_path: Path, shm_root: Path
) -> Iterator[Store]:
    port = free_port()
    if request.param == "gs":
        uri = f"gs://data/train?endpoint_override=127.0.0.1:{port}&scheme=http&anonymous=true"
        made = Store(lambda: gcs_server(port, tmp_path / "gcs"), uri, {"connect", "reset", "server"})
        gcs_put(port, data[0], "data")
    else:
        made = Store(lambda: ftp_server(port, data[0].parent), f"ftp://127.0.0.1:{port}/train", {"connect", "reset"})
    yield made
    made.up.close()
    # Google's client goes with the last error that its frames are in.
    gc.collect()


def test_the_manifest_and_the_frames_are_those_of_local_files(store: Store, data: tuple[Path, Manifest]) -> None:
    manifest = build_manifest([store.uri]).manifest
    assert manifest.digest == data[1].digest
    assert manifest.root == store.uri
    assert [shard.path for shard in manifest.shards] == [shard.path for shard in data[1].shards]
    assert len(list_shards([store.at("train/00[01].parquet")]).paths) == 2
    with reading(manifest, decode_threads=2) as (engine, slot, stats):
        assert drain(engine, 0, slot, Reader(engine, 1)) == engine.total_steps
        found = stats.snapshot()
    assert found.counts["remote_bytes"] > 0
    assert not found.failures


def test_a_name_that_is_not_there(store: Store) -> None:
    with pytest.raises(DataError, match=r"/nope.* does not exist in (gs|ftp)://"):
        build_manifest([store.at("nope")])


def test_a_server_that_dies_and_comes_back_costs_time_alone(store: Store) -> None:
    manifest = build_manifest([store.uri]).manifest
    # Before the first read: the little that there is would be here before it is gone.
    timer = store.away()
    try:
        with reading(manifest) as (engine, slot, stats):
            assert drain(engine, 0, slot, Reader(engine, 1)) == engine.total_steps
            found = stats.snapshot()
    finally:
        timer.join()
    failures = Counter(found.failures)
    assert failures.total() > 0
    assert set(failures) <= store.kinds, failures
    assert not found.errors


def test_a_server_that_stays_away(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANEFEED_READ_PATIENCE_SECONDS", "1")
    store.up.close()
    with pytest.raises(DataError, match=r"cannot be read from (gs|ftp)://.*tried \d+ times in \d+ s"):
        list_shards([store.uri])


@pytest.mark.parametrize("uri", ["ftp://me:secret@host/a", "abfs://account:c2VjcmV0@host/box/a", "s3://a:secret@b/c"])
def test_a_password_in_a_uri_is_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"://\.\.\. holds a password") as error:
        list_shards([uri])
    assert "secret" not in str(error.value)
    assert "c2VjcmV0" not in str(error.value)
