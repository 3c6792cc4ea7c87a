"""Real servers of stores that are neither S3 nor HTTP: Google's API in an emulator, and FTP; processes of their own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

START_SECONDS = 60.0
#: Anonymous, read-only, one folder; MLSD, REST and all that a client wants.
_FTP = """
import sys
from pyftpdlib.authorizers import DummyAuthorizer
from pyftpdlib.handlers import FTPHandler
from pyftpdlib.servers import ThreadedFTPServer
FTPHandler.authorizer = DummyAuthorizer()
FTPHandler.authorizer.add_anonymous(sys.argv[2])
server = ThreadedFTPServer(("127.0.0.1", int(sys.argv[1])), FTPHandler)
server.max_cons_per_ip = 0
server.serve_forever()
"""


@contextmanager
def running(port: int, command: list[str], env: Mapping[str, str] | None = None) -> Iterator[None]:
    """A process that listens at `port`; it is killed at the end."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    try:
        end = time.monotonic() + START_SECONDS
        while True:
            assert process.poll() is None, f"{command[:3]} ended at its start"
            assert time.monotonic() < end, f"{command[:3]} did not listen within {START_SECONDS:.0f} s"
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def gcs_server(port: int, storage: Path) -> Iterator[None]:
    """Google's storage API, which keeps its objects in a folder: it may be killed and started again."""
    pytest.importorskip("gcp_storage_emulator")
    options = ["start", "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "STORAGE_BASE": str(storage.parent), "STORAGE_DIR": storage.name}
    with running(port, [sys.executable, "-m", "gcp_storage_emulator", *options], environment):
        yield


def gcs_put(port: int, folder: Path, bucket: str) -> None:
    """Put a folder's files into a new bucket, under `train/`."""

    def ask(path: str, body: bytes, kind: str) -> None:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, {"Content-Type": kind})
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60).close()

    ask("/storage/v1/b?project=p", json.dumps({"name": bucket}).encode(), "application/json")
    for file in sorted(folder.iterdir()):
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name=train/{file.name}"
        ask(path, file.read_bytes(), "application/octet-stream")


@contextmanager
def ftp_server(port: int, folder: Path) -> Iterator[str]:
    """An FTP server of a folder; its URI."""
    pytest.importorskip("pyftpdlib")
    with running(port, [sys.executable, "-c", _FTP, str(port), str(folder)]):
        yield f"ftp://127.0.0.1:{port}"
