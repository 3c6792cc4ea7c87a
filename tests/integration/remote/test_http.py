"""Shards of a real web server: ranges, index pages, and a server that cannot do what is needed."""

import http.server
import os
import re
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lanefeed_core.manifest import Manifest
from lanefeed_core.stream import StreamSpec
from lanefeed_sidecar.errors import DataError
from lanefeed_sidecar.index import build_manifest
from lanefeed_sidecar.pipeline import Engine, Stats
from lanefeed_sidecar.sources import list_shards
from support.fault_proxy import FaultProxy
from support.frames_oracle import Reader, Slot, config, drain, write_shards


class _Ranges(http.server.SimpleHTTPRequestHandler):
    """Python's own server, with ranges, as nginx and others have them."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""

    def do_GET(self) -> None:
        wanted = re.match(r"bytes=(\d+)-(\d+)$", self.headers.get("Range", ""))
        path = self.translate_path(self.path)
        if not wanted or not os.path.isfile(path):
            return super().do_GET()
        data = Path(path).read_bytes()
        first, last = int(wanted[1]), min(int(wanted[2]), len(data) - 1)
        body = data[first : last + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{os.stat(path).st_mtime_ns:x}"')
        self.end_headers()
        self.wfile.write(body)
        return None


class _NoRanges(_Ranges):
    def do_GET(self) -> None:
        return http.server.SimpleHTTPRequestHandler.do_GET(self)


def serve(folder: Path, handler: type[http.server.SimpleHTTPRequestHandler]) -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    # A client that cuts a connection is no news.
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("web")
    write_shards(top / "train", [(90, 30), (70, 70), (55, 20)])
    (top / "train" / "_SUCCESS").write_bytes(b"")
    (top / "train" / "a name.txt").write_bytes(b"x")
    return top


@pytest.fixture(scope="module")
def web(folder: Path) -> Iterator[int]:
    yield from serve(folder, _Ranges)


def exact(manifest: Manifest) -> None:
    spec = StreamSpec(seed=5, global_batch_size=8, lanes=4, window=32)
    engine = Engine(config(spec, epochs=2), manifest, stats=Stats())
    try:
        engine.seek(0, 0)
        engine.start()
        assert drain(engine, 0, Slot(engine.slot_bytes), Reader(engine, 1)) == engine.total_steps
    finally:
        engine.close()


def test_a_folder_of_a_web_server(folder: Path, web: int) -> None:
    base = f"http://127.0.0.1:{web}/train"
    shards = [f"{base}/{i:03d}.parquet" for i in range(3)]
    assert list(list_shards([base + "/"]).paths) == shards
    assert list(list_shards([f"{base}/00[01].*"]).paths) == shards[:2]
    manifest = build_manifest([base + "/"]).manifest
    assert manifest.digest == build_manifest([str(folder / "train")], digest="Never").manifest.digest
    exact(manifest)


def test_files_through_faults(web: int) -> None:
    count = iter(range(10_000))
    faults = ("reset", "", "503", "", "truncate", "", "range", "", "500", "")
    plan = lambda seen: faults[next(count) % len(faults)] if seen.range else ""  # noqa: E731
    with FaultProxy(web, plan=plan, retry_after=0) as proxy:
        exact(build_manifest([f"{proxy.url}/train/00{i}.parquet" for i in range(3)]).manifest)
        assert sum(proxy.counts()[fault] for fault in set(faults) - {""}) > 3


def test_a_file_that_is_not_there(web: int) -> None:
    with pytest.raises(DataError, match=r"http://127\.0\.0\.1:\d+/train/9\.parquet .*HTTP 404.*it does not exist"):
        build_manifest([f"http://127.0.0.1:{web}/train/9.parquet"])


def test_a_server_without_ranges_is_refused(folder: Path) -> None:
    """But files that are not larger than what is read at once anyway."""
    write_shards(folder / "large", [(6000, 1000)])
    for port in serve(folder, _NoRanges):
        exact(build_manifest([f"http://127.0.0.1:{port}/train/{i:03d}.parquet" for i in range(3)]).manifest)
        with pytest.raises(DataError, match="the server sent the whole object instead of the range"):
            build_manifest([f"http://127.0.0.1:{port}/large/000.parquet"])
