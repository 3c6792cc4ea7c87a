"""A job, its world in small pieces, and a shell that runs passes of reconcile: for tests of single policies."""

from dataclasses import replace
from typing import Any

from lanefeed_operator.api.spec import Job
from lanefeed_operator.api.status import Status
from lanefeed_operator.reconcile import reconcile
from lanefeed_operator.reconcile import types as t

NOW = 1_800_000_000.0
MANIFEST = t.ManifestInfo(digest="m" * 32, rows=1000, shards=4, row_groups=400, row_bytes=10)


def make_job(**spec: Any) -> Job:
    base = {
        "replicas": 2,
        "data": {"uri": "d"},
        "batching": {"globalBatchSize": 8, "uneven": "Allow"},
        "elastic": {"stopGraceSeconds": 20, "nodeLostSeconds": 30},
        "template": {"spec": {"containers": [{"name": "trainer", "command": ["x"]}]}},
    }
    return Job.model_validate({"metadata": {"name": "j"}, "spec": base | spec})


def pod(index: int, phase: str = "Running", uid: str = "", **more: Any) -> t.Pod:
    return t.Pod(index, uid or f"u{index}", phase, phase == "Running", **more)


def kids(generation: int = 1, replicas: int = 2, **more: Any) -> t.Children:
    more.setdefault("pods", tuple(pod(i) for i in range(replicas)))
    return t.Children(generation, replicas, **more)


def view(rank: int, consumed: int = 10, **more: Any) -> t.RankView:
    values = {"pod_uid": f"u{rank}", "attached": True, "ended": False} | more
    return t.RankView(rank, rank, session="s", started=0, from_state=False, consumed=consumed, **values)


class Shell:
    """Runs passes as a shell does; remembers every action."""

    def __init__(self, job: Job, **observed: Any) -> None:
        self.job, self.status, self.now = job, Status(), NOW
        self.seen = t.Observed(manifest=MANIFEST, **observed)
        self.actions: list[t.Action] = []
        self.writes = 0

    def passes(self, count: int = 1) -> tuple[t.Action, ...]:
        for _ in range(count):
            decision = reconcile(self.job, self.status, self.seen, self.now)
            self.writes += decision.status is not self.status
            self.status = decision.status
            self.actions += decision.actions
        return decision.actions

    def observe(self, **more: Any) -> None:
        self.seen = replace(self.seen, **more)

    def feed(self, **more: Any) -> None:
        values = {"plan_generation": self.status.plan_generation, "book": {"commits": []}} | more
        self.observe(feed=replace(self.seen.feed, **values))

    def run(self) -> "Shell":
        """To a running plan of generation 1."""
        self.passes(2)
        self.observe(plans=frozenset({1}), children={1: kids(replicas=self.job.spec.replicas)})
        self.feed(ranks={r: view(r) for r in range(self.job.spec.replicas)}, rate=2.0)
        self.passes(3)
        assert self.status.state == "Running"
        self.actions = []
        return self

    def condition(self, kind: str) -> tuple[str, str, str]:
        found = self.status.condition(kind)
        assert found is not None
        return found.status, found.reason, found.message
