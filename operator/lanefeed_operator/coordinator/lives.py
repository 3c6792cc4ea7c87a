"""Lives of ranks: when a report tells of a new one, and whether the lives of a plan fit together.

A rank's life begins when its trainer attaches with (or without) a checkpoint's state, and goes on over restarts of its
sidecar. The step at which lives began is the truth about what the trainer restored. Used by `core` alone; pure.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from enum import Enum

from lanefeed_core.book import JobCommit
from lanefeed_operator.coordinator.reports import RankReport
from lanefeed_operator.reconcile.types import RankView

__all__ = ["Change", "Life", "allowed", "change", "common_start", "counted", "differ", "merge", "view"]


class Change(Enum):
    """What a report says about a rank's life."""

    #: The rank has not attached in this session.
    ABSENT = "absent"
    CONTINUES = "continues"
    NEW = "new"


@dataclass(frozen=True, slots=True)
class Life:
    """One life. `born`: the event number at which it was first seen; 0: it was under way by then."""

    pod_index: int
    pod_uid: str
    session: str
    report: RankReport
    born: int
    #: False where only a session was resumed, so that the life's own start is not known.
    sure: bool
    #: The start is a commit that this plan may begin from, or was trusted.
    fits: bool
    at: float


def change(old: Life | None, report: RankReport, pod_uid: str) -> Change:
    """Compare a report with what is known."""
    r = report
    if not (r.attached or r.ended or r.started or r.consumed or r.from_state):
        return Change.ABSENT
    if old is None or old.pod_uid != pod_uid:
        return Change.NEW
    if _resumed(r):
        return Change.CONTINUES
    same = (r.started, r.from_state) == (old.report.started, old.report.from_state)
    return Change.CONTINUES if same and r.consumed >= old.report.consumed else Change.NEW


def _resumed(report: RankReport) -> bool:
    """The same trainer with a new session: it said where it stands, not where it began."""
    return report.started > 0 and not report.from_state


def merge(
    old: Life | None, report: RankReport, where: tuple[int, str, str], *, event: int, now: float, recovered: bool
) -> Life:
    """The life after `report`.

    Args:
        old: what is known of the rank.
        where: pod index, pod UID, session.
        event: number of this event, for `born`.
        recovered: the coordinator itself began anew inside this plan, so a life that is under way is trusted.
    """
    index, uid, session = where
    what = change(old, report, uid)
    if old is not None and what is Change.ABSENT:
        gone = replace(old.report, attached=False)
        return replace(old, report=gone, session=session, at=now)
    if old is not None and what is Change.CONTINUES:
        kept = replace(
            report,
            started=old.report.started,
            from_state=old.report.from_state,
            ended=report.ended or old.report.ended,
            consumed=max(report.consumed, old.report.consumed),
        )
        return replace(old, report=kept, session=session, at=now)
    sure = not _resumed(report)
    trusted = not sure or (recovered and old is None and report.consumed > report.started)
    return Life(index, uid, session, report, 0 if trusted else event, sure, trusted, now)


def allowed(commits: Iterable[JobCommit], generation: int) -> set[int]:
    """Steps at which a rank of plan `generation` may begin: its base commit, and the commits made in this plan."""
    older = [c.step for c in commits if c.plan_generation < generation]
    mine = {c.step for c in commits if c.plan_generation == generation}
    return mine | ({older[-1]} if older else set())


def common_start(lives: Mapping[int, Life]) -> int | None:
    """The step at which all lives began, None where they differ or one is not known."""
    starts = {life.report.started if life.sure else -1 for life in lives.values()}
    only = starts.pop() if len(starts) == 1 else -1
    return only if only >= 0 else None


def counted(life: Life | None, stop: int, event: int, known: Set[int]) -> bool:
    """Whether a rank's commit up to `stop`, which a persisted commit of the job covers, is a part of that.

    A life that began after that commit was made (by event number `event`; 0: by a former coordinator) does steps of it
    again. These count for nothing while it is alone in that, and for all when every rank turns out to have gone back:
    so the sidecar keeps them until the job's next commit. Of a life that was under way when the coordinator began
    nobody knows; where its commit is of one of the `known` steps, ranks can go on from that.
    """
    if life is not None and life.sure and stop <= life.report.started:
        return True
    born = life.born if life is not None else 0
    return born <= event if event or born else stop in known


def differ(old: Life, new: Life) -> bool:
    """Whether more than the number of steps consumed and the time spent is different."""
    marks = [(x.born, x.sure, x.fits, x.pod_uid, x.report.attached, x.report.ended) for x in (old, new)]
    return marks[0] != marks[1]


def view(life: Life) -> RankView:
    """The life as reconcile sees it."""
    r = life.report
    return RankView(
        rank=r.rank,
        pod_index=life.pod_index,
        pod_uid=life.pod_uid,
        session=life.session,
        started=r.started,
        from_state=r.from_state,
        consumed=r.consumed,
        attached=r.attached,
        ended=r.ended,
        wait_seconds=r.wait_seconds,
        step_seconds=r.step_seconds,
        at=life.at,
    )
