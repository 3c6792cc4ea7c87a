"""Golden files: every permutation and every serialized form is pinned. A change here changes users' order of samples.

Regenerate with `LANEFEED_GOLDEN=write pytest tests/unit/core/test_golden.py` only together with a new ORDER_VERSION,
STATE_VERSION, CONFIG_VERSION or manifest magic.
"""

import base64
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lanefeed_core import expected, ledger, manifest_codec, permute
from lanefeed_core.book import Book, JobCommit
from lanefeed_core.cursor import Cursor, Part, SavedState
from lanefeed_core.lanes import Lanes
from lanefeed_core.layout import Column
from lanefeed_core.manifest import Field, Manifest, Shard
from lanefeed_core.plan import Plan, pod_reads
from lanefeed_core.podconfig import PodConfig
from lanefeed_core.stream import StreamSpec
from lanefeed_core.wire import StreamInfo

FOLDER = Path(__file__).parent / "golden"
SPEC = StreamSpec(seed=42, global_batch_size=8, lanes=4, window=4, last_batch="Partial")
SHARDS = tuple(
    Shard(f"data/part-{i:02d}.parquet", 1000 + i, (3 + i, 4), (96, 128), f"m{i}", f"{i:032x}", f"{i:016x}")
    for i in range(5)
)
MANIFEST = Manifest(SHARDS, (Field("tokens", "fixed_size_list<int32>[4]"), Field("label", "int64", True)), root="/d")
LANES = Lanes(SPEC, MANIFEST.shard_rows)
PLAN = Plan(3, 2, 2, Cursor(1, 2), allow_uneven=True)


def _permutations() -> dict[str, Any]:
    cases = [(n, seed) for n in (2, 3, 7, 64, 257, 1024) for seed in (0, 1, 2**64 - 1)]
    made = {}
    for n, seed in cases:
        full = permute.permutation(n, seed=seed, domain=permute.WINDOW, source=1, epoch=2, lane=3, window=4)
        digest = np.array([ledger.sum_ids(full * (n + 1) + np.arange(n))], dtype=np.uint64)
        made[f"{n}/{seed}"] = {"first": full[:16].tolist(), "digest": f"{int(digest[0]):016x}"}
    return made


def _order() -> dict[str, Any]:
    specs = {
        "partial": SPEC,
        "pad": StreamSpec(**{**SPEC.to_dict(), "last_batch": "Pad", "lanes": 3}),
        "drop": StreamSpec(**{**SPEC.to_dict(), "last_batch": "Drop", "lanes": 8}),
        "plain": StreamSpec(**{**SPEC.to_dict(), "shuffle": False, "lanes": 1}),
        "continuous": StreamSpec(**{**SPEC.to_dict(), "boundary": "Continuous"}),
    }
    made = {}
    for name, spec in specs.items():
        lanes = Lanes(spec, MANIFEST.shard_rows)
        steps = lanes.steps_per_epoch if spec.aligned else 12
        epochs = (0, 1) if spec.aligned else (0,)
        made[name] = [[lanes.batch(e, s)[0].tolist() for s in range(steps)] for e in epochs]
    return made


def _ledger() -> dict[str, Any]:
    entry = expected.epoch_entry(LANES, 1)
    return {
        "hash": [f"{int(h):016x}" for h in ledger.hash_ids(np.array([0, 1, 2, 10**12]))],
        "epoch": [entry.count, f"{entry.total:016x}"],
        "prefix": expected.prefix(LANES, Cursor(1, 3)).to_dict(),
    }


def _documents() -> dict[str, Any]:
    part = Part(1, 4, 0, expected.prefix(LANES, Cursor(0, 2)))
    book = Book(3, 2, [JobCommit(0, "", 0, ledger.Ledger()), JobCommit(2, "ckpt/2", 3, part.ledger)])
    config = PodConfig(
        job="demo",
        job_uid="u",
        pod_index=1,
        pod_uid="p",
        plan=PLAN,
        spec=SPEC,
        epochs=2,
        manifest_path="/m",
        run_dir="/r",
    )
    column = Column("tokens", "int32", (4,), nullable=True)
    info = StreamInfo("demo", MANIFEST.digest, 45, SPEC, (column,), 6, 2, 0, 2, 3)
    return {
        "state": SavedState(MANIFEST.digest, SPEC, Cursor(1, 2), part).to_dict(),
        "plan": PLAN.to_dict(),
        "reads": [repr(r) for r in pod_reads(PLAN, LANES, MANIFEST, 0)],
        "book": book.to_dict(),
        "config": json.loads(config.to_json()),
        "info": json.loads(info.to_json()),
        "manifest_digest": MANIFEST.digest,
        "manifest": base64.b64encode(manifest_codec.encode(MANIFEST)).decode(),
    }


@pytest.mark.parametrize("make", [_permutations, _order, _ledger, _documents])
def test_golden(make: Any) -> None:
    file = FOLDER / f"{make.__name__.strip('_')}.json"
    made = json.loads(json.dumps(make()))
    if os.environ.get("LANEFEED_GOLDEN") == "write":
        file.write_text(json.dumps(made, indent=1) + "\n")
    assert made == json.loads(file.read_text())


def test_golden_documents_can_still_be_read() -> None:
    """What an earlier build wrote is read by this one to the same values."""
    saved = json.loads((FOLDER / "documents.json").read_text())
    assert SavedState.from_dict(saved["state"]).to_dict() == saved["state"]
    assert Plan.from_dict(saved["plan"]) == PLAN
    assert Book.from_dict(saved["book"]).to_dict() == saved["book"]
    assert json.loads(PodConfig.from_json(json.dumps(saved["config"])).to_json()) == saved["config"]
    assert json.loads(StreamInfo.from_json(json.dumps(saved["info"])).to_json()) == saved["info"]
    assert manifest_codec.decode(base64.b64decode(saved["manifest"])) == MANIFEST


def test_a_permutation_that_is_off_by_one_row_is_seen() -> None:
    """Tooth: swap two rows of one pinned permutation, and the comparison above fails."""
    pinned = json.loads((FOLDER / "permutations.json").read_text())
    made = _permutations()
    made["64/1"]["first"][0:2] = made["64/1"]["first"][1::-1]
    assert json.loads(json.dumps(made)) != pinned
