"""Listing and indexing objects of a real S3 server: the same manifest as of local files, and what users are told."""

import re
from pathlib import Path

import pytest

from lanefeed_core.manifest import Manifest
from lanefeed_sidecar.errors import ConfigError, DataError, SidecarError
from lanefeed_sidecar.index import build_manifest
from lanefeed_sidecar.sources import list_shards
from support.fault_proxy import FaultProxy
from support.s3 import S3Server


def keys(*uris: str) -> list[str]:
    return [path.removeprefix("s3://data/") for path in list_shards(uris).paths]


def test_a_prefix_a_glob_and_an_object(s3: S3Server) -> None:
    shards = [f"train/{i:03d}.parquet" for i in range(5)]
    assert keys("s3://data/train") == shards
    assert keys("s3://data/train/") == shards
    assert keys("s3://data/train/*.parquet") == shards
    assert keys("s3://data/**/00[12].parquet") == shards[1:3]
    assert keys("s3://data/tra*/*") == shards
    assert keys("s3://data/train/003.parquet", "s3://data/train/000.parquet") == [shards[0], shards[3]]
    assert keys("s3://data") == shards
    skipped = {
        path.removeprefix("s3://data/train/"): reason for path, reason in list_shards(["s3://data/train"]).skipped
    }
    assert skipped == {
        "_SUCCESS": "hidden or a marker",
        "_temporary/x.parquet": "hidden or a marker",
        ".hidden.parquet": "hidden or a marker",
        "README.md": "not a data file by its name",
    }


def test_the_manifest_is_that_of_local_files(s3: S3Server, local: Manifest) -> None:
    """Same digest: a dataset that was copied into a bucket is the same dataset."""
    remote = build_manifest(["s3://data/train"]).manifest
    assert remote.digest == local.digest
    assert remote.root == "s3://data/train"
    assert [s.path for s in remote.shards] == [s.path for s in local.shards]
    assert all(re.fullmatch('"[0-9a-f]{32}"', s.etag) for s in remote.shards)
    assert not any(s.content for s in remote.shards)
    assert all(s.content for s in build_manifest(["s3://data/train"], digest="Always").manifest.shards)


def test_an_endpoint_in_the_uri(s3: S3Server, local: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    uri = f"s3://data/train?endpoint_override=127.0.0.1:{s3.port}&scheme=http&region=us-east-1"
    remote = build_manifest([uri]).manifest
    assert remote.digest == local.digest
    assert remote.root == uri


def test_a_footer_is_one_request(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with FaultProxy(s3.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        build_manifest(["s3://data/train"])
        assert len(proxy.ranged()) == 5
        # The object that the URI might be, the listing, and the footers.
        assert len(proxy.log) == 7


@pytest.mark.parametrize(
    ("uri", "kind", "text"),
    [
        ("s3://nope/train", DataError, r"data\.uri s3://nope/train cannot be read from s3://nope at http://.*: HTTP 404 NoSuchBucket; it does not exist: check the name, the bucket and the endpoint"),  # noqa: E501
        ("s3://data/nope", DataError, r"data\.uri s3://data/nope does not exist in s3://data at http://.*: check"),
        ("s3://data/train/*.arrow", DataError, r"matches no object of s3://data at .* \(9 begin with 'train/'\): check the pattern"),  # noqa: E501
        ("s3://", ConfigError, "names no bucket or host"),
        ("s3://data/train?color=red", ConfigError, "option 'color' is unknown"),
        ("nope://data/x", ConfigError, "nope:// cannot be read"),
    ],
)  # fmt: skip
def test_messages(s3: S3Server, uri: str, kind: type[SidecarError], text: str) -> None:
    with pytest.raises(kind, match=text):
        list_shards([uri])


def test_a_key_that_may_not_read(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with FaultProxy(s3.port, plan=lambda _: "denied") as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        with pytest.raises(DataError, match="HTTP 403 AccessDenied; it may not be read with these credentials"):
            build_manifest(["s3://data/train"])
        # Asked for the object and for the listing, each once: a refusal is no outage.
        assert len(proxy.log) == 2


def test_no_credentials(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(DataError, match=r"no credentials were found; set AWS_ACCESS_KEY_ID .* \?anonymous=true"):
        list_shards(["s3://data/train"])
    assert len(list_shards(["s3://data/train?anonymous=true"]).paths) == 5


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        (
            "AWS_ENDPOINT_URL",
            "http://$(STORE)",
            r"Invalid endpoint: http://\$\(STORE\); check the URI's options, AWS_END",
        ),
        ("AWS_PROFILE", "nobody", r"The config profile \(nobody\) could not be found; check"),
        ("AWS_DEFAULT_REGION", "us east", "us east.*doesn't match a supported format.*; check"),
    ],
)
def test_settings_that_make_no_client(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, name: str, value: str, text: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"data\.uri s3://data: no client can be made of these settings: .*" + text):
        list_shards(["s3://data/train"])


def test_a_server_that_is_not_there(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANEFEED_READ_PATIENCE_SECONDS", "1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(DataError, match=r"no connection; tried \d+ times in \d+ s; the store cannot be reached"):
        list_shards(["s3://data/train"])


def test_a_damaged_object_is_set_aside_by_policy(s3: S3Server, tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and no more of it")
    s3.put_folder(tmp_path, "mixed", bucket="bad")
    uris = ["s3://bad/mixed", "s3://data/train/000.parquet"]
    with pytest.raises(DataError, match=r"s3://bad/mixed/bad\.parquet \(22 bytes\) cannot be read: it does not end"):
        build_manifest(uris)
    made = build_manifest(uris, on_corrupt="Quarantine").manifest
    assert [path for path, _ in made.quarantined] == ["s3://bad/mixed/bad.parquet"]
    assert [s.path for s in made.shards] == ["s3://data/train/000.parquet"]
