"""The pure policies of remote reads: how many requests at once, when a second one, and what names mean."""

import email.utils
import random
import time

import botocore.exceptions
import pytest

from lanefeed_sidecar.formats.ranges import coalesce
from lanefeed_sidecar.sources import join, names, relative
from lanefeed_sidecar.sources.hedge import Hedge
from lanefeed_sidecar.sources.objects import ReadFailed
from lanefeed_sidecar.sources.pace import Pace
from lanefeed_sidecar.sources.reads import Reads, Settings
from lanefeed_sidecar.sources.s3 import S3Store


def outage(pace: Pace, seconds: float, kind: str, start: float = 0.0) -> list[float]:
    """32 readers ask again as soon as they may; every request takes 10 ms and fails. When requests were made."""
    now, asked, running = start, [], []
    while now < start + seconds:
        for began in [b for b in running if b + 0.01 <= now]:
            running.remove(began)
            pace.ended(began, now, kind)
        while len(running) < 32 and not pace.wait(now):
            running.append(now)
            asked.append(now)
        now += 0.005
    for began in running:
        pace.ended(began, now, kind)
    return asked


@pytest.mark.parametrize("kind", ["throttled", "connect", "reset", "timeout", "server"])
def test_an_outage_is_asked_now_and_then(kind: str) -> None:
    asked = outage(Pace(32, random.Random(1).random), 60, kind)
    assert len([t for t in asked if t < 1]) < 150
    late = [t for t in asked if t > 20]
    assert 8 <= len(late) <= 40, "at most about one in 1.5 s, whatever number of readers there is"


def test_after_an_outage_requests_rise_with_successes() -> None:
    pace = Pace(32, random.Random(1).random)
    outage(pace, 60, "connect")
    now = 80.0
    atonce = []
    for _ in range(8):
        running = 0
        while not pace.wait(now):
            running += 1
        atonce.append(running)
        for _ in range(running):
            pace.ended(now, now + 0.05, "")
        now += 0.05
    assert atonce[:6] == [1, 2, 4, 8, 16, 32]
    assert max(atonce) == 32


def test_failures_that_say_nothing_of_the_store_slow_nobody() -> None:
    pace = Pace(8, random.Random(1).random)
    for kind in ("expired", "denied", "missing", "range", "short", "cancelled", "changed") * 5:
        assert pace.wait(1.0) == 0
        pace.ended(1.0, 1.0, kind)
    assert pace.limit == 8


def test_one_event_is_counted_once() -> None:
    """Requests that were under way together and are all throttled halve the number once, not ten times."""
    pace = Pace(32, lambda: 0.0)
    for _ in range(10):
        pace.wait(0.0)
    for _ in range(10):
        pace.ended(0.0, 0.1, "throttled")
    assert pace.limit == 16


def test_retry_after_is_waited_for() -> None:
    pace = Pace(4, lambda: 0.5)
    pace.wait(0.0)
    pace.ended(0.0, 0.1, "throttled", retry_after=10)
    assert pace.wait(10.0) > 0
    assert pace.wait(10.1 + 10 * 0.25 + 0.01) == 0


def test_a_read_is_stuck_after_what_is_usual() -> None:
    hedge = Hedge()
    assert hedge.after(1 << 20) == 2.0
    for i in range(100):
        hedge.took(1 << 20, 0.1 + (5.0 if i % 25 == 0 else 0.0))
    assert 0.1 < hedge.after(1 << 20) < 0.2
    assert hedge.after(64) == 2.0, "small reads are of another kind"


def test_hedges_are_a_few_percent() -> None:
    """Tooth against hedging a store that is slow as a whole: all reads look stuck."""
    hedge, sent = Hedge(), 0
    for _ in range(1000):
        sent += hedge.take()
        hedge.took(1 << 20, 1.0)
    assert 40 <= sent <= 53


def test_a_read_that_hangs_is_hedged_though_slow_ones_have_spent_the_allowance() -> None:
    hedge = Hedge()
    while hedge.take():
        pass
    assert hedge.urgent(64) > hedge.after(64)
    assert [hedge.take(urgent=True) for _ in range(5)] == [True] * 4 + [False]
    for _ in range(1000):
        hedge.took(64, 0.1)
    sent = sum(hedge.take(urgent=True) for _ in range(100))
    assert sent == 6


@pytest.mark.parametrize(
    ("root", "path", "whole"),
    [
        ("/data", "a/b.parquet", "/data/a/b.parquet"),
        ("", "/data/a", "/data/a"),
        ("s3://b/x", "a.parquet", "s3://b/x/a.parquet"),
        ("s3://b/", "a.parquet", "s3://b/a.parquet"),
        ("s3://b/x?endpoint_override=h:1&scheme=http", "a", "s3://b/x/a?endpoint_override=h:1&scheme=http"),
        ("", "s3://b/a", "s3://b/a"),
        ("https://h:8/x", "y/z.parquet", "https://h:8/x/y/z.parquet"),
    ],
)
def test_join_and_relative(root: str, path: str, whole: str) -> None:
    assert join(root, path) == whole
    assert relative(whole, root) == path


