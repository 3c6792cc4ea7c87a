"""What a sidecar leaves in its container's termination message: its final state, for a control plane that was away.

A pod ends when its trainers have ended, whoever listens. The sidecar hands over its last commits while it may; what is
not acknowledged by then goes into these few kilobytes, which the kubelet puts into the pod's status. Written by the
sidecar, read by the operator, which treats it as one more report: the same session, the next sequence number. Pure.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lanefeed_core.errors import CoreError
from lanefeed_core.ledger import Ledger

__all__ = ["MAX_BYTES", "Commit", "Failure", "LastWords", "LastWordsError", "Rank", "decode", "encode", "recognised"]

VERSION = 1
#: The kubelet keeps 4096 bytes of a container, and 12 KiB of a pod in equal parts for each container it has (init
#: containers too): this fits pods of up to four. A message that was cut is no document, and is not used.
MAX_BYTES = 3072

_PREFIX = '{"lanefeed":'
#: Commits kept apart for each rank, where all of them do not fit; older ones are joined.
_KEEP = (16, 8, 4, 2, 1)
_SHORT_TEXT = 200
#: Of one pod; a ShardedTrainingJob may have 64.
MAX_RANKS = 1024
_INT64 = 1 << 63


class LastWordsError(CoreError):
    """A termination message that is no last words of this version, or was cut."""


@dataclass(frozen=True, slots=True)
class Rank:
    """Where a rank of the pod ended. Steps are total steps."""

    rank: int
    started: int
    from_state: bool
    consumed: int
    ended: bool


@dataclass(frozen=True, slots=True)
class Commit:
    """A rank's commit that was not acknowledged; `ledger` is what it consumed from `start` to `stop`."""

    rank: int
    start: int
    stop: int
    name: str
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong in this session."""

    kind: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWords:
    """The document. `why`: for people, who see the message in `kubectl describe pod`."""

    why: str
    job_uid: str
    pod_uid: str
    pod_index: int
    plan_generation: int
    session: str
    #: Larger than that of every report of the session.
    sequence: int
    ranks: tuple[Rank, ...] = ()
    commits: tuple[Commit, ...] = ()
    failures: tuple[Failure, ...] = ()
    #: Commits for which there was no room: the job goes on from the last one that all ranks have.
    left_out: int = 0


def recognised(text: str) -> bool:
    """Whether a termination message looks like last words, not like a line of a log."""
    return text.startswith(_PREFIX)


def encode(words: LastWords, limit: int = MAX_BYTES) -> str:
    """One line of ASCII of at most `limit` bytes: what does not fit is joined, shortened, or counted in `left_out`."""
    text = ""
    for candidate in _ever_shorter(words):
        text = _text(candidate)
        if len(text) <= limit:
            return text
    raise LastWordsError(f"last words take {len(text)} bytes at least, and {limit} are allowed")


def decode(text: str) -> LastWords:
    """The inverse of `encode`. Raises LastWordsError, whatever the text is: any program in a pod can write one."""
    try:
        data = json.loads(text)
        version = data["lanefeed"]
        if version != VERSION:
            raise LastWordsError(f"last words have version {version!r}: this Lanefeed knows {VERSION}")
        return _build(data)
    except LastWordsError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise LastWordsError(f"the termination message is no last words, or was cut: {error!r}") from None


# ---- the document ----------------------------------------------------------------------------------------------


def _text(words: LastWords) -> str:
    names = sorted({c.name for c in words.commits if c.name})
    number = {name: at for at, name in enumerate(names)}
    data: dict[str, Any] = {
        "lanefeed": VERSION,
        "why": words.why,
        "job": words.job_uid,
        "pod": words.pod_uid,
        "index": words.pod_index,
        "plan": words.plan_generation,
        "session": words.session,
        "sequence": words.sequence,
        "ranks": list(_runs(words.ranks)),
    }
    if names:
        data["names"] = names
    if words.commits:
        data["commits"] = [[c.rank, c.start, c.stop, number.get(c.name, -1), c.ledger.to_dict()] for c in words.commits]
    if words.failures:
        data["failures"] = [[f.kind, f.message, int(f.retryable)] for f in words.failures]
    if words.left_out:
        data["leftOut"] = words.left_out
    return json.dumps(data, separators=(",", ":"))


def _build(data: dict[str, Any]) -> LastWords:
    return LastWords(
        why=str(data["why"]),
        job_uid=str(data["job"]),
        pod_uid=str(data["pod"]),
        pod_index=_number(data["index"]),
        plan_generation=_number(data["plan"]),
        session=str(data["session"]),
        sequence=_number(data["sequence"]),
        ranks=tuple(_ranks(data["ranks"])),
        commits=tuple(_commits(data)),
        failures=tuple(Failure(str(k), str(m), bool(r)) for k, m, r in data.get("failures", ())),
        left_out=_number(data.get("leftOut", 0)),
    )


def _ranks(runs: Iterable[Sequence[Any]]) -> Iterator[Rank]:
    """Each rank of the runs; a run of a few bytes can stand for any number of ranks, so that it is looked at first."""
    left = MAX_RANKS
    for first, last, started, from_state, consumed, ended in runs:
        left -= max(0, _number(last) - _number(first) + 1)
        if left < 0:
            raise LastWordsError(f"last words tell of ranks {first} to {last}: a pod has {MAX_RANKS} at most")
        one = Rank(0, _number(started), bool(from_state), _number(consumed), bool(ended))
        yield from (replace(one, rank=rank) for rank in range(first, last + 1))


def _commits(data: Mapping[str, Any]) -> Iterator[Commit]:
    names = [str(name) for name in data.get("names", ())]
    for rank, start, stop, name, ledger in data.get("commits", ()):
        text = names[name] if name >= 0 else ""
        yield Commit(_number(rank), _number(start), _number(stop), text, Ledger.from_dict(ledger))


def _number(value: Any) -> int:
    """One that a report's field holds, too: what is larger makes nothing but trouble later. Raises LastWordsError."""
    if type(value) is not int or not 0 <= value < _INT64:
        raise LastWordsError(f"last words hold {str(value)[:40]!r} where a number from 0 to 2**63 - 1 belongs")
    return value


