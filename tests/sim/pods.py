"""Simulated pods: trainers that consume real ids, checkpoint and commit, behind a sidecar that reports what it must."""

import random
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from lanefeed_core.lanes import Lanes
from lanefeed_core.ledger import Ledger, sum_ids
from lanefeed_core.slices import rank_slice
from lanefeed_core.stream import StreamSpec
from lanefeed_operator.coordinator.reports import Committed, PodReport, RankCommit, RankReport, Reply, StopAt

ROWS = np.array([37, 11, 64, 5, 90, 23], dtype=np.int64)
SIZE = 12
EVERY = 7
EPOCHS = 2


@lru_cache
def lanes_of(last_batch: str) -> Lanes:
    """The order of a small dataset: 230 rows, 19 full steps and one of 2."""
    spec = StreamSpec(seed=9, global_batch_size=SIZE, lanes=6, window=8, last_batch=last_batch)
    return Lanes(spec, ROWS)


@lru_cache(maxsize=100_000)
def rank_ids(last_batch: str, total: int, world: int, rank: int) -> tuple[int, ...]:
    """What a rank reads at a total step, padding left out."""
    lanes = lanes_of(last_batch)
    epoch, step = divmod(total, lanes.steps_per_epoch)
    ids, mask = lanes.batch(epoch, step)
    low, high = rank_slice(len(ids), world, rank)
    return tuple(ids[low:high][mask[low:high]].tolist())


@lru_cache(maxsize=100_000)
def rank_sum(last_batch: str, total: int, world: int, rank: int) -> int:
    """The ledger sum of `rank_ids`."""
    return sum_ids(np.array(rank_ids(last_batch, total, world, rank), dtype=np.int64))


@dataclass
class Saved:
    """One rank's file of a checkpoint."""

    step: int
    before: str
    world: int
    ids: tuple[tuple[int, ...], ...]


@dataclass
class Store:
    """Durable checkpoints: name -> rank -> file. Anybody may write, zombies too."""

    files: dict[str, dict[int, Saved]] = field(default_factory=dict)
    #: Ranks of one checkpoint may have come to it from different ones (see Pod.careful).
    apart: bool = False
    #: Those that became the job's commits.
    committed: set[str] = field(default_factory=set)

    def write(self, name: str, rank: int, saved: Saved) -> None:
        self.files.setdefault(name, {})[rank] = saved

    def whole(self, name: str) -> bool:
        """Whether every rank's file is there, of one world and one step, and from one checkpoint unless `apart`."""
        ranks = self.files.get(name, {})
        worlds = {f.world for f in ranks.values()}
        came = {(f.step, "" if self.apart else f.before) for f in ranks.values()}
        return worlds == {len(ranks)} and len(came) == 1

    def chain(self, last: str) -> list[list[int]]:
        """Ids of every global batch as the chain of checkpoints that ends in `last` saw them."""
        parts: list[list[list[int]]] = []
        name = last
        while name:
            assert self.whole(name), f"checkpoint {name} is not whole: {self.files.get(name)}"
            ways = [self._way(name, rank) for rank in sorted(self.files[name])]
            # The newest checkpoint that all ranks came by; ranks that passed others on the way did the same steps.
            base = next(at for at in ways[0] if all(at in way for way in ways))
            ids = [way[base] for way in ways]
            assert len({len(i) for i in ids}) == 1, f"ranks of {name} did {[len(i) for i in ids]} steps since {base}"
            parts.append([[i for rank in ids for i in rank[k]] for k in range(len(ids[0]))])
            name = base
        return [step for part in reversed(parts) for step in part]

    def _way(self, name: str, rank: int) -> dict[str, list[tuple[int, ...]]]:
        """Checkpoint -> the rank's ids from it to `name`; those that it came by in this world, the newest first."""
        file, ids = self.files[name][rank], list[tuple[int, ...]]()
        found: dict[str, list[tuple[int, ...]]] = {}
        while True:
            ids = [*file.ids, *ids]
            found[file.before] = ids
            before = self.files.get(file.before, {}).get(rank)
            if before is None or before.world != file.world or before.step >= file.step:
                return found
            file = before


@dataclass
class Rank:
    """One trainer process."""

    rank: int
    alive: bool = True
    attached: bool = False
    step: int = 0
    started: int = 0
    from_state: bool = False
    name: str = ""
    ids: list[tuple[int, ...]] = field(default_factory=list)
    committed: int = 0
    ended: bool = False
    exit_code: int | None = None


@dataclass
class Sidecar:
    """One pod's sidecar. `pending` lies in tmpfs and outlives its process, not the pod."""

    session: str
    sequence: int = 0
    pending: list[RankCommit] = field(default_factory=list)
    last_commit: Committed | None = None
    stop_at: StopAt | None = None
    fenced: bool = False
    #: Ranks that this session knows.
    known: dict[int, tuple[int, bool]] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)


