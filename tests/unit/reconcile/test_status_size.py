"""The status stays below 64 KiB whatever users, shards and ranks do (public reports: statuses too large to write)."""

import json

from hypothesis import example, given, settings
from hypothesis import strategies as st

from lanefeed_core.book import KEEP, Book, JobCommit
from lanefeed_core.ledger import Entry, Ledger
from lanefeed_operator.api.status import EpochProof, Status
from lanefeed_operator.reconcile import reconcile
from lanefeed_operator.reconcile import types as t
from lanefeed_operator.reconcile.conditions import clip
from sim.jobs import MANIFEST, NOW, kids, make_job, pod, view

WORDS = st.text(min_size=0, max_size=5000)


@settings(max_examples=25, deadline=None)
@given(WORDS, WORDS, st.integers(1, 3000), st.booleans())
def test_worst_cases_fit(message: str, path: str, ranks: int, failing: bool) -> None:
    name = "\u00e9" * 256
    ledger = Ledger({e: Entry(2**62, 2**64 - 1) for e in range(2)})
    commits = [JobCommit(2**40 + i, name, 2**30, ledger) for i in range(KEEP)]
    book = Book(1, ranks, commits, void=commits[:4])
    proof = EpochProof(epoch=2**30, samples=2**60, digest="f" * 16, expected="e" * 16, verified=False, recomputed=True)
    feed = t.FeedView(
        version=9,
        plan_generation=1,
        ranks={r: view(r, 2**40) for r in range(ranks)},
        book=book.to_dict(),
        last_step=2**40,
        last_name=name,
        last_generation=1,
        proofs=tuple(proof.model_copy(update={"epoch": e}) for e in range(500)),
        failures=(t.FeedFailure("DataError", message, not failing),),
        quarantined=tuple((f"{path}-{n}", message) for n in range(300)),
        disagree=dict.fromkeys(range(ranks), 2**40),
    )
    children = kids(1, ranks, failures=dict.fromkeys(range(ranks), 99), pods=(pod(0, "Failed", message=message),))
    seen = t.Observed({1: children}, frozenset({1}), MANIFEST, feed)
    job = make_job(replicas=1, batching={"globalBatchSize": 5000, "uneven": "Allow", "lanes": 1, "lastBatch": "Pad"})
    status = Status()
    for _ in range(6):
        status = reconcile(job, status, seen, NOW).status
    text = json.dumps(status.to_dict())
    assert len(text.encode()) < 64 << 10
    assert Status.model_validate(json.loads(text)) == status


@example("\U00010000" * 17)
@given(st.text(max_size=3000))
def test_clip_counts_what_json_writes(text: str) -> None:
    kept = clip(text, 200)
    assert len(json.dumps(kept)) <= 202
    assert kept == text or kept.endswith("...")
