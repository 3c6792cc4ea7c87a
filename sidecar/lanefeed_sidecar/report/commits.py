"""Rank commits that nobody has acknowledged yet, in `commits.jsonl`: they outlive the sidecar and any outage.

The feed appends (a trainer's commit returns once its line is in the file), the reporter sends and acknowledges. The
file lies in tmpfs, so a write survives any death of the process. Bounded: where an outage piles commits up, connected
ones that were never sent are joined, which keeps the newest checkpoint and the ledger's sum. And where more wait than a
report holds, since other ranks commit more seldom, the middle ones of each rank are: a part of what waits would never
make a commit of the job.
"""

import json
import logging
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lanefeed_core.ledger import Ledger
from lanefeed_core.proto import lanefeed_pb2 as pb
from lanefeed_sidecar.arena.folder import write_atomically
from lanefeed_sidecar.errors import SidecarError

__all__ = ["BATCH", "COMMITS_NAME", "CommitLog", "Pending"]

log = logging.getLogger(__name__)

COMMITS_NAME = "commits.jsonl"
#: Commits in one report; of a pod with many ranks SHARE for each.
BATCH = 64
#: The oldest ones and the newest ones of a rank, which are not joined.
SHARE = 4
#: Commits of one rank kept apart while they wait.
KEEP_PER_RANK = 128


@dataclass(slots=True)
class Pending:
    """One waiting commit. `sent`: the control plane may have it, so it must not change any more."""

    number: int
    message: pb.RankCommit
    sent: bool = False