@dataclass
class Pod:
    """A trainer process per rank and a sidecar."""

    job: str
    index: int
    uid: str
    generation: int
    world: int
    ranks: list[Rank]
    sidecar: Sidecar
    last_batch: str
    store: Store
    rng: random.Random
    phase: str = "Running"
    exit_code: int | None = None
    disrupted: bool = False
    started: float = 0.0
    #: Its processes run, but the child controller has given it up.
    zombie: bool = False
    lost_since: float | None = None
    ends_at: float | None = None
    #: Evicted: the kubelet lets its ranks leave until then (preStop), and kills it.
    leaves_by: float | None = None
    flush_until: float = 0.0
    prune: bool = True
    #: Steps from one checkpoint to the next.
    every: int = EVERY
    #: A rank that comes by a step again whose checkpoint is a job commit already writes and commits none.
    careful: bool = False
    #: Skip this many ids in ledgers (a planted fault).
    ledger_fault: bool = False

    @property
    def total(self) -> int:
        return EPOCHS * lanes_of(self.last_batch).steps_per_epoch

    # ---- the trainer ----

    def attach(self, rank: Rank, last: Committed | None) -> None:
        """A new life of a rank, from the job's last commit."""
        rank.name, rank.step, rank.from_state = "", 0, False
        if last is not None and last.step:
            saved = next(iter(self.store.files[last.name].values()))
            rank.name, rank.step, rank.from_state = last.name, saved.step, True
        rank.started = rank.committed = rank.step
        rank.ids, rank.ended, rank.attached = [], False, True
        self.sidecar.known[rank.rank] = (rank.step, rank.from_state)
        if self.prune:
            self.sidecar.pending = [c for c in self.sidecar.pending if c.rank != rank.rank or c.stop <= rank.step]

    def consume(self, rank: Rank) -> None:
        rank.ids.append(rank_ids(self.last_batch, rank.step, self.world, rank.rank))
        rank.step += 1

    def checkpoint(self, rank: Rank) -> None:
        """Durable first, committed then."""
        name = f"s{rank.step:05d}-g{self.generation}"
        if name == rank.name or rank.step == rank.committed or (self.careful and name in self.store.committed):
            return
        self.store.write(name, rank.rank, Saved(rank.step, rank.name, self.world, tuple(rank.ids)))
        ledger = Ledger()
        for total in range(rank.committed, rank.step):
            ids = rank_ids(self.last_batch, total, self.world, rank.rank)
            epoch = total // lanes_of(self.last_batch).steps_per_epoch
            if not (self.ledger_fault and total == 11):
                ledger.add(epoch, len(ids), rank_sum(self.last_batch, total, self.world, rank.rank))
        self.sidecar.pending.append(RankCommit(rank.rank, rank.committed, rank.step, name, ledger))
        rank.name, rank.committed, rank.ids = name, rank.step, []

    def leave(self, rank: Rank, code: int) -> None:
        rank.alive, rank.attached, rank.exit_code = False, False, code

    def advance(self, rank: Rank) -> None:
        """One step of a rank, or its end."""
        stop = self.sidecar.stop_at
        if rank.step >= self.total:
            self.checkpoint(rank)
            rank.ended = True
            self.leave(rank, 0)
        elif stop is not None and rank.step >= stop.step:
            self.checkpoint(rank)
            self.leave(rank, 75)
        else:
            self.consume(rank)
            if rank.step % self.every == 0:
                self.checkpoint(rank)

    def settle(self) -> None:
        """The pod ends when all of its ranks have; 0 only if all say so."""
        if self.phase == "Running" and all(not r.alive for r in self.ranks):
            codes = [r.exit_code or 0 for r in self.ranks]
            self.exit_code = next((c for c in codes if c), 0)
            self.phase = "Failed" if self.exit_code else "Succeeded"

    # ---- the sidecar ----

    def restart_sidecar(self) -> None:
        """SIGKILL: a new session, what is in tmpfs stays, attached trainers resume."""
        old = self.sidecar
        self.sidecar = Sidecar(f"{self.uid}/{self.rng.getrandbits(64):x}", pending=old.pending)
        self.sidecar.last_commit, self.sidecar.stop_at = old.last_commit, None
        for rank in self.ranks:
            if rank.alive and rank.attached:
                self.sidecar.known[rank.rank] = (rank.step, False)

    def report(self) -> PodReport:
        self.sidecar.sequence += 1
        ranks = []
        for rank in self.ranks:
            if rank.rank in self.sidecar.known:
                started, state = self.sidecar.known[rank.rank]
                ranks.append(RankReport(rank.rank, started, state, rank.step, rank.attached, rank.ended, 0.1, 1.0))
        return PodReport(
            job_uid=self.job,
            pod_index=self.index,
            pod_uid=self.uid,
            plan_generation=self.generation,
            session=self.sidecar.session,
            sequence=self.sidecar.sequence,
            ranks=tuple(ranks),
            commits=tuple(self.sidecar.pending),
            ready=True,
        )

    def answered(self, sent: PodReport, reply: Reply) -> None:
        """Only the session that asked listens."""
        s = self.sidecar
        if sent.session != s.session:
            return
        if reply.fenced:
            s.fenced = True
            return
        done = sent.commits[: reply.commits_taken]
        s.pending = [c for c in s.pending if not any(c is d for d in done)]
        if reply.last_commit and (s.last_commit is None or reply.last_commit.step > s.last_commit.step):
            s.last_commit = reply.last_commit
        if reply.stop_at:
            s.stop_at = reply.stop_at