def _runs(ranks: Iterable[Rank]) -> Iterator[list[int]]:
    """Neighbouring ranks that ended alike are one entry: [first, last, started, from state, consumed, ended]."""
    run: list[int] = []
    for r in sorted(ranks, key=lambda r: r.rank):
        how = [r.started, int(r.from_state), r.consumed, int(r.ended)]
        if run and run[1] == r.rank - 1 and run[2:] == how:
            run[1] = r.rank
            continue
        if run:
            yield run
        run = [r.rank, r.rank, *how]
    if run:
        yield run


# ---- making it fit ---------------------------------------------------------------------------------------------


def _ever_shorter(words: LastWords) -> Iterator[LastWords]:
    """The words, then ever less of them; what matters least goes first."""
    yield words
    for keep in _KEEP:
        words = _joined(words, keep)
        yield words
    failures = tuple(replace(f, message=f.message[:_SHORT_TEXT]) for f in words.failures[:1])
    words = replace(words, failures=failures, why=words.why[:_SHORT_TEXT])
    yield words
    words = replace(words, commits=tuple(replace(c, name="") for c in words.commits))
    yield words
    # A part of the ranks' commits makes no commit of the job.
    words = replace(words, commits=(), left_out=words.left_out + len(words.commits))
    yield words
    yield replace(words, failures=(), ranks=())


def _joined(words: LastWords, keep: int) -> LastWords:
    """At most `keep` commits of each rank: older ones joined where they connect, left out where they do not."""
    found: list[Commit] = []
    left_out = words.left_out
    for rank in dict.fromkeys(c.rank for c in words.commits):
        mine = _join([c for c in words.commits if c.rank == rank], keep)
        left_out += max(0, len(mine) - keep)
        found += mine[-keep:]
    return replace(words, commits=tuple(found), left_out=left_out)


def _join(mine: Sequence[Commit], keep: int) -> list[Commit]:
    """Join connected neighbours, oldest first, until `keep` are left."""
    found: list[Commit] = []
    spare = len(mine) - keep
    for commit in mine:
        last = found[-1] if found else None
        if spare > 0 and last is not None and last.stop == commit.start:
            found[-1] = replace(commit, start=last.start, ledger=last.ledger + commit.ledger)
            spare -= 1
        else:
            found.append(commit)
    return found