def test_common_roots() -> None:
    assert names.common_root(["/a/b/x", "/a/c/y"]) == "/a"
    assert names.common_root(["s3://b/t/1/x", "s3://b/t/2/y"]) == "s3://b/t"
    assert names.common_root(["s3://b/x", "s3://b/y"]) == "s3://b/"
    assert names.common_root(["s3://b/x", "s3://c/y"]) == ""
    assert names.common_root(["s3://b/x", "/y"]) == ""
    # A question mark is a wildcard where no option follows.
    assert names.parse("s3://b/t/?.parquet").key == "t/?.parquet"


def test_a_path_with_a_colon_is_local() -> None:
    assert not names.is_remote("/data/a:b")
    assert not names.is_remote("file:///data")
    assert names.is_remote("hf://datasets/x")


def test_coalesced_ranges() -> None:
    assert coalesce([(100, 50), (0, 100), (1000, 10)], hole=100) == [(0, 150), (1000, 10)]
    assert coalesce([(100, 50), (0, 100), (250, 10)], hole=100) == [(0, 260)]
    assert coalesce([(0, 100), (10, 20)], hole=0) == [(0, 100)]


def test_a_store_that_asks_for_an_hour_is_asked_again_after_a_minute() -> None:
    """Its word stops every reader, and would outlast their patience."""
    pace = Pace(4, lambda: 0.0)
    pace.wait(0.0)
    pace.ended(0.0, 0.0, "throttled", retry_after=float("inf"))
    assert pace.wait(59.0) > 0
    assert pace.wait(61.0) == 0


class Store:
    """A store whose credentials can be renewed."""

    place = "s3://b"

    def refresh(self, _: float) -> bool:
        return True

    def close(self) -> None:
        pass


def test_new_credentials_are_tried_however_long_the_store_was_away() -> None:
    """Twenty seconds of grace begin when the old ones are refused, not when the read began."""
    now = [0.0]
    reads = Reads(Store(), settings=Settings(base=1.0, most=1.0), clock=lambda: now[0], rng=lambda: 0.0)  # type: ignore[arg-type]
    answers = iter(["short"] * 20 + ["expired"] * 2 + [""])

    def action() -> str:
        now[0] += 5.0
        kind = next(answers)
        if kind:
            raise ReadFailed(kind, kind)
        return "read"

    assert reads.persist(action) == "read"
    answers = iter(["expired"] * 20)
    with pytest.raises(ReadFailed, match="expired"):
        reads.persist(action)
    assert len(list(answers)) > 10, "they do not come"
    reads.close()


def _client_error(status: int, code: str, wait: str = "") -> botocore.exceptions.ClientError:
    about = {"HTTPStatusCode": status, "HTTPHeaders": {"retry-after": wait} if wait else {}}
    return botocore.exceptions.ClientError({"Error": {"Code": code}, "ResponseMetadata": about}, "AssumeRole")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (botocore.exceptions.EndpointConnectionError(endpoint_url="https://sts"), "connect"),
        (botocore.exceptions.MetadataRetrievalError(error_msg="no answer"), "connect"),
        (botocore.exceptions.ReadTimeoutError(endpoint_url="https://sts"), "timeout"),
        (_client_error(429, "Throttling"), "throttled"),
        (_client_error(500, "InternalError"), "server"),
        (botocore.exceptions.NoCredentialsError(), "credentials"),
    ],
)
def test_what_signing_fails_with_is_a_kind_of_failure(
    error: Exception, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials that end soon are renewed when a read is signed, and what renews them can be away for a moment."""
    assert _signed(error, monkeypatch).kind == kind


@pytest.mark.parametrize(
    ("wait", "low", "high"),
    [("30", 30, 30), (" 7 ", 7, 7), (email.utils.formatdate(time.time() + 1e5, usegmt=True), 1e4, 1e5), ("soon", 0, 0)],
    # Names of their own: two workers that collect in different seconds must find the same tests.
    ids=["seconds", "spaces", "a date", "a word"],
)
def test_what_botocore_was_asked_to_wait(wait: str, low: float, high: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In seconds, or until a date."""
    assert low <= _signed(_client_error(503, "SlowDown", wait), monkeypatch).retry_after <= high


def _signed(error: Exception, monkeypatch: pytest.MonkeyPatch) -> ReadFailed:
    """What a read fails with where signing fails with `error`."""
    for name, value in {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}.items():
        monkeypatch.setenv(name, value)
    store = S3Store(names.parse("s3://bucket/key?region=us-east-1"))

    def fail(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(store._s3, "generate_presigned_url", fail)
    with pytest.raises(ReadFailed) as caught:
        store._url("key")
    store.close()
    return caught.value
