"""Planning stays cheap where a dataset has very many shards: counted, never timed (bench/scale has the figures)."""

import hashlib
import json
from collections.abc import Iterator

import pytest

from lanefeed_core.cursor import Cursor
from lanefeed_core.lanes import EpochLine, Lanes, ShardRun
from lanefeed_core.manifest import Field, Manifest, Shard
from lanefeed_core.plan import Plan, pod_reads
from lanefeed_core.stream import StreamSpec
from lanefeed_operator.render.plan import reads_text

FIELDS = (Field("x", "int64"),)


def manifest(shards: int) -> Manifest:
    return Manifest(tuple(Shard(f"p{n:06}", 10, (7,)) for n in range(shards)), FIELDS)


def lanes_of(data: Manifest, lanes: int = 256) -> Lanes:
    return Lanes(StreamSpec(seed=1, global_batch_size=lanes, lanes=lanes, window=256), data.shard_rows)


def test_ranges_that_are_not_shown_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text shrinks until it fits; shards are walked once, and only as far as they are spelled out."""
    data = manifest(20_000)
    lanes, looked = lanes_of(data), 0
    real = EpochLine.shard_runs

    def counted(self: EpochLine, start: int, stop: int) -> Iterator[ShardRun]:
        nonlocal looked
        for run in real(self, start, stop):
            looked += 1
            yield run

    monkeypatch.setattr(EpochLine, "shard_runs", counted)
    text = reads_text(Plan(1, 128, 1, Cursor(0, 0)), lanes, data)
    assert text.count("pod ") == 128
    assert " ..." in text
    assert looked <= 128 * 65


def test_a_limit_only_cuts_the_list() -> None:
    data = manifest(500)
    lanes, plan = lanes_of(data, 16), Plan(1, 3, 1, Cursor(0, 0), allow_uneven=True)
    whole, cut = pod_reads(plan, lanes, data, 0, limit=10_000), pod_reads(plan, lanes, data, 0, limit=5)
    assert [r.ranges[:5] for r in whole] == [r.ranges for r in cut]
    assert [r.rows for r in whole] == [r.rows for r in cut]
    assert len({path.partition("[")[0] for r in whole for path in r.ranges}) == 500


@pytest.mark.parametrize(
    "path", ["plain", 'quo"te', "back\\slash", "new\nline", "umlaut \u00fc", "astral \U0001f600", "\x7f"]
)
def test_the_digest_is_that_of_json_lines(path: str) -> None:
    """Lines are put together by hand for speed; the digest is what it always was."""
    shard = Shard(path, 123, (4, 5), (1, 2), "etag", 'f"p', "c")
    head = {"v": 1, "format": "parquet", "fields": [["x", "int64", False]]}
    h = hashlib.blake2b(json.dumps(head, sort_keys=True, separators=(",", ":")).encode(), digest_size=16)
    h.update(b"\n" + json.dumps([path, 123, [4, 5], 'f"p'], separators=(",", ":")).encode())
    assert Manifest((shard,), FIELDS).digest == h.hexdigest()
