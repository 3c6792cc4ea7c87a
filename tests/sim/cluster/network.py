"""How sidecars and indexers reach the operator: reports and answers that are lost, repeated, late and out of order.

And what an operator had sent to the API server when it was killed: that may land much later.
"""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from lanefeed_operator.coordinator.reports import PodReport, Reply
from lanefeed_operator.kube.api import ApiError
from sim.cluster.calls import Call, Calls, Killed
from sim.cluster.checks import Checks
from sim.cluster.data import manifest
from sim.cluster.nodes import Nodes, Proc
from sim.cluster.operator import Operator


class Network:
    """A part of `World`."""

    rng: random.Random
    now: float
    chances: Any
    checks: Checks
    nodes: Nodes
    operator: Operator | None
    seen: Counter[str]
    mail: list[tuple[float, int, Proc, PodReport, Reply | None]]
    number: int
    #: When they land, and what they do.
    flights: list[tuple[float, Calls, Call, Callable[[], Any]]]

    def chance(self, probability: float) -> bool:
        raise NotImplementedError

    def note(self, what: str) -> None:
        raise NotImplementedError

    def version(self) -> int:
        raise NotImplementedError

    def landed(self, calls: Calls, call: Call, changed: bool) -> None:
        raise NotImplementedError

    def sent(self, calls: Calls, call: Call, effect: Callable[[], Any]) -> None:
        """A write of an operator that is killed at this moment; without its connection it may be served or not."""
        if self.chance(self.chances.flight):
            self.flights.append((self.now + self.rng.choice([0.5, 2.0, 8.0]), calls, call, effect))

    def land(self) -> None:
        """Writes of operators that are dead."""
        due = [f for f in self.flights if f[0] <= self.now]
        self.flights = [f for f in self.flights if f[0] > self.now]
        for _, calls, call, effect in due:
            before = self.version()
            try:
                effect()
            except ApiError:
                continue
            self.seen["late write"] += 1
            calls.owner.in_hand = True
            self.landed(calls, call, self.version() != before)

    def reports(self) -> None:
        """Sidecars tell and are answered; indexers upload."""
        for machine in self.nodes.machines.values():
            for proc in machine.procs.values():
                if machine.lost_since is not None and (machine.cut or machine.off):
                    continue
                if proc.trainer is None:
                    self.upload(proc)
                elif not proc.trainer.sidecar.fenced:
                    self.send(proc, proc.trainer.report(), None)
        due = sorted((m for m in self.mail if m[0] <= self.now), key=lambda m: m[:2])
        self.mail = [m for m in self.mail if m[0] > self.now]
        for _, _, proc, report, reply in due:
            if reply is not None:
                assert proc.trainer is not None
                proc.greeted = True
                proc.trainer.answered(report, reply)
            elif self.operator is not None and not self.operator.dead:
                self.receive(self.operator, proc, report)

    def receive(self, op: Operator, proc: Proc, report: PodReport) -> None:
        member = op.registry.find(report.job_uid)
        if member is None or member.coordinator is None:
            return
        reply = member.coordinator.report(report, self.now)
        self.seen["fenced"] += reply.fenced
        self.checks.answer(report, reply, by=op.name, leads=op is self.operator)
        self.send(proc, report, reply)

    def send(self, proc: Proc, report: PodReport, reply: Reply | None) -> None:
        if self.chance(self.chances.loss):
            return
        for _ in range(2 if self.chance(self.chances.twice) else 1):
            late = self.rng.choice([0.5, 2.0, 8.0]) if self.chance(self.chances.late) else 0.0
            self.number += 1
            self.mail.append((self.now + late, self.number, proc, report, reply))

    def upload(self, proc: Proc) -> None:
        """An indexer, a moment after it began, until it is taken or refused."""
        if proc.code is not None or self.now - proc.began < 1.0 or self.operator is None or self.operator.dead:
            return
        found, data = manifest()
        try:
            refused = self.operator.registry.put_manifest(proc.job_uid, proc.uid, found.digest, data)
        except ApiError:
            return
        except Killed:
            self.operator.calls.dead = True
            return
        self.note(f"upload: {refused or 'taken'}")
        self.nodes.kill(proc, 1 if refused else 0, "")