class CommitLog:
    """The waiting commits of one pod. Thread safe."""

    def __init__(self, folder: Path, plan_generation: int, *, keep_per_rank: int = KEEP_PER_RANK) -> None:
        """Read what an earlier session left; commits of another plan generation are void."""
        self._path = folder / COMMITS_NAME
        self._generation = plan_generation
        self._keep = keep_per_rank
        self._lock = threading.Lock()
        self._next = 0
        self._pending: list[Pending] = []
        self._load()
        self._fd = self._open()

    def __len__(self) -> int:
        return len(self._pending)

    def append(self, message: pb.RankCommit) -> bool:
        """Keep a commit; False if it is there already (a trainer that did not hear the answer).

        Raises SidecarError where the file cannot be written; then nothing was kept.
        """
        with self._lock:
            if any(p.message == message for p in self._pending):
                return False
            self._write(_line(message, self._generation))
            self._add(message)
            if self._coalesce(message.rank):
                self._rewrite()
            return True

    def batch(self, limit: int = BATCH) -> list[Pending]:
        """What waits, of every rank, made to fit; from now on these stay as they are while all that waits fits."""
        with self._lock:
            limit = max(limit, SHARE * len({p.message.rank for p in self._pending}))
            if len(self._pending) > limit:
                self._fit(limit)
            found = self._fair(limit)
            for pending in found:
                pending.sent = True
            return list(found)

    def acknowledge(self, numbers: Iterable[int]) -> None:
        """These need not be sent again."""
        gone = set(numbers)
        with self._lock:
            kept = [p for p in self._pending if p.number not in gone]
            if len(kept) != len(self._pending):
                self._pending = kept
                self._rewrite()

    def close(self) -> None:
        """Close the file; what waits stays in it."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    # ---- the file ----------------------------------------------------------------------------------------------

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)

    def _write(self, line: bytes) -> None:
        before = os.fstat(self._fd).st_size
        try:
            done = os.write(self._fd, line)
            if done == len(line):
                return
            why = f"only {done} of {len(line)} bytes were written"
        except OSError as error:
            why = str(error.strerror)
        os.ftruncate(self._fd, before)
        raise SidecarError(f"the commit cannot be kept in {self._path}: {why}; make the tmpfs larger (run_dir)")

    def _rewrite(self) -> None:
        """Only what waits. Empty means that all is acknowledged: supervisors look at the size."""
        if not self._pending:
            os.ftruncate(self._fd, 0)
            return
        text = b"".join(_line(p.message, self._generation) for p in self._pending)
        try:
            write_atomically(self._path, text.decode(), 0o640)
        except OSError as error:
            # Lines that were acknowledged stay in the file: sending them again changes nothing.
            log.warning("cannot shorten %s: %s", self._path, error.strerror)
            return
        os.close(self._fd)
        self._fd = self._open()

    def _load(self) -> None:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        *lines, rest = data.split(b"\n")
        if rest:
            # The writer died within the line: the trainer had no answer and commits again.
            log.warning("%s ends in half a line: that commit was never answered", self._path)
        for line in lines:
            message = _parse(line, self._generation)
            if message is not None:
                # Which of them the earlier session sent, its last words included, died with it.
                self._add(message, sent=True)
        if self._pending:
            log.info("%d commits of an earlier session wait to be reported", len(self._pending))
        if rest or len(self._pending) != len(lines):
            text = b"".join(_line(p.message, self._generation) for p in self._pending)
            write_atomically(self._path, text.decode(), 0o640)

    # ---- bounds ------------------------------------------------------------------------------------------------

    def _add(self, message: pb.RankCommit, *, sent: bool = False) -> None:
        self._pending.append(Pending(self._next, message, sent))
        self._next += 1

    def _coalesce(self, rank: int) -> bool:
        """Join the rank's oldest connected commits that were never sent, down to the bound."""
        mine = [p for p in self._pending if p.message.rank == rank and not p.sent]
        joined = False
        while len(mine) > self._keep:
            pair = _connected(mine)
            if pair is None:
                break
            first, second = mine[pair], mine.pop(pair + 1)
            self._pending.remove(second)
            first.message = _join(first.message, second.message)
            joined = True
        return joined

    def _fit(self, limit: int) -> None:
        """Join connected commits of each rank down to its share of a report.

        Those that were sent too: under a new number, so that an answer to the former ones acknowledges none of it. What
        the control plane has of the same start is replaced there, and where it made a commit of the job out of a part
        by then, it cuts that off (`Prover.cut`). The oldest and the newest stay apart: those others are to commit yet.
        """
        share = self._share(limit)
        joined = False
        for rank in {p.message.rank for p in self._pending}:
            mine = [p for p in self._pending if p.message.rank == rank]
            while len(mine) > share:
                pair = _connected(mine, share // 2)
                if pair is None:
                    break
                first, second = mine[pair], mine.pop(pair + 1)
                self._pending.remove(second)
                first.message, first.number = _join(first.message, second.message), self._next
                self._next += 1
                joined = True
        if joined:
            self._rewrite()

    def _share(self, limit: int) -> int:
        return limit // max(1, len({p.message.rank for p in self._pending}))

    def _fair(self, limit: int) -> list[Pending]:
        """All that waits, or the newest of each rank: old ones that do not connect are of lives that are over."""
        if len(self._pending) <= limit:
            return list(self._pending)
        left = dict.fromkeys((p.message.rank for p in self._pending), self._share(limit))
        found = []
        for pending in reversed(self._pending):
            left[pending.message.rank] -= 1
            if left[pending.message.rank] >= 0:
                found.append(pending)
        return found[::-1][:limit]


def _connected(mine: Sequence[Pending], begin: int = 0) -> int | None:
    """Index of a commit that the next one continues: the first one from `begin` on, else the first one at all."""
    order = (*range(begin, len(mine) - 1), *range(min(begin, len(mine) - 1)))
    return next((i for i in order if mine[i].message.stop == mine[i + 1].message.start), None)


def _join(first: pb.RankCommit, second: pb.RankCommit) -> pb.RankCommit:
    ledger = Ledger.from_dict(json.loads(first.ledger_json)) + Ledger.from_dict(json.loads(second.ledger_json))
    text = json.dumps(ledger.to_dict(), separators=(",", ":"))
    return pb.RankCommit(rank=first.rank, start=first.start, stop=second.stop, name=second.name, ledger_json=text)


def _line(m: pb.RankCommit, generation: int) -> bytes:
    data = {"planGeneration": generation, "rank": m.rank, "start": m.start, "stop": m.stop, "name": m.name}
    return json.dumps({**data, "ledger": m.ledger_json}, separators=(",", ":")).encode() + b"\n"


def _parse(line: bytes, generation: int) -> pb.RankCommit | None:
    try:
        d = json.loads(line)
        if d["planGeneration"] != generation:
            log.warning("dropped a commit of plan generation %s: this one is %d", d["planGeneration"], generation)
            return None
        Ledger.from_dict(json.loads(d["ledger"]))
        return pb.RankCommit(rank=d["rank"], start=d["start"], stop=d["stop"], name=d["name"], ledger_json=d["ledger"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("dropped a line of %s that cannot be read: %r", COMMITS_NAME, error)
        return None
