"""What trainers do between two looks: consume, checkpoint, leave; together (collective) or each by itself."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from lanefeed_operator.coordinator.reports import Committed
from sim.cluster.nodes import Proc
from sim.pods import EVERY

GREET_SECONDS = 3.0
INTERVALS = (EVERY, EVERY, 5, 4)


@dataclass
class Round:
    """A rendezvous of all ranks of a plan: the pods' UIDs."""

    members: tuple[str, ...] = ()


@dataclass
class Training:
    """All trainers of one job."""

    rng: random.Random
    collective: bool
    #: Whether it happens now: "workers" are restarted in place, or go "back" to an older checkpoint than they could.
    happens: Callable[[str], bool] = lambda _: False
    #: What a rendezvous began from.
    choices: list[Committed | None] = field(default_factory=lambda: [None])
    rounds: dict[int, Round] = field(default_factory=dict)

    def step(self, procs: list[Proc], reachable: set[str], now: float) -> None:
        """One tick. `reachable`: UIDs of pods that peers can talk to."""
        running = [p for p in procs if p.training and (p.greeted or now - p.began > GREET_SECONDS)]
        if not self.collective:
            for proc in running:
                self.alone(proc)
            return
        plans: dict[int, list[Proc]] = {}
        for proc in running:
            assert proc.trainer is not None
            plans.setdefault(proc.trainer.generation, []).append(proc)
        for generation, members in plans.items():
            self.together(generation, [p for p in members if p.uid in reachable])
            for proc in members:
                if proc.uid not in reachable:
                    self.alone(proc, attach=False)

    def alone(self, proc: Proc, *, attach: bool = True) -> None:
        pod = proc.trainer
        assert pod is not None
        for rank in pod.ranks:
            if attach and rank.alive and not rank.attached:
                pod.attach(rank, pod.sidecar.last_commit)
            for _ in range(self.rng.randint(0, 2)):
                if rank.alive and rank.attached:
                    pod.advance(rank)

    def together(self, generation: int, members: list[Proc]) -> None:
        """All ranks in lockstep; when one is gone all begin again once it is back, from rank 0's choice."""
        known = self.rounds.setdefault(generation, Round())
        pods = sorted((p.trainer for p in members if p.trainer), key=lambda p: p.index)
        ranks = [(pod, rank) for pod in pods for rank in pod.ranks]
        whole = bool(pods) and len(ranks) == pods[0].world and all(rank.alive for _, rank in ranks)
        names = tuple(pod.uid for pod in pods)
        if not whole or names != known.members or self.happens("workers"):
            for _, rank in ranks:
                rank.attached = False
            known.members = ()
        if not whole:
            # Ranks whose peers are gone wait.
            return
        if not known.members:
            self.choices.append(ranks[0][0].sidecar.last_commit)
            choice = self.rng.choice(self.choices) if self.happens("back") else self.choices[-1]
            # Checkpoints by the clock come at other steps the next time.
            every = self.rng.choice(INTERVALS)
            for pod, rank in ranks:
                pod.attach(rank, choice)
                pod.every = every
            known.members = names
            return
        for _ in range(self.rng.randint(0, 2)):
            if all(rank.alive for _, rank in ranks):
                for pod, rank in ranks:
                    pod.advance(rank)
