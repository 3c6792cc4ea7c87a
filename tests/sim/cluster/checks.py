"""What must never be seen, looked at with every write and every tick. Each complaint is an AssertionError."""

import json
from collections.abc import Callable
from typing import Any

from lanefeed_core.lanes import Lanes
from lanefeed_operator.api.status import Status
from lanefeed_operator.coordinator.reports import PodReport, Reply
from lanefeed_operator.kube.api import CONFIG_MAPS, JOBS, PODS, STJS, Object
from lanefeed_operator.render import constants as c
from sim.cluster.calls import Call
from sim.cluster.jobcontroller import Totals
from sim.cluster.nodes import Proc
from sim.pods import EPOCHS, Store, lanes_of

MAX_STATUS_BYTES = 64 << 10
#: A watch may lag this long; what is made meanwhile for a job that is gone the garbage collector takes.
GONE_SECONDS = 12.0
COUNTERS = ("failures", "disruptions", "resizes", "suspends", "interrupted", "lost")


class Checks:
    """Invariants over the life of every ShardedTrainingJob, by UID."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.stored: dict[str, Status] = {}
        self.raw: dict[str, Any] = {}
        self.files: dict[str, Store] = {}
        self.names: dict[str, tuple[str, str]] = {}
        self.last_batch: dict[str, str] = {}
        #: Failing is what this job is to do.
        self.may_fail: set[str] = set()
        #: Plans of which a process that had lost its lead made something.
        self.late: set[tuple[str, int]] = set()
        #: When ShardedTrainingJobs were deleted.
        self.gone: dict[str, float] = {}
        #: UIDs of pods that an operator gave up because their node is lost.
        self.freed: set[str] = set()
        #: Highest total step that was ever persisted as a commit.
        self.persisted: dict[str, int] = {}
        self.tokens: dict[str, str] = {}
        #: Who wrote a job's status last.
        self.writer: dict[str, str] = {}

    def event(self, event: str, kind: Any, o: Object) -> None:
        """A subscriber of the store."""
        if kind != STJS:
            return
        uid = o["metadata"]["uid"]
        self.tokens[uid] = o["spec"].get("restartToken", "")
        if event == "DELETED":
            self.gone[uid] = self.now()
        if event == "ADDED":
            self.files.setdefault(uid, Store())
            self.names[uid] = (o["metadata"]["namespace"], o["metadata"]["name"])
            self.last_batch[uid] = o["spec"]["batching"]["lastBatch"]
        if event != "MODIFIED" or o.get("status") == self.raw.get(uid):
            return
        self.raw[uid] = o.get("status")
        new = Status.model_validate(o["status"])
        self.written(uid, self.stored.get(uid, Status()), new, o["status"])
        self.stored[uid] = new
        steps = [int(commit["step"]) for commit in new.book.get("commits", ())]
        self.persisted[uid] = max([self.persisted.get(uid, 0), *steps])

    def written(self, uid: str, before: Status, after: Status, raw: Any) -> None:
        """Two statuses of one job, one after the other."""
        size = len(json.dumps(raw))
        assert size <= MAX_STATUS_BYTES, f"the status has {size} bytes"
        assert after.plan.generation >= before.plan.generation, "the plan generation went back"
        assert after.plan_generation == after.plan.generation
        for name in COUNTERS:
            old, new = getattr(before.restarts, name), getattr(after.restarts, name)
            assert new >= old, f"restarts.{name} went back from {old} to {new}"
        # A failed job goes on when its user asks for that, and then alone.
        again = before.state == "Failed" and self.tokens[uid] != before.failed_token and not after.terminal
        if before.terminal and not again:
            kinds = [[k.type for k in s.conditions if k.status == "True"] for s in (before, after)]
            assert after.terminal, "a terminal state changed"
            assert after.cursor == before.cursor, f"a finished job's cursor went from {before.cursor} to {after.cursor}"
            assert [k in kinds[1] for k in ("Complete", "Failed")] == [k in kinds[0] for k in ("Complete", "Failed")]
        if after.cursor.commit and after.cursor.commit != before.cursor.commit:
            assert self.files[uid].whole(after.cursor.commit), f"commit {after.cursor.commit} is not whole"
        failed = after.condition("Failed")
        if failed is not None and failed.status == "True":
            assert failed.message, "Failed and no reason said"
            assert uid in self.may_fail, f"failed: {failed.reason}: {failed.message}"

    def landed(self, call: Call, *, by: str, changed: bool, leads: bool, excused: bool) -> None:
        """A write of an operator took effect. `excused`: of one that froze in the middle of a pass and has thawed."""
        if call.verb == "patch" and call.kind == PODS and (call.body or {}).get("status", {}).get("phase") == "Failed":
            self.freed.add(call.body["metadata"]["uid"] if call.body else "")
        if call.verb == "replace_status":
            assert changed, f"a status was written in which nothing had changed: {call.name}"
            self.writer[call.body["metadata"]["uid"] if call.body else ""] = by
        assert not (call.kind == JOBS and call.verb == "patch" and "spec" in (call.body or {})), (
            "a child's spec (and with it its suspend) is not ours to write"
        )
        if call.verb != "create" or call.kind not in (JOBS, CONFIG_MAPS) or call.body is None:
            return
        labels = call.body["metadata"].get("labels", {})
        if c.PLAN_LABEL not in labels:
            return
        assert not call.body.get("spec", {}).get("suspend"), "a child is not ours to suspend"
        owner = call.body["metadata"]["ownerReferences"][0]["uid"]
        gone = self.now() - self.gone.get(owner, float("inf"))
        assert call.kind != JOBS or excused or gone < GONE_SECONDS, f"{call.name} was made for a job that is gone"
        uid, generation = call.body["metadata"]["annotations"][c.UID_ANNOTATION], int(labels[c.PLAN_LABEL])
        known = self.stored.get(uid, Status()).plan.generation
        assert known >= generation, f"{call.name} was made before plan generation {generation} was written ({known})"
        if known > generation and changed:
            assert not leads, f"{call.name} was made by the leader although the plan is {known}"
            assert excused, f"{call.name} was made by a former leader that did not look whether the plan is {known}"
            self.late.add((uid, generation))

    def plans(self, procs: list[Proc], lost: set[str]) -> None:
        """Never two plans alive: on nodes that can be reached and in pods that nobody has fenced."""
        living: dict[str, set[int]] = {}
        for proc in [p for p in procs if p.training and p.node not in lost]:
            assert proc.trainer is not None
            if (proc.job_uid, proc.trainer.generation) not in self.late:
                living.setdefault(proc.job_uid, set()).add(proc.trainer.generation)
        for uid, generations in living.items():
            assert len(generations) == 1, f"plan generations {sorted(generations)} of {self.names[uid]} live at once"

    def answer(self, report: PodReport, reply: Reply, *, by: str, leads: bool) -> None:
        """What sidecars are told to be committed must survive a crash of the operator right now."""
        uid = report.job_uid
        if not reply.reason and leads:
            assert report.pod_uid not in self.freed, f"a report of pod {report.pod_uid} counts, and its index was freed"
        if reply.last_commit is None:
            return
        last = reply.last_commit
        assert last.step <= self.persisted.get(uid, 0), f"step {last.step} was acknowledged and is not persisted"
        if leads:
            book = self.stored[uid].book
            # A void commit can be begun from, but must not be told of; unless another operator made it void, which
            # froze with this write in hand: nobody else can know of it.
            kept = [*book["commits"], *(book.get("void", ()) if self.writer.get(uid) != by else ())]
            found = {(commit["step"], commit["name"], commit["planGeneration"]) for commit in kept}
            assert (last.step, last.name, last.plan_generation) in found, (
                f"step {last.step} was acknowledged, and {sorted(f[0] for f in found)} are persisted"
            )

    def complete(self, uid: str, status: Status) -> None:
        """Complete, every global batch as an uninterrupted rank sees it, every epoch proven."""
        assert status.state == "Complete", status.state
        got, want = self.files[uid].chain(status.cursor.commit), self.whole(uid)
        assert got == want, f"the order differs: {len(got)} steps of {len(want)}"
        assert [e.epoch for e in status.ledger.epochs] == list(range(EPOCHS))
        assert all(e.verified for e in status.ledger.epochs)

    def whole(self, uid: str) -> list[list[int]]:
        """Every global batch, as an uninterrupted rank of a world of one sees it."""
        lanes: Lanes = lanes_of(self.last_batch[uid])
        want = []
        for epoch in range(EPOCHS):
            for step in range(lanes.steps_per_epoch):
                ids, mask = lanes.batch(epoch, step)
                want.append(ids[mask].tolist())
        return want

    def prefix(self, uid: str, status: Status) -> None:
        """A failed job: what it has committed is the beginning of the whole."""
        got = self.files[uid].chain(status.cursor.commit)
        assert got == self.whole(uid)[: len(got)], "what was committed is not the beginning of the order"
        assert len(got) == status.cursor.total_step

    def counted(self, status: Status, ends: Totals) -> None:
        """Nothing is counted that did not happen, or twice."""
        restarts = status.restarts
        assert restarts.failures <= ends.failed, f"{restarts.failures} failures are counted of {ends.failed}"
        many = len(ends.disrupted)
        assert restarts.disruptions <= many, f"{restarts.disruptions} disruptions are counted of {many}"

    def orphans(self, objects: list[tuple[Any, Object]]) -> None:
        """When all is over: whatever carries our label has an owner that lives, and is of the job's last plan."""
        uids = {o["metadata"]["uid"] for _, o in objects}
        for kind, o in objects:
            labels = o["metadata"].get("labels", {})
            if c.JOB_LABEL not in labels:
                continue
            owners = [r["uid"] for r in o["metadata"].get("ownerReferences", ())]
            assert owners, f"{kind.kind} {o['metadata']['name']} has no owner"
            assert set(owners) <= uids, f"{kind.kind} {o['metadata']['name']} is an orphan"
            if kind == JOBS and c.PLAN_LABEL in labels:
                uid = o["metadata"]["annotations"][c.UID_ANNOTATION]
                last = self.stored[uid].plan.generation
                assert int(labels[c.PLAN_LABEL]) == last, (
                    f"{o['metadata']['name']} is left over, the last plan is {last}"
                )
