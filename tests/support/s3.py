"""A real S3 server for tests: moto's, a process of its own, with a bucket and credentials that only it takes."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.ports import free_port

BUCKET = "data"
START_SECONDS = 60.0


@dataclass
class S3Server:
    """moto at a port of this machine."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> Any:
        from botocore.session import Session

        return Session().create_client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )

    def put_folder(self, folder: Path, prefix: str, bucket: str = BUCKET) -> None:
        """All files of a folder."""
        client = self.client()
        client.create_bucket(Bucket=bucket)
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                key = f"{prefix}/{path.relative_to(folder)}".lstrip("/")
                client.put_object(Bucket=bucket, Key=key, Body=path.read_bytes())
        client.close()


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Start it and wait until it answers."""
    pytest.importorskip("moto")
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(port, process)
        yield S3Server(port)
    finally:
        process.kill()
        process.wait()


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, "moto's server ended at its start"
        try:
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                f"http://127.0.0.1:{port}/moto-api/", timeout=10
            ).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"moto's server did not answer within {START_SECONDS:.0f} s")


def credentials(patch: pytest.MonkeyPatch, endpoint: str, key: str = "test") -> None:
    """What users set; nothing of the machine's own is found."""
    patch.setenv("AWS_ACCESS_KEY_ID", key)
    patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    patch.setenv("AWS_ENDPOINT_URL", endpoint)
    patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    patch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    patch.delenv("AWS_SESSION_TOKEN", raising=False)
    patch.delenv("AWS_PROFILE", raising=False)
