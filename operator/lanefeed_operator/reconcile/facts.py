"""Facts into the status: commits, ledger, counters, progress. Decides nothing.

Commits and counters are written at once, progress at most every 10 s unless something else is written anyway.
"""

from collections.abc import Sequence

from lanefeed_core.cursor import Cursor
from lanefeed_operator.api.labels import pod_selector
from lanefeed_operator.api.status import (
    CursorStatus,
    EpochProof,
    LedgerStatus,
    Progress,
    RankProgress,
    StreamStatus,
    to_time,
)
from lanefeed_operator.reconcile.conditions import clip
from lanefeed_operator.reconcile.context import Pass
from lanefeed_operator.reconcile.types import FeedView, RankView

__all__ = ["absorb", "refresh_progress", "remember_epochs"]

PROGRESS_SECONDS = 10.0
MAX_RANKS = 64
MAX_EPOCHS = 32
MAX_QUARANTINED = 16
MAX_FAILURES = 256


def absorb(p: Pass) -> bool:
    """Take in what was observed. Never ends the pass."""
    selector = ",".join(f"{key}={value}" for key, value in pod_selector(p.job.metadata.name).items())
    p.set(observed_generation=p.job.metadata.generation, selector=selector)
    _book(p)
    _counters(p)
    _quarantined(p)
    children = p.children
    p.set(ready_replicas=children.ready if children else 0)
    return False


def _book(p: Pass) -> None:
    """The coordinator began from this very status, so its book is the newer one; none yet: keep ours.

    Where a job is when it ends stays: pods that are being ended may yet begin from an older checkpoint and say so.
    """
    feed = p.observed.feed
    if not feed.book or p.before.terminal:
        return
    p.set(book=dict(feed.book))
    stream = p.status.stream
    if stream is None:
        return
    at = Cursor.from_total(feed.last_step, stream.steps_per_epoch, aligned=stream.boundary == "Aligned")
    p.set(
        cursor=CursorStatus(
            epoch=at.epoch,
            step=at.step,
            total_step=feed.last_step,
            commit=feed.last_name,
            plan_generation=feed.last_generation,
        ),
        ledger=remember_epochs(feed.proofs, feed.proven),
    )


def remember_epochs(proofs: Sequence[EpochProof], proven: int) -> LedgerStatus:
    """The bounded ledger status: how many epochs are proven, and the newest ones."""
    return LedgerStatus(verified=proven, epochs=list(proofs[-MAX_EPOCHS:]))


def _counters(p: Pass) -> None:
    """Count what is new since the last write: exactly once, since plan and totals are written together."""
    children = p.children
    if children is None:
        return
    plan = p.status.plan
    # Of a plan that ends ranks leave, or are ended: under a launcher that looks like a failure (torchrun exits with 1).
    ending = p.status.stop is not None or children.deleting
    counted = {} if ending else children.failures
    failures = {i: max(n, plan.failures.get(i, 0)) for i, n in counted.items() if n}
    merged = {**plan.failures, **failures}
    failed = max(plan.failed, sum(merged.values()))
    disruptions = max(plan.disruptions, children.disruptions)
    if (failed, disruptions) == (plan.failed, plan.disruptions):
        return
    new_failures, new_disruptions = failed - plan.failed, disruptions - plan.disruptions
    worst = dict(sorted(sorted(merged.items(), key=lambda item: -item[1])[:MAX_FAILURES]))
    p.set_plan(failures=worst, failed=failed, disruptions=disruptions)
    reason = "PodFailed" if new_failures else "PodDisrupted"
    p.count(reason, failures=new_failures, disruptions=new_disruptions)


def _quarantined(p: Pass) -> None:
    manifest = p.observed.manifest
    bad = {**dict(manifest.quarantined if manifest else ()), **dict(p.observed.feed.quarantined)}
    if bad:
        listed = [clip(f"{path}: {reason}", 256) for path, reason in sorted(bad.items())]
        more = len(listed) - MAX_QUARANTINED
        p.set(quarantined=listed if more <= 0 else [*listed[: MAX_QUARANTINED - 1], f"and {more + 1} more"])


def refresh_progress(p: Pass) -> None:
    """Last of all: progress, if it is due or the status is written anyway."""
    if p.status.terminal:
        # Whoever is left says nothing that counts; and what is over is not written again.
        p.set(ready_replicas=0)
    stream, feed = p.status.stream, p.observed.feed
    if p.before.terminal or stream is None or not feed.ranks or feed.plan_generation != p.generation:
        return
    new = _progress(stream, feed, p.status.progress.time)
    if p.status.terminal:
        new = new.model_copy(update={"steps_per_second": 0.0})
    old = p.status.progress
    if new == old:
        return
    age = p.since(old.time)
    if age < PROGRESS_SECONDS and p.status == p.before:
        p.look_again(PROGRESS_SECONDS - age)
        return
    stall = max((view.stall_percent for view in feed.ranks.values()), default=0.0)
    p.set(progress=new.model_copy(update={"time": to_time(p.now)}), stall_percent=round(stall, 2))


def _progress(stream: StreamStatus, feed: FeedView, time: str) -> Progress:
    views = sorted(feed.ranks.values(), key=lambda view: (view.consumed, view.rank))
    slowest = views[0].consumed
    shown = sorted(views[:MAX_RANKS], key=lambda view: view.rank)
    return Progress(
        time=time,
        consumed=slowest,
        fastest=views[-1].consumed,
        percent=round(100.0 * slowest / max(1, stream.total_steps), 1),
        steps_per_second=round(feed.rate, 2),
        ranks=[_rank(view) for view in shown],
    )


def _rank(view: RankView) -> RankProgress:
    return RankProgress(
        rank=view.rank,
        consumed=view.consumed,
        started=view.started,
        attached=view.attached,
        ended=view.ended,
        stall_percent=round(view.stall_percent, 2),
    )
