"""Stores that libraries read: what of a URI is the path, where keys come from, what an error's words say. No server."""

import ftplib
import re

import pytest

from lanefeed_sidecar.errors import ConfigError
from lanefeed_sidecar.sources.arrowfs import ArrowStore
from lanefeed_sidecar.sources.names import parse
from lanefeed_sidecar.sources.objects import KINDS, ReadFailed
from lanefeed_sidecar.sources.plugins import PluginStore
from lanefeed_sidecar.sources.telling import telling


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("gs://data/a/b", "data/a/b"),
        ("gs://anonymous@data/a/b", "data/a/b"),
        ("gs://data/a/b?anonymous=true&endpoint_override=127.0.0.1:1&scheme=http", "data/a/b"),
        ("s3a://data/a/b?region=us-east-1", "data/a/b"),
        # The three ways to write a place of Azure's; the account is no part of the path.
        ("abfs://box@account.dfs.core.windows.net/a/b", "box/a/b"),
        ("abfss://account.blob.core.windows.net/box/a/b", "box/a/b"),
        ("abfs://account@box/a/b", "box/a/b"),
    ],
)
def test_the_path_of_an_object(uri: str, path: str) -> None:
    name = parse(uri)
    store = ArrowStore(name)
    assert store._path(name.key) == path
    assert store._path("") == path.removesuffix(name.key).rstrip("/")


def test_azures_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    name = parse("abfs://box@account.dfs.core.windows.net/a")
    monkeypatch.delenv("AZURE_STORAGE_KEY", raising=False)
    monkeypatch.delenv("AZURE_STORAGE_SAS_TOKEN", raising=False)
    assert ArrowStore(name)._fs.__reduce__()[1][0]["account_key"] == ""
    monkeypatch.setenv("AZURE_STORAGE_KEY", "c2VjcmV0")
    store = ArrowStore(name)
    made = store._fs.__reduce__()[1][0]
    assert (made["account_name"], made["account_key"]) == ("account", "c2VjcmV0")
    assert "c2VjcmV0" not in store.place


@pytest.mark.parametrize("uri", ["gs://data/a?color=red", "abfs://", "hdfs://nobody:1/a"])
def test_what_makes_no_client_is_a_wrong_setting(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.uri"):
        ArrowStore(parse(uri))


def test_a_scheme_that_nobody_reads_and_an_option_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="nope:// cannot be read"):
        PluginStore(parse("nope://x/y"))

    def strict(url: str, *, skip_instance_cache: bool) -> None:
        """A package that takes no options."""

    monkeypatch.setattr("fsspec.core.url_to_fs", strict)
    with pytest.raises(ReadFailed, match=r"an option is not known: .*colour") as failed:
        PluginStore(parse("ftp://x/y?colour=red")).stat("y")
    assert not KINDS[failed.value.kind]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ftplib.error_perm("550 Not there."), "missing"),
        (ftplib.error_perm("530 Log in first."), "denied"),
        (ftplib.error_temp("421 Too many connections."), "server"),
        (EOFError(), "reset"),
        (ConnectionRefusedError(111, "Connection refused"), "connect"),
        (TimeoutError("timed out"), "timeout"),
        (OSError("google::cloud::Status(UNAVAILABLE: HTTP 503 Slow Down)"), "throttled"),
        (FileNotFoundError("x"), "missing"),
        (ValueError("I/O operation on closed file"), "reset"),
        (RuntimeError("nobody knows"), "reset"),
    ],
)
def test_words_tell_the_kind(error: Exception, kind: str) -> None:
    with pytest.raises(ReadFailed) as failed, telling(Exception):
        raise error
    assert failed.value.kind == kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        # A missing object is not asked for again, whatever its path is called.
        (FileNotFoundError("box/reset/403/part-0.parquet"), "missing"),
        (FileNotFoundError(2, "No such file or directory", "/data/timed out/denied.parquet"), "missing"),
        # What may pass is not given up for good.
        (TimeoutError("/box/403/part-0.parquet"), "timeout"),
        (ConnectionResetError("box/access denied.parquet"), "reset"),
        (OSError("When reading object 'data/403/part-0.parquet': connection closed"), "reset"),
        (OSError("gs://box/404/forbidden/part-0.parquet: HTTP 503"), "throttled"),
        # And what will not change is not tried for long.
        (PermissionError("box/reset/part-0.parquet"), "denied"),
        (PermissionError("The provided token has expired: box/reset"), "expired"),
    ],
)
def test_a_name_tells_nothing(error: Exception, kind: str) -> None:
    with pytest.raises(ReadFailed, match=re.escape(str(error))) as failed, telling(Exception):
        raise error
    assert failed.value.kind == kind
