"""`lanefeed.open` of a bucket: a real sidecar process, the environment's credentials, every row once."""

import pytest

import lanefeed
from lanefeed_core.manifest import Manifest
from support.badinput import SMALL, said
from support.s3 import S3Server


def test_open_reads_a_bucket(s3: S3Server, local: Manifest) -> None:
    with lanefeed.open("s3://data/train", **(SMALL | {"last_batch": "Partial"})) as loader:
        ids = sorted(int(i) for batch in loader for i in batch["id"])
    assert ids == list(range(local.rows))


def test_open_says_what_is_wrong(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    text = said(lanefeed.DataError, "s3://nope/x")
    assert "data.uri s3://nope/x cannot be read from s3://nope at http://127.0.0.1:" in text
    assert "HTTP 404 NoSuchBucket; it does not exist: check the name, the bucket and the endpoint" in text
